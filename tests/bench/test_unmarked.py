"""`edbatch bench unmarked`: models lose their marks and nothing else, and what it reports is complete."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console

from edbatch.bench import unmarked
from edbatch.bench.measure import BenchError
from edbatch.recording.program.marking import MARK
from edbatch.workloads import find


@pytest.fixture(autouse=True)
def generated_data(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)
    monkeypatch.setenv("EDBATCH_COMPILE", "0")


def test_unmarked():
    settings = unmarked.Settings(("tree-lstm",), batch_size=6, hidden=4, rounds=10, threads=1)
    settings.check()
    result = json.loads(json.dumps(unmarked.run(settings)))
    (row,) = result["workloads"].values()
    for way in unmarked.WAYS:
        for mode in ("infer", "train"):
            launches = row[way][mode]["launches"]
            assert launches["unmarked"] <= 1.1 * launches["marked"]
            assert row[way][mode]["ratio"]["rounds"] == 10
            assert list(row[way][mode]["ms"]) == ["marked", "unmarked"]
    console = Console(width=150, file=io.StringIO())
    console.print(*unmarked.tables(result))
    for text in ("tree-lstm", "recording", "key=", "infer", "train", "ratio", "launches"):
        assert text in console.file.getvalue()


def test_marks_are_really_off():
    _, races = unmarked._races(find("tree-lstm"), unmarked.Settings(batch_size=4, hidden=4), None)
    for both in races.values():
        marked, bare = both["marked"].model, both["unmarked"].model
        assert any(MARK in module.__dict__ for module in marked.modules())
        assert not any(MARK in module.__dict__ or module._forward_pre_hooks for module in bare.modules())
        assert marked.state_dict().keys() == bare.state_dict().keys()


def test_wrong_results_are_not_timed(monkeypatch):
    def spoiled(*args):
        source, races = original(*args)
        with torch.no_grad():
            races["key="]["unmarked"].model.out.linear.bias[0] += 1e-6
        return source, races

    original = unmarked._races
    monkeypatch.setattr(unmarked, "_races", spoiled)
    with pytest.raises(BenchError, match="nothing was timed, because losses of tree-lstm with recording differ"):
        unmarked.run(unmarked.Settings(("tree-lstm",), batch_size=2, hidden=4, rounds=10))
