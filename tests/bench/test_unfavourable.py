"""`edbatch bench unfavourable`: every case runs, is compared with one by one, and those that cannot pay run alone."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console

from edbatch.bench import unfavourable
from edbatch.bench.measure import BenchError
from edbatch.errors import EdbatchError


def test_there_are_at_least_twelve_cases():
    assert len(unfavourable.CASES) >= 12


@pytest.mark.usefixtures("judged")
def test_one_of_the_cases():
    settings = unfavourable.Settings(("all types different", "one example, one op"), rounds=3, threads=1)
    settings.check()
    result = json.loads(json.dumps(unfavourable.run(settings)))
    assert list(result["cases"]) == list(settings.cases)
    for row in result["cases"].values():
        for mode in ("infer", "train"):
            assert row[mode]["runs"] == "one by one"
            assert row[mode]["ratio"]["rounds"] == 3
    console = Console(width=150, file=io.StringIO())
    console.print(*unfavourable.tables(result))
    for text in ("Where batching cannot pay", "edbatch / loop", "all types different", "one by one", "train"):
        assert text in console.file.getvalue()


def test_wrong_results_are_not_timed(monkeypatch):
    wrong = unfavourable.Case(unfavourable.Of(lambda self, x: x * torch.rand(1)), (list(torch.ones(2, 3)),))
    monkeypatch.setattr(unfavourable, "_cases", lambda rng: {"wrong": lambda: wrong})
    monkeypatch.setattr(unfavourable, "CASES", ("wrong",))
    with pytest.raises(EdbatchError, match="differ"):
        unfavourable.run(unfavourable.Settings(rounds=3))


def test_what_is_refused():
    with pytest.raises(BenchError, match="there is no case 'easy'; choose some of one example, one op, "):
        unfavourable.Settings(("easy",)).check()
