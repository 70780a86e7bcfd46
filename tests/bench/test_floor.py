"""`edbatch bench floor`: its products are the ones that run, and what it reports is complete."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from contextlib import redirect_stdout

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.profiler import ProfilerActivity, profile

import edbatch
from edbatch.bench import floor, scale, workloads
from edbatch.bench.kernels import launch_cost
from edbatch.bench.kernels.products_alone import Launched, Product, ProductsAlone, launched, left_out
from edbatch.bench.measure import BenchError
from edbatch.cells.torch_ops import across
from edbatch.switches import Switches
from edbatch.workloads import find

f32 = torch.float32


@pytest.fixture(autouse=True)
def generated_data(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)


class LSTM(nn.Module):
    """A chain of an LSTM cell of hidden size 3 over inputs of size 2."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(2, 3)
        self.begin = nn.Parameter(torch.zeros(3))

    def forward(self, steps):
        h = c = self.begin
        for x in steps:
            h, c = self.cell(x, (h, c))
        return h.sum(), h


def products(model, examples, mode):
    race = workloads.WorkloadRace(model, examples, key=id)
    found = launched(floor.execute(race, mode))
    return Counter(item.product for item in found)


def test_products_of_an_lstm():
    """Two chains of 2 and 3 steps: the inputs of all steps run ahead, then the states in batches of 2, 2 and 1."""
    examples = [list(torch.randn(steps, 2)) for steps in (2, 3)]
    forward = Counter({
        Product(1, 5, 2, 12, f32, (False, True)): 1,
        Product(1, 2, 3, 12, f32, (False, True)): 2,
        Product(1, 1, 3, 12, f32, (False, True)): 1,
    })  # fmt: skip
    assert products(LSTM(), examples, "infer") == forward
    backward = Counter({
        Product(1, 1, 12, 3, f32): 1,
        Product(1, 2, 12, 3, f32): 2,
        Product(1, 12, 5, 3, f32, (True, False)): 1,  # of the weights, over all rows at once
        Product(1, 12, 5, 2, f32, (True, False)): 1,
    })  # fmt: skip
    assert products(LSTM(), examples, "train") == forward + backward


def profiled(function):
    """The shapes of the products that torch computes."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as record:
        function()
    skip = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1, "aten::addbmm": 1}
    calls = [(event.name, event.input_shapes) for event in record.events() if event.name in skip]
    shapes = [(tuple(s[skip[name]]), tuple(s[skip[name] + 1])) for name, s in calls]
    return Counter((math.prod(a[:-2]), *a[-2:], b[-1]) for a, b in shapes)


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("name", ["tree-lstm", "lattice-lstm", "bilstm-tagger", "mv-rnn", "attention-nmt"])
def test_products_are_those_that_run(name, mode, monkeypatch):
    monkeypatch.setattr(across, "TOGETHER", 1000)  # sums of products are counted as one
    workload = find(name)
    corpus = workload.load(limit=3)
    race = workloads.WorkloadRace(workload.make(corpus, hidden=4), corpus.train, key=id)
    race.batched.pipeline.switches = Switches(compile=False, batch_inside=False)  # else products are stacked
    getattr(race, mode)()
    execution = floor.execute(race, mode)
    found = launched(execution)
    assert left_out(execution) == []
    assert Counter(tuple(item.product[:4]) for item in found) == profiled(getattr(race, mode))
    assert profiled(ProductsAlone(found)) == profiled(getattr(race, mode))


class Deciding(nn.Module):
    """Its cell decides by a value, so that it runs one by one, as it is written."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.step = edbatch.cell(lambda x: x @ x if x.sum() > 0 else -x)

    def forward(self, x):
        return self.linear(self.step(x)).sum(), x


def test_what_runs_as_written_is_left_out_and_named():
    race = workloads.WorkloadRace(Deciding(), list(torch.ones(3, 2, 2)))
    execution = floor.execute(race, "infer")
    assert len(left_out(execution)) == 1
    assert [item.product for item in launched(execution)] == [Product(1, 6, 2, 2, f32, (False, True))]


def test_products_write_into_memory_that_is_there():
    alone = ProductsAlone([
        Launched((0, "forward", 1), Product(1, 4, 2, 3, f32, (False, True))),
        Launched((0, "forward", 1), Product(1, 2, 2, 3, f32, (False, True))),
        Launched((0, "finish", 2), Product(1, 3, 6, 2, f32, (True, False))),
        Launched((1, "forward", 1), Product(5, 1, 2, 2, torch.float64)),
    ])  # fmt: skip
    alone()
    results = [result for _, _, _, result in alone.calls]
    assert [tuple(r.shape) for r in results] == [(4, 3), (2, 3), (3, 2), (5, 1, 2)]
    for _, left, right, result in alone.calls[1:]:
        torch.testing.assert_close(result, left @ right)
    assert results[0].data_ptr() == results[1].data_ptr() != results[2].data_ptr()
    assert alone.calls[0][2].data_ptr() == alone.calls[1][2].data_ptr(), "one weight"


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_floor(mode, monkeypatch):
    monkeypatch.setattr(launch_cost, "STEPS", 5)
    environments = []

    def in_this_process(code, environment):
        """A fresh one would compile for a minute."""
        environments.append(environment)
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, {})
        return float(printed.getvalue())

    monkeypatch.setattr(scale, "_in_fresh_process", in_this_process)
    settings = floor.Settings(("tree-lstm", "mv-rnn"), 3, 8, mode=mode, rounds=2, threads=1, compile_time=True)
    result = json.loads(json.dumps(floor.run(settings)))
    assert list(result["workloads"]) == ["tree-lstm", "mv-rnn"]
    assert [row["hidden"] for row in result["workloads"].values()] == [8, 4]
    for row in result["workloads"].values():
        contenders = [floor.PRODUCTS, floor.RUN, floor.KNOWN, floor.RECORDING]
        assert list(row["ms"]) == contenders
        assert list(row["ratio_to_products"]) == contenders[1:]
        assert all(spread["rounds"] == 2 for spread in (*row["ms"].values(), *row["ratio_to_products"].values()))
        assert row["ms"][floor.RUN]["median"] <= row["ms"][floor.KNOWN]["median"], "it is a part of it"
        assert ("backward" in row["stages_ms"]) == (mode == "train")
        assert 0 < row["num_batches"] < row["num_nodes"]
        assert row["types_without_known_products"] == []
    launch = result["launch"]
    assert launch["num_batches"] >= 5
    assert {spread["rounds"] for spread in launch["microseconds_per_launch"].values()} == {2}
    first = result["first_call_seconds"]
    assert first["nothing compiled"]["rounds"] == first["from disk"]["rounds"] == 3
    assert environments[::2] == environments[1::2], "the second process of a pair finds what the first has compiled"
    assert len({e["EDBATCH_CACHE"] for e in environments}) == 3
    console = Console(width=150, file=io.StringIO())
    console.print(*floor.tables(result))
    for text in (floor.RUN, "µs per launch", "nothing compiled", "mv-rnn"):
        assert text in console.file.getvalue()


def test_what_is_refused():
    with pytest.raises(BenchError, match="2 rounds are too few for a median to trust; ask for 3 or more"):
        floor.Settings(rounds=2).check()
    with pytest.raises(BenchError, match=r"there are only 600 examples in .*; ask for a smaller batch"):
        floor.run(floor.Settings(("tree-lstm",), batch_size=601))
