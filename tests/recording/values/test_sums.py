"""Sums and means that cells read: values and gradients are those of one by one, whatever else reads them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import edbatch

X = torch.randn(4, 3, dtype=torch.float64)
STEP, OTHER = edbatch.cell(nn.Linear(3, 3).double()), edbatch.cell(nn.Bilinear(3, 3, 3).double())


@pytest.mark.parametrize("how", [sum, lambda xs: torch.stack(xs).mean(0)], ids=["sum", "mean"])
def test_joined_states_are_nodes_of_one_type_whatever_their_number(compilation, how):
    """One launch joins the states of all examples."""

    def function(x, count):
        for _ in range(3):
            x = how([STEP(x * i) for i in range(1, count + 1)])
        return STEP(x).sum()

    batched = edbatch.batch(function, policy="bound-greedy")
    edbatch.check(batched, X, [2, 3, 4, 5])
    batched(X, [2, 3, 4, 5])
    (joins,) = [t for t in batched.stats.types if t.name.startswith(("sum of", "mean of"))]
    assert (joins.num_nodes, joins.num_batches) == (12, 3)


def result(x):
    total = STEP(x) + x
    return total, STEP(total)


def stacked(x):
    total = STEP(x) + x
    return torch.stack([total, x]).amax(0), STEP(STEP(total))


def chain(x):
    for _ in range(4):
        x = x + STEP(x)
    return STEP(x).sum()


def both(x):
    y = STEP(x)
    return STEP(y + x), STEP(torch.stack([y, x]).mean(0)), STEP(y)


@pytest.mark.parametrize("function", [result, stacked, chain, both])
def test_several_readers(compilation, function):
    edbatch.check(function, X)


def test_a_sum_of_one_term_and_of_one_value_twice(compilation):
    def function(x, other):
        single = torch.stack([STEP(x)]).sum(0)
        twice = other + other
        return OTHER(single, twice), STEP(torch.stack([x, x, other]).mean(0))

    edbatch.check(function, X, X * 2)


def test_no_gradient_passes_a_sum_made_without(compilation):
    def function(x):
        y = STEP(x)
        with torch.no_grad():
            total = y + x
        return STEP(total).sum()

    edbatch.check(function, X)


@pytest.mark.parametrize("alias", [lambda p: sum([p]), lambda p: 0 + p, lambda p: p], ids=["sum", "0 +", "itself"])
def test_a_sum_and_its_alias_grow_apart(compilation, alias):
    def function(x):
        a, b, c, d, e = (x * i for i in range(1, 6))
        p = a + b
        s = alias(p)
        r = (c + d) + p
        return p, s, r, s + e, p + e, s + r

    edbatch.check(function, X)
    edbatch.check(edbatch.batch(function, key=lambda x: 0), X)


def test_a_sum_of_sums_is_added_in_its_order(compilation):
    def function(x):
        big = x * 0 + 1e16
        return (x + x) + (big + -big), sum([x, x, x]) + sum([big, -big]), x + (big + -big)

    ours, theirs = edbatch.batch(function), [function(x) for x in X]
    for found, wanted in zip(ours(X), zip(*theirs, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(wanted), rtol=0, atol=0)


@st.composite
def programs(draw):
    """A list of (what, values): each makes a value out of earlier ones, value 0 being the example's own."""
    program = []
    for i in range(draw(st.integers(2, 12))):
        kinds = ["step", "other", "sum", "plus", "0 +", "mean", "stacked sum", "scale", "no_grad sum"]
        what = draw(st.sampled_from(kinds))
        values = draw(st.lists(st.integers(0, i), min_size=2, max_size=4))
        program.append((what, values))
    return program, draw(st.lists(st.integers(0, len(program)), min_size=2, max_size=2))


def run(x, program):
    values = [x]
    for what, read in program[0]:
        terms = [values[i] for i in read]
        if what == "step":
            value = STEP(terms[0])
        elif what == "other":
            value = OTHER(terms[0], terms[1])
        elif what == "scale":
            value = terms[0] * 0.5
        elif what == "mean":
            value = torch.stack(terms).mean(0)
        elif what == "stacked sum":
            value = torch.stack(terms[:1] if len(read) % 2 else terms).sum(0)
        elif what == "sum":
            value = sum(terms)
        elif what == "plus":
            value = terms[0] + terms[1]
        elif what == "0 +":
            value = 0 + terms[0]
        else:
            with torch.no_grad():
                value = sum(terms)
        values.append(torch.tanh(value) if what == "other" else value)
    return [values[i] for i in program[1]] + [torch.tanh(values[-1]).sum()]


RUN = edbatch.batch(run, stack=False, policy="bound-greedy")  # keeps its kernels from example to example


@given(st.lists(programs(), min_size=1, max_size=3))
@settings(max_examples=60)
def test_random_programs(given_programs):
    x = X[: len(given_programs)].clone().requires_grad_()
    ours, theirs = RUN(x, given_programs), RUN.one_by_one(x, given_programs)
    parameters = [x, *STEP.parameters(), *OTHER.parameters()]
    gradients = []
    for results in (ours, theirs):
        loss = sum((v * (i + 1)).sum() for i, v in enumerate(v for example in results for v in example))
        # Needs are known per type, so a result may require a gradient for another node's sake: it is zero.
        found = torch.autograd.grad(loss, parameters, allow_unused=True) if loss.requires_grad else [None] * 5
        pairs = zip(found, parameters, strict=True)
        gradients.append([torch.zeros_like(p) if g is None else g for g, p in pairs])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
