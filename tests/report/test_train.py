"""`edbatch train` and `edbatch run`: files that can be used, errors with the fix in them, and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from edbatch import load_policy
from edbatch.cli import app
from edbatch.report.words import counted
from edbatch.workloads import WORKLOADS
from edbatch.workloads import checkpoint as checkpoints

SMALL = ["--limit", 16, "--batch-size", 8, "--hidden", 6]


@pytest.fixture(autouse=True)
def generated_data(monkeypatch, tmp_path):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def run(*arguments: object):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "trees"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("EDBATCH_DATA", raising=False)
        result = run("train", "tree-lstm", *SMALL, "--epochs", 2, "--one-by-one", 2, "--output", folder)
    assert result.exit_code == 0, result.output
    (folder / "output.txt").write_text(result.output)
    return folder


def test_training_writes_a_checkpoint_a_policy_and_a_picture(trained):
    output = (trained / "output.txt").read_text()
    assert re.search(r"epoch 1: loss [\d.]+ an example, [\d.]+% right on dev, [\d.]+ s, \d+ examples/s", output)
    assert re.search(r"One by one an epoch would take \d+ s .* times faster", output)
    assert len(checkpoints.load(trained).progress.epochs) == 2
    assert load_policy(trained / "policy.json").types
    assert (trained / "training.svg").read_bytes().startswith(b"<?xml")
    assert (trained / "training.png").read_bytes().startswith(b"\x89PNG")


def test_resume_goes_on_and_the_options_are_those_of_the_checkpoint(trained, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in (checkpoints.FILE, checkpoints.POLICY):
        (folder / name).write_bytes((trained / name).read_bytes())
    result = run("train", "tree-lstm", "--epochs", 3, "--resume", "--output", folder)
    assert result.exit_code == 0, result.output
    assert "Going on after 2 epochs and 0 steps." in result.output
    assert f"edbatch run tree-lstm --checkpoint {folder}" in result.output
    assert "epoch 3:" in result.output
    assert "epoch 2:" not in result.output
    done, before = checkpoints.load(folder), checkpoints.load(trained)
    assert replace(done.settings, epochs=2) == before.settings
    result = run("train", "tree-lstm", *SMALL, "--epochs", 3, "--output", tmp_path / "in one go")
    assert result.exit_code == 0, result.output
    losses = [epoch.loss for epoch in checkpoints.load(tmp_path / "in one go").progress.epochs]
    assert [epoch.loss for epoch in done.progress.epochs] == losses
    result = run("train", "tree-lstm", "--resume", "--output", folder)
    assert result.exit_code == 1
    assert "are done: give more than 3 by --epochs" in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "tree-lstm", "--output", "{}"],
            "holds a checkpoint; add --resume to go on from it, or give another",
        ),
        (["train", "tree-gru", "--resume", "--output", "{}"], "holds a checkpoint of tree-lstm; name that workload"),
        (["train", "tree-lstm", "--resume", "--hidden", 7, "--output", "{}"], "was trained with --hidden 6, not 7"),
        (
            ["train", "tree-lstm", "--resume", "--policy", "depth", "--output", "{}"],
            "was trained with --policy learned",
        ),
        (["train", "tree-lstm", "--resume", "--output", "missing"], "there is no checkpoint in missing"),
        (["train", "tree", "--output", "x"], "no workload is called 'tree'; choose one of"),
        (["train", "tree-lstm", "--policy", "best"], "no policy is called 'best'; choose one of"),
        (["train", "tree-lstm", "--policy", "missing.json"], "cannot read missing.json"),
        (["train", "tree-lstm", "--data", "missing"], "missing/trees/train.txt is no file"),
        (["run", "tree-lstm", "--checkpoint", "missing"], "there is no checkpoint in missing"),
        (["run", "tree-gru", "--checkpoint", "{}"], "holds a checkpoint of tree-lstm; run that workload"),
        (["run", "tree-lstm", "--hidden", 7, "--checkpoint", "{}"], "was trained with --hidden 6, not 7; leave"),
        (["run", "tree-lstm", "--seed", 7, "--checkpoint", "{}"], "was trained with --seed 0, not 7; leave it out"),
        (["run", "tree-lstm", "--output", "missing/x.jsonl"], "cannot write missing/x.jsonl"),
    ],
)
def test_errors(trained, tmp_path, arguments, message):
    result = run(*(str(a).format(trained) for a in arguments))
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []  # nothing half-made


def test_run_with_a_checkpoint(trained):
    result = run("run", "tree-lstm", "--checkpoint", trained, "--check", "--output", "guesses.jsonl")
    assert result.exit_code == 0, result.output
    assert re.search(r"batches +│ \d+; lower bound \d+", result.output)
    right, total = map(int, re.search(r"right: (\d+) of (\d+)", result.output).groups())
    assert "checked: values and gradients" in result.output
    lines = [json.loads(line) for line in Path("guesses.jsonl").read_text().splitlines()]
    assert sum(line["guesses"] == line["labels"] for line in lines) == right
    assert len(lines) == total == 16


@pytest.mark.parametrize("name", WORKLOADS)
def test_run_every_workload(name):
    result = run("run", name, "--batches", 1, "--batch-size", 2, "--hidden", 4, "--policy", "agenda")
    assert result.exit_code == 0, result.output
    assert f"{name}, policy agenda" in result.output
    assert "2 in 1 mini-batch" in result.output


def test_run_says_how_much_of_a_policy_was_known(trained):
    policy = trained / "policy.json"
    for workload, hidden, said in (
        ("tree-lstm", 6, "knows 4 of the 4 types"),
        ("lstm-1d", 4, "knows 0 of the 2 types; "),
    ):
        result = run("run", workload, "--batches", 1, "--batch-size", 2, "--hidden", hidden, "--policy", policy)
        assert result.exit_code == 0, result.output
        assert said in result.output.replace("\n", "")


def test_workloads_are_listed():
    result = run("workloads")
    assert result.exit_code == 0, result.output
    for workload in WORKLOADS.values():
        assert re.search(rf"{workload.name} +│? *{workload.family}.*\d,\d", result.output), workload.name


def test_without_batching(trained, monkeypatch):
    monkeypatch.setenv("EDBATCH_EAGER", "1")
    result = run("train", "tree-lstm", *SMALL, "--epochs", 1, "--output", "eager")
    assert result.exit_code == 0, result.output
    losses = [checkpoints.load(folder).progress.epochs[0].loss for folder in (Path("eager"), trained)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    result = run("run", "tree-lstm", "--checkpoint", "eager")
    assert result.exit_code == 1
    assert "unset EDBATCH_EAGER" in result.output


def test_a_folder_with_part_of_the_data(tmp_path):
    result = run("workloads", "--data", tmp_path)
    assert result.exit_code == 0, result.output
    assert re.search(r"lattice-lstm +lattice .* no data ", result.output)


def test_a_folder_that_does_not_exist():
    result = run("workloads", "--data", "missing")
    assert result.exit_code == 1
    assert "missing is no folder" in result.output


def test_progress_bar(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    arguments = ["train", "tree-lstm", *map(str, SMALL), "--epochs", "1"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "150"})
    assert result.exit_code == 0, result.output
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", result.output)
    assert re.search(r"epoch 1.*2/2.*loss \d+\.\d+, \d+ examples/s", plain)


def test_a_cluster_without_torchrun(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    result = run("train", "tree-lstm", *SMALL)
    assert result.exit_code == 1
    assert "start by torchrun, or unset it" in result.output


@pytest.mark.timeout(600)
def test_ctrl_c_leaves_a_checkpoint_from_which_training_goes_on(tmp_path):
    command = [sys.executable, "-u", "-m", "edbatch", "train", "tree-lstm", *map(str, SMALL), "--output", "trees"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--epochs", "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        while "epoch 2:" not in process.stdout.readline():
            assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    assert "Stopped and saved; go on by:\n  edbatch train tree-lstm --output trees --resume" in output
    assert "Traceback" not in errors
    assert "interrupted" not in errors
    done = checkpoints.load(tmp_path / "trees").progress
    assert len(done.epochs) >= 2
    result = run("train", "tree-lstm", "--epochs", len(done.epochs) + 1, "--resume", "--output", "trees")
    assert result.exit_code == 0, result.output
    assert f"Going on after {len(done.epochs)} epochs and {counted(done.step, 'step')}" in result.output
