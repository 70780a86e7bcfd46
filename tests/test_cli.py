"""The command line: help that helps, exit codes, errors without tracebacks, and the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

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
    for command in (["demo"], ["bench", "tree-lstm"], ["bench", "recording"], ["bench", "scale"]):
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
