"""The command line: help that helps, exit codes, errors without tracebacks, and the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from edbatch import load_policy
from edbatch.cli import app


@pytest.fixture(autouse=True)
def shipped_data(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)


def run(*arguments: object):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def test_help_shows_examples():
    result = run("--help")
    assert result.exit_code == 0
    assert "edbatch bench tree-lstm --mode train" in result.output
    assert "edbatch learn lattice-lstm" in result.output
    for command in (
        ["demo"],
        ["learn"],
        ["cells"],
        ["policy", "show"],
        ["bench", "tree-lstm"],
        ["bench", "recording"],
        ["bench", "scale"],
        ["bench", "policies"],
        ["bench", "workloads"],
        ["bench", "segments"],
        ["bench", "dynet"],
        ["bench", "floor"],
        ["bench", "ablations"],
        ["bench", "order"],
        ["bench", "unmarked"],
        ["fuzz"],
        ["workloads"],
        ["run"],
    ):
        result = run(*command, "--help")
        assert result.exit_code == 0
        assert f"Example: edbatch {' '.join(command)}" in result.output


def test_module_and_version():
    command = [sys.executable, "-m", "edbatch", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"NO_COLOR": "1"})
    assert done.stdout == f"edbatch {version('edbatch')}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["bench", "tree-lstm", "--rounds", 3], 1, "error: 3 rounds are too few"),
        (["bench", "recording", "--rounds", 3], 1, "error: 3 rounds are too few"),
        (["bench", "tree-lstm", "--one-by-one-rounds", 31], 1, "error: one by one can run in 1 to 30"),
        (["bench", "tree-lstm", "--json", "/missing/folder/a.json"], 1, "error: cannot write /missing/folder/a.json"),
        (["bench", "tree-lstm", "--data", "/missing"], 1, "error: /missing/trees/train.txt is no file"),
        (["bench", "tree-lstm", "--batch-size", 601], 1, "error: there are only 600 trees"),
        (["bench", "tree-lstm", "--policy", "nonsense"], 1, "error: no policy is called 'nonsense'"),
        (["bench", "tree-lstm", "--mode", "sideways"], 2, "Invalid value for '--mode'"),
        (["bench", "tree-lstm", "--hidden", 0], 2, "Invalid value for '--hidden'"),
        (["demo", "--epochs", "many"], 2, "Invalid value for '--epochs'"),
        (["learn", "trees"], 1, "error: no workload is called 'trees'; choose one of tree-lstm, "),
        (["learn", "tree-lstm", "--output", "/dev/null/a"], 1, "error: cannot write into the folder /dev/null/a"),
        (["learn", "tree-lstm", "--data", "/missing"], 1, "error: /missing/trees/train.txt is no file"),
        (["learn", "tree-lstm", "--encoding", "sideways"], 2, "Invalid value for '--encoding'"),
        (["learn", "tree-lstm", "--graphs", 0], 2, "Invalid value for '--graphs'"),
        (["learn"], 2, "Missing argument 'WORKLOAD'"),
        (["policy", "show", "/missing/a.json"], 1, "error: cannot read /missing/a.json: No such file or directory"),
        (["policy", "show", "/"], 1, "error: cannot read /: Is a directory"),
        (
            ["bench", "dynet", "attention-nmt"],
            1,
            "error: attention-nmt is not written in DyNet; choose one of tree-lstm, ",
        ),
        (["cells", "--batch-sizes", "1,many"], 1, "error: '1,many' is no list of batch sizes; give numbers"),
        (["cells", "--batch-sizes", "0"], 1, "error: batch sizes must be 1 or more"),
        (["cells", "--json", "/missing/a.json"], 1, "error: cannot write /missing/a.json"),
        (["bench", "floor", "--rounds", 2], 1, "error: 2 rounds are too few"),
        (["bench", "floor", "trees"], 1, "error: no workload is called 'trees'; choose one of tree-lstm, "),
        (["bench", "ablations", "--rounds", 2], 1, "error: 2 rounds are too few"),
        (["bench", "order", "--rounds", 2], 1, "error: 2 rounds are too few"),
        (["bench", "ablations", "--mode", "sideways"], 2, "Invalid value for '--mode'"),
        (["bench", "unmarked", "--rounds", 2], 1, "error: 2 rounds are too few"),
        (["bench", "nothing"], 2, "No such command 'nothing'"),
    ],
)
def test_mistakes_are_named_without_a_traceback(arguments, code, message):
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.output
    assert "Traceback" not in result.output


def test_interrupt_is_code_130(monkeypatch):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr("edbatch.report.demo.run", interrupt)
    result = run("demo")
    assert result.exit_code == 130
    assert "interrupted" in result.output


@pytest.mark.parametrize(("cause", "code"), [(KeyboardInterrupt(), 130), (ValueError(), 1)])
def test_interrupt_inside_a_kernel_is_code_130(monkeypatch, cause, code):
    def interrupt(*_):
        inner = SystemError("boxing returned a result with an exception set")
        inner.__cause__ = cause
        raise SystemError("play returned a result with an exception set") from inner

    monkeypatch.setattr("edbatch.report.learn.run", interrupt)
    result = run("learn", "tree-lstm")
    assert result.exit_code == code
    assert result.output == ("interrupted\n" if code == 130 else "")
    assert isinstance(result.exception, SystemExit if code == 130 else SystemError)  # a mistake of ours is not hidden


def test_without_dynet_it_is_said_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dynet_config", None)  # as if it was not there
    result = run("bench", "dynet", "tree-lstm")
    assert result.exit_code == 1
    assert result.output.startswith("error: DyNet cannot be imported (")
    assert result.output.endswith("; install it with: pip install dyNET38\n")
    assert result.output.count("\n") == 1


def test_tree_lstm_writes_json(tmp_path):
    path = tmp_path / "result.json"
    options = "--batch-size 2 --hidden 4 --policy depth --one-by-one-rounds 1"
    result = run("bench", "tree-lstm", *options.split(), "--json", path)
    assert result.exit_code == 0, result.output
    assert "hand-batched" in result.output
    assert f"All numbers are in {path}" in result.output.replace("\n", "")
    assert json.loads(path.read_text())["settings"]["policy"] == "depth"
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_demo():
    result = run("demo", "--hidden", 4, "--batch-size", 100, "--epochs", 1)
    assert result.exit_code == 0, result.output
    assert "epoch 1: loss" in result.output
    for row in ("one by one", "edbatch, depth", "edbatch, agenda", "edbatch, bound-greedy"):
        assert row in result.output
    assert "batched.explain()" in result.output


def test_learn_and_policy_show(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = "--graphs 1 --held-out 1 --unseen 1 --batch-size 2 --episodes 20 --seed 5 --encoding sort"
    result = run("learn", "lattice-gru", *options.split())
    assert result.exit_code == 0, result.output
    assert "bound-greedy, beam 4" in result.output
    assert "edbatch policy show lattice-gru-policy/policy.json" in result.output
    names = {"policy.json", "curve.svg", "curve.png", "machine.svg", "machine.png"}
    assert {path.name for path in (tmp_path / "lattice-gru-policy").iterdir()} == names

    policy = load_policy("lattice-gru-policy/policy.json")
    result = run("policy", "show", "lattice-gru-policy/policy.json", "--limit", 2)
    assert result.exit_code == 0, result.output
    chosen = policy.training.curve[policy.training.chosen]
    ratio = chosen.batches / policy.training.lower_bound
    for expected in (
        f"{policy.num_states} states over 7 types",
        "encoding  sort",
        f"types     {policy.types[0]}, ",
        f"crowd     {policy.crowd:g}: how much a type's ready nodes together count for the rule",
        f"rule      alone: {policy.training.curve[0].batches} batches (",
        f"from 1 graph of {policy.training.num_nodes:,} nodes in {policy.training.episodes} episodes, seed 5",
        f"after {chosen.episode} episodes: {chosen.batches} batches ({ratio:.2f}× the bound",
        f"… and {policy.num_states - 2} more; --limit {policy.num_states} shows all",
    ):
        assert expected in result.output
    everything = run("policy", "show", "lattice-gru-policy/policy.json", "--limit", 1000).output
    assert "more;" not in everything
    assert all(f"{state.visits:,} │" in everything for state in policy.states())
    assert "In a state that is not here the rule decides." in everything


def test_policy_show_of_the_rule_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = "--graphs 2 --held-out 0 --unseen 0 --batch-size 2 --encoding base --episodes 0"
    assert run("learn", "lattice-gru", *options.split(), "--output", "none").exit_code == 0
    result = run("policy", "show", "none/policy.json")
    assert result.exit_code == 0, result.output
    assert "0 states over 7 types" in result.output
    assert "The rule alone decides, because no state was learned." in result.output
    record = json.loads((tmp_path / "none" / "policy.json").read_text())
    record["training"]["chosen"] = 0
    (tmp_path / "policy.json").write_text(json.dumps(record | {"encoding": "signs", "crowd": 0.5}))
    output = run("policy", "show", "policy.json").output
    assert "The rule alone decides, because no table was better." in output
    assert "crowd     0.5: " in output
    assert "•  0.5 × the logarithm" in output
    assert "chosen " not in output


@pytest.mark.parametrize("command", ["learn", "run", "train"])
def test_help_says_where_the_workloads_are_listed(command):
    assert "One that edbatch workloads lists" in " ".join(run(command, "--help").output.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged or no policy"),
        (b"\xff\x00 no text", "is damaged or no policy"),
        (b"[1, 2]", "is damaged or no policy"),
        (b'{"format": "recipe", "version": 1}', "says that its format is 'recipe'"),
        (b'{"format": "edbatch policy", "version": 99}', "is a policy of version 99"),
        (b'{"format": "edbatch policy", "version": 1, "encoding": "signs"', "is damaged"),
        (b'{"format": "edbatch policy", "version": 1, "encoding": "signs"}', "is damaged"),
    ],
)
def test_policy_show_refuses_other_files(tmp_path, content, message):
    path = tmp_path / "policy.json"
    path.write_bytes(content)
    result = run("policy", "show", path)
    assert result.exit_code == 1
    assert result.output.startswith(f"error: {path} {message}")
    assert result.output.count("\n") == 1


def test_policy_show_without_states_or_a_record(tmp_path):
    path = tmp_path / "policy.json"
    header = {"format": "edbatch policy", "version": 1, "encoding": "base", "crowd": 1}
    path.write_text(json.dumps({**header, "types": ["a[b]", 7], "states": [], "training": {}}))
    result = run("policy", "show", path)
    assert result.exit_code == 0, result.output
    assert "0 states over 2 types" in result.output
    assert "types     a[b], 7" in result.output
    assert "crowd     1: " in result.output
    assert "learned " not in result.output
