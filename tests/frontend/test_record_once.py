"""`edbatch.batch(fn, key=…)`: a known example is not recorded again, and nobody can tell from graphs, values, gradients."""

import copy
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import edbatch
import zoo
from edbatch.errors import BatchError, LeakedValueError, WrongKeyError
from edbatch.frontend import known_examples
from edbatch.workloads import WORKLOADS


class Counting:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


def report(batched):
    return batched.pipeline.known.report


def assert_same_recordings(plain, known, columns, **keywords):
    (a, results_a), (b, results_b) = (x.pipeline.record(columns, keywords) for x in (plain, known))
    for name in ("types", "args", "starts"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert [t.name for t in a.node_types] == [t.name for t in b.node_types]
    for t, u in zip(a.node_types, b.node_types, strict=True):
        assert (t.slots, t.slot_specs, t.per_row) == (u.slots, u.slot_specs, u.per_row)
        assert all(x is y or torch.equal(x, y) for x, y in zip(t.shared, u.shared, strict=True))
    assert a.outside_specs == b.outside_specs
    assert all(torch.equal(x, y) for x, y in zip(a.outside, b.outside, strict=True))
    assert len(results_a.groups) == len(results_b.groups)
    for g, h in zip(results_a.groups, results_b.groups, strict=True):
        assert (g.leaf, g.spec, g.examples, g.lengths, g.is_ragged) == (
            h.leaf,
            h.spec,
            h.examples,
            h.lengths,
            h.is_ragged,
        )
        assert np.array_equal(g.refs, h.refs)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def gradients(results, model):
    leaves = [r for r in pytree.tree_leaves(results) if isinstance(r, torch.Tensor) and r.requires_grad]
    return torch.autograd.grad(sum(r.sum() for r in leaves), trained(model), allow_unused=True)


def assert_same_values(ours, theirs):
    for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def two_epochs(model, columns, stack, keys, reusable=True):
    """Two epochs in small, shuffled mini-batches, with a step of an optimizer after each."""
    counting = Counting(model.__call__)
    plain = edbatch.batch(model, policy="agenda", stack=stack)
    known = edbatch.batch(model, policy="agenda", stack=stack, key=lambda *example: keys(example))
    known.pipeline.function = counting
    number = len(columns[0])
    optimizer = torch.optim.SGD(trained(model), lr=0.01)
    for epoch in range(3):
        order = torch.randperm(number).tolist()
        before = counting.calls
        for chosen in (order[: number // 2], order[number // 2 :]):
            part = tuple([c[i] for i in chosen] for c in columns)
            ours, theirs = known(*part), plain(*part)
            assert_same_values(ours, theirs)
            optimizer.zero_grad()
            for p, a, b in zip(trained(model), gradients(ours, model), gradients(theirs, model), strict=True):
                assert_same_values([a], [b])
                p.grad = b
            assert_same_recordings(plain, known, part)
            optimizer.step()
        assert counting.calls - before == (number if epoch == 0 else 0) or not reusable


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda c: c.name)
def test_zoo(case):
    model, columns = zoo.make(case)
    numbers = {id(x): i for i, x in enumerate(columns[-1])}
    two_epochs(model, columns, case.stack, lambda example: numbers[id(example[-1])], case.name != "single ops")


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads(name):
    corpus = WORKLOADS[name].corpus(None, 0, 6)
    examples = corpus.train[:6]
    two_epochs(WORKLOADS[name].make(corpus, hidden=4), (examples,), "cat", lambda example: id(example[0]))
