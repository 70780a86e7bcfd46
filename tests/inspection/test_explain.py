"""`explain()` stays readable, and says it when sizes keep nodes apart."""

from dataclasses import replace

import torch
from torch import nn

import edbatch
from edbatch.inspection import explain


def test_many_types_that_differ_in_sizes():
    def function(x, n):
        return torch.sort(torch.cat([x] * n)).values[0]

    batched = edbatch.batch(function)
    batched(torch.ones(7, 3), range(1, 8))
    assert "only in sizes" not in batched.explain()
    batched(torch.ones(9, 3), range(1, 10))
    assert "9 types like" in batched.explain()
    assert "only in sizes" in batched.explain()


def test_rows_of_the_table_are_bounded(monkeypatch):
    monkeypatch.setattr(explain, "MAX_ROWS", 3)
    modules = [nn.Linear(3, 3) for _ in range(6)]
    lstm = nn.LSTM(3, 3)

    def function(x):
        for module in modules:
            x = module(x)
        return lstm(x.view(1, 3))[0]

    batched = edbatch.batch(function)
    batched(torch.ones(2, 3))
    said = batched.explain()
    assert f"and others, {batched.stats.num_types} in all" in said
    assert "ran one by one" in said  # a reason is never left out
    assert said.count("  Linear") <= 3


def test_how_cells_run_and_why():
    lstm, linear = nn.LSTMCell(3, 3), nn.Linear(3, 3)

    def function(x):
        return torch.tanh(linear(lstm(x)[0]))

    for dtype, why in ((torch.float64, "of compile=False"), (torch.bfloat16, "it computes in torch.bfloat16")):
        lstm.to(dtype), linear.to(dtype)
        batched = edbatch.batch(function, compile=dtype is torch.bfloat16)
        batched.switches = replace(batched.switches, compile=dtype is torch.bfloat16)
        batched(torch.ones(2, 3, dtype=dtype))
        said = batched.explain()
        assert f"  2 cells as torch ops one by one, because {why}: linear(" in said
        assert f"  1 cell as torch ops, alike ones as one call, because {why}: lstm(" in said


def test_fused_cells_are_named(compiled):
    batched = edbatch.batch(nn.Linear(3, 3))
    batched(torch.ones(2, 3))
    assert "  1 cell as fused kernels: Linear(" in batched.explain()
