"""The benchmarks of workloads with tiny settings: complete, and never of wrong results."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console

from edbatch.bench import workloads
from edbatch.bench.kernels import segments
from edbatch.bench.measure import BenchError
from edbatch.workloads import find


@pytest.fixture(autouse=True)
def generated_data(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)


def printed(tables) -> str:
    console = Console(width=220, file=io.StringIO())
    console.print(*tables)
    return console.file.getvalue()


def test_workloads():
    settings = workloads.Settings(("lattice-gru", "mv-rnn"), 3, 8, rounds=2, one_by_one_rounds=1, threads=1)
    result = json.loads(json.dumps(workloads.run(settings)))
    assert list(result["workloads"]) == ["lattice-gru", "mv-rnn"]
    assert [r["hidden"] for r in result["workloads"].values()] == [8, 4]
    for found in result["workloads"].values():
        assert found["num_batches"].keys() == set(workloads.POLICIES)
        assert found["lower_bound"] <= min(found["num_batches"].values())
        assert found["num_batches"]["learned"] <= found["num_batches"]["bound-greedy"]
        for mode in workloads.MODES:
            assert found[mode]["ms"]["edbatch"]["rounds"] == 2
            assert found[mode]["ms"]["one by one"]["rounds"] == found[mode]["speedup"]["rounds"] == 1
            assert ("backward" in found[mode]["stages_ms"]) == (mode == "train")
    text, lines = printed(workloads.tables(result)), workloads.markdown(result).splitlines()
    assert all(policy in text for policy in workloads.POLICIES)
    assert [line.split("|")[1].strip() for line in lines if line.startswith("|")].count("lattice-gru") == 3


def test_wrong_results_are_not_timed():
    workload = find("lstm-1d")
    corpus = workload.load(limit=2)
    race = workloads.WorkloadRace(workload.make(corpus, hidden=4), corpus.train)
    race.check("lstm-1d")
    with torch.no_grad():
        race.one_by_one.model.out.linear.bias[0] += 1
    with pytest.raises(BenchError, match="results differ from one by one: losses of lstm-1d"):
        race.check("lstm-1d")


def test_what_is_refused():
    with pytest.raises(BenchError, match="9 rounds are too few for a median to trust; ask for 10 or more"):
        workloads.Settings(rounds=9).check()
    with pytest.raises(BenchError, match="one by one can run in 1 to 10 of the rounds, not in 11"):
        workloads.Settings(rounds=10, one_by_one_rounds=11).check()
    with pytest.raises(BenchError, match=r"there are only 600 examples in .*; ask for a smaller batch"):
        workloads.run(workloads.Settings(("tree-lstm",), batch_size=601))


def test_segments():
    result = json.loads(json.dumps(segments.run(segments.Settings(4, 8, rounds=2, threads=1))))
    for found in result["workloads"].values():
        assert found["segments"]["num_types"] < found["lists"]["num_types"]
        assert found["segments"]["num_batches"]["learned"] <= found["lists"]["num_batches"]["learned"]
        assert found["lists"]["train_ms"]["rounds"] == found["speedup"]["rounds"] == 2
    assert "random-dag" in printed(segments.tables(result))
