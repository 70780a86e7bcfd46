"""In float32 fused kernels are as accurate as torch: errors against float64 are at most twice torch's own."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from test_equal_workloads import gradients, shortened

import edbatch
from edbatch.workloads import WORKLOADS

DIM, NUM_EXAMPLES, NUM_MINI_BATCHES = 12, 4, 4


def in_float64(example):
    if not hasattr(example, "features"):
        return example
    return dataclasses.replace(example, features=tuple(x.double() for x in example.features))


def losses_and_gradients(model, examples, function):
    (losses, _), _ = function(examples)
    return [losses.detach(), *gradients(losses, model)]


@pytest.mark.parametrize("name", WORKLOADS)
def test_errors_are_at_most_twice_torchs_own(compiled, name):
    """Of the losses and of the gradient of every parameter: root mean squares over a few mini-batches."""
    workload = WORKLOADS[name]
    corpus = workload.corpus(None, 0, NUM_EXAMPLES * NUM_MINI_BATCHES)
    model = workload.make(corpus, hidden=DIM)
    exact_model = copy.deepcopy(model).double()
    batched, exact_batched = (edbatch.batch(m, stack="cat") for m in (model, exact_model))
    names = ["losses", *(n for n, _ in model.named_parameters())]
    squares = {what: [0.0, 0.0, 0.0] for what in names}  # of the reference, our errors, torch's errors
    for first in range(NUM_MINI_BATCHES):
        examples = [shortened(example) for example in corpus.train[first::NUM_MINI_BATCHES]]
        exact = losses_and_gradients(exact_model, list(map(in_float64, examples)), exact_batched.one_by_one)
        ours, theirs = (losses_and_gradients(model, examples, run) for run in (batched, batched.one_by_one))
        assert ours[0].dtype == torch.float32
        for what, *values in zip(names, exact, ours, theirs, strict=True):
            if values[0] is None:
                assert values == [None] * 3
                continue
            parts = [values[0], *(found.double() - values[0] for found in values[1:])]
            squares[what] = [a + float(part.square().sum()) for a, part in zip(squares[what], parts, strict=True)]
    roots = {
        what: (math.sqrt(ours / all_), math.sqrt(theirs / all_))
        for what, (all_, ours, theirs) in squares.items()
        if all_
    }
    assert {what: (ours, theirs) for what, (ours, theirs) in roots.items() if ours > 2 * theirs + 1e-7} == {}


@pytest.mark.parametrize("length", [3, 30, 3000])
def test_long_sums(compilation, length):
    """Added up one after the other, thousands of float32 numbers would lose two digits."""
    root = edbatch.cell(lambda x: torch.sqrt(x))
    batched = edbatch.batch(lambda numbers: torch.stack([root(x) for x in numbers]).sum(0))
    columns = torch.rand(5, length).tolist()
    exact = torch.tensor(columns).sqrt().double().sum(1)
    ours, theirs = ((run(columns) - exact).norm() / exact.norm() for run in (batched, batched.one_by_one))
    assert ours <= 2 * theirs + 1e-7


@pytest.mark.parametrize("pool", [
    lambda rows: rows.sum(0), lambda rows: rows.mean(0), lambda rows: torch.softmax(rows, 0) @ rows,
    lambda rows: rows.logsumexp(0), lambda rows: torch.log_softmax(rows, 0)[0],
], ids=["sum", "mean", "softmax", "logsumexp", "log-softmax"])  # fmt: skip
def test_long_rows_beside_short_ones(compilation, pool):
    root = edbatch.cell(lambda x: torch.sqrt(x))
    batched = edbatch.batch(lambda numbers: pool(torch.stack([root(x) for x in numbers])))
    columns = [torch.rand(3000).tolist() for _ in range(8)] + [[0.5]] * 2500
    exact = torch.stack([pool(torch.tensor(numbers).sqrt().double()) for numbers in columns[:8]])
    theirs = torch.stack([pool(torch.tensor(numbers).sqrt()) for numbers in columns[:8]])
    ours = batched(columns)[:8]
    assert (ours - exact).norm() / exact.norm() <= 2 * (theirs - exact).norm() / exact.norm() + 1e-7
