"""Modules that a user's own `__eq__` calls equal are not the same."""

import copy

import pytest
import torch
from torch import nn

import edbatch
from edbatch.recording.calls.fast_cells import RECORDS_IN_C, KnownCalls, ModuleCall, Numbers


class Equal(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale, self.weight = scale, nn.Parameter(torch.full((3,), scale))

    def forward(self, x):
        return x * self.weight + self.scale

    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1


class Unhashable(Equal):
    __hash__ = None


class EqualLinear(nn.Linear):
    def __eq__(self, other):
        return isinstance(other, EqualLinear)

    def __hash__(self):
        return 1


def two(make):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = make(2.0), make(5.0)

        def forward(self, x):
            return self.b(self.a(x)), self.a(self.b(x))

    return Two()


KINDS = {
    "no cells": Equal,
    "cells": lambda scale: edbatch.cell(Equal(scale)),
    "cells in a cell": lambda scale: edbatch.cell(nn.Sequential(Equal(scale), Equal(scale + 1))),
    "unhashable": Unhashable,
    "unhashable cells": lambda scale: edbatch.cell(Unhashable(scale)),
    "of a class of torch's": lambda scale: edbatch.cell(EqualLinear(3, 3)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [None, lambda x: 1])
def test_equal_modules_are_not_taken_for_one_another(kind, key):
    model, x = two(KINDS[kind]), torch.randn(4, 3)
    if "unhashable" not in kind:
        untouched = copy.deepcopy(model)
    batched = edbatch.batch(model, key=key)
    for _ in range(2):
        expected = [model(v) for v in x] if "unhashable" in kind else [untouched(v) for v in x]
        for found, *one in zip(batched(x), *expected, strict=True):
            torch.testing.assert_close(found, torch.stack(one))
    weight = model.b[1].weight if isinstance(model.b, nn.Sequential) else model.b.weight
    results = batched(x)[0].sum(), batched.one_by_one(x)[0].sum()
    torch.testing.assert_close(*[torch.autograd.grad(result, weight) for result in results])


def test_equal_modules_as_arguments_of_marked_functions():
    a, b = Equal(2.0), Equal(5.0)
    apply = edbatch.cell(lambda module, x: module(x), static="module")
    x = torch.randn(4, 3)
    found = edbatch.batch(lambda v: apply(b, apply(a, v)))(x)
    torch.testing.assert_close(found, torch.stack([b(a(v)) for v in x]))


@pytest.mark.skipif(not RECORDS_IN_C, reason="there was no C compiler at installation")
def test_objects_made_by_new_alone_do_not_crash():
    known = KnownCalls.__new__(KnownCalls)
    known.learn((nn.Linear(2, 2), int), None, 0, None)
    known.pass_by(nn.Linear(2, 2))
    known.forget()
    with pytest.raises(TypeError):
        ModuleCall.__new__(ModuleCall)
    numbers = Numbers.__new__(Numbers)
    numbers.append(3)
    assert len(numbers) == 1
