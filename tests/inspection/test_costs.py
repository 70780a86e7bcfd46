"""The largest costs of a call are said first, with lines of the user's code and what to do."""

import re

import pytest
import torch
from torch import nn

import edbatch
from edbatch.recording.calls.fast_cells import RECORDS_IN_C

in_c = pytest.mark.skipif(not RECORDS_IN_C, reason="without a C compiler nobody looks at where calls come from")


def heads(batched):
    said = batched.explain().splitlines()
    assert said[0] == "the largest costs:"
    return said[1 : said.index("")]


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.linear(x)) * x + torch.sigmoid(x)


def chain(step):
    def function(x, n):
        for _ in range(n):
            x = step(x)
        return x

    return function


@in_c
def test_what_records_most_is_named_with_its_line_and_what_to_do():
    batched = edbatch.batch(chain(Step()))
    for _ in range(2):
        batched(torch.ones(8, 4), [20] * 8)
    (line,) = [line for line in heads(batched) if "recording" in line]
    first = Step.forward.__code__.co_firstlineno
    assert f"recording, most of all Step.forward, test_costs.py:{first}, which makes " in line
    assert "in 160 calls: if marked (edbatch.cell), a call is one; with key= known examples" in line
    assert re.match(r"  [\d.]+ of [\d.]+ ms: ", line)


def test_costs_are_at_most_three_and_the_largest_come_first():
    batched = edbatch.batch(chain(edbatch.cell(Step())))
    batched(torch.ones(8, 4), [20] * 8)
    times = [float(line.split()[0]) for line in heads(batched)]
    assert 1 <= len(times) <= 3
    assert times == sorted(times, reverse=True)


@in_c
def test_types_that_differ_in_sizes_are_one_cost_with_its_line():
    def function(x):
        return torch.sort(x.repeat(2)).values.sum()

    batched = edbatch.batch(function)
    for _ in range(3):
        batched([torch.ones(n) for n in range(3, 40)])
    line = next(line for line in heads(batched) if "types like" in line)
    assert f"(test_costs.py:{function.__code__.co_firstlineno + 1})" in line
    assert "they differ in sizes alone, which keeps nodes apart" in line


def test_what_runs_one_by_one_is_a_cost_with_the_reason():
    lstm = nn.LSTM(3, 3)
    batched = edbatch.batch(lambda x: lstm(x.view(1, 3))[0])
    for _ in range(3):
        batched(torch.ones(30, 3))
    assert any("one by one, 30 nodes, because " in line for line in heads(batched))


def test_known_examples_are_not_advised_again():
    batched = edbatch.batch(chain(Step()), key=lambda x, n: n)
    for _ in range(3):
        batched(torch.ones(8, 4), list(range(1, 9)))
    assert not any("with key=" in line for line in heads(batched))


def test_the_table_begins_with_what_takes_most_time():
    large, small = edbatch.cell(nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])), nn.Linear(4, 4)
    batched = edbatch.batch(lambda x: small(large(x)))
    batched(torch.ones(8, 4))
    costs = [t.cost for t in sorted(batched.stats.types, key=lambda t: t.name)]
    table = batched.explain().split("mean size")[1].splitlines()[1:]
    assert len(costs) == 2
    assert "large" in table[0] or "cell" in table[0]
