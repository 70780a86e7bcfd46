"""Calls on plain tensors alone: they run at once, in C after the first time, unless something may notice them."""

import pytest
import torch
from torch import nn

import edbatch
from edbatch.errors import InPlaceError
from edbatch.recording.calls.fast_cells import RECORDS_IN_C
from edbatch.recording.recorder import Recorder

XS = list(torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


@pytest.mark.skipif(not RECORDS_IN_C, reason="only in C")
def test_functions_of_plain_tensors_take_the_long_way_once(monkeypatch):
    seen, original = [], Recorder.torch_function

    def torch_function(recorder, func, args, kwargs):
        seen.append(getattr(func, "__name__", ""))
        return original(recorder, func, args, kwargs)

    def function(x):
        for _ in range(5):
            index = torch.tensor([0, 2]).unsqueeze(0).to(torch.device("cpu"), torch.int64)
            row = torch.zeros(1, 3, dtype=torch.float64).scatter(1, index, 1.0)
            x = x * torch.cat([row, row], dim=0)[0].clone()
        return x

    monkeypatch.setattr(Recorder, "torch_function", torch_function)
    ours = edbatch.batch(function, stack=False)(XS)
    for name in ("tensor", "unsqueeze", "to", "zeros", "scatter", "cat", "clone"):
        assert seen.count(name) == 1, name
    torch.testing.assert_close(ours, [function(x) for x in XS])


def test_a_function_known_from_plain_tensors_is_recorded_with_values():
    def function(x):
        plain = torch.cat([torch.ones(3, dtype=torch.float64)] * 2)
        return torch.cat([x, x]) * torch.cat([plain[:3], plain[:3]]) + torch.cat((x, plain[:3]))

    torch.testing.assert_close(edbatch.batch(function, stack=False)(XS), [function(x) for x in XS])


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(3, dtype=torch.float64))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        plain = torch.mul(torch.ones(3, dtype=torch.float64), 2)
        return x * torch.mul(self.scale, 2) * torch.mul(self.weight, 3) * torch.mul(plain, self.weight)


@pytest.mark.parametrize("key", [None, id])
def test_a_function_known_from_plain_tensors_still_sees_what_is_shared(key):
    model = Scaled()
    batched = edbatch.batch(model, stack=False, key=key)
    for _ in range(2):
        ours = batched(XS)
        expected = [model(x) for x in XS]
        torch.testing.assert_close(ours, expected)
        (gradient,) = torch.autograd.grad(sum(map(torch.sum, ours)), model.weight)
        torch.testing.assert_close(gradient, torch.autograd.grad(sum(y.sum() for y in expected), model.weight)[0])
        model.scale.add_(1)


def test_tensors_that_stand_for_values_are_noticed():
    def function(x):
        total = torch.zeros(3, dtype=torch.float64)
        before = torch.mul(total, 2)
        total += x
        return torch.mul(total, 2) + before

    torch.testing.assert_close(edbatch.batch(function, stack=False)(XS), [function(x) for x in XS])


def test_writes_by_out_are_noticed():
    scratch = torch.zeros(3, dtype=torch.float64)

    def function(x):
        y = x * scratch
        one = torch.ones(3, dtype=torch.float64)
        torch.add(one, 1)
        torch.add(one, 1, out=scratch)
        return y + scratch

    ours = edbatch.batch(function, stack=False)(XS[:2])
    scratch.zero_()
    torch.testing.assert_close(ours, [function(x) for x in XS[:2]])


def test_what_was_made_may_become_a_parameters_memory():
    model = nn.Linear(3, 3, dtype=torch.float64)

    def function(x):
        made = torch.zeros(3, dtype=torch.float64)
        model.bias.data = made
        y = model(x)
        made.fill_(1.0)
        return y

    with pytest.raises(InPlaceError, match="written in place after it was used"):
        edbatch.batch(function)(XS[:1])
