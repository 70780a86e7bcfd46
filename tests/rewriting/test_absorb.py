"""Absorbed sums: fewer launches, the same values and gradients, and nothing where it does not pay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import edbatch
from edbatch.layout.layout import Slot
from edbatch.rewriting import absorb
from edbatch.rewriting.rewrite import rewrite

X = torch.randn(4, 3, dtype=torch.float64)
STEP, OTHER = edbatch.cell(nn.Linear(3, 3).double()), edbatch.cell(nn.Bilinear(3, 3, 3).double())


def types_of(function, *columns):
    """The types of the rewritten recording, by the beginning of their names."""
    recorded, _ = rewrite(*edbatch.batch(function, stack=False).pipeline.record_examples(columns, {}))
    recorded.graph.check()
    return {t.name.split("(")[0].split(" ")[0]: t for t in recorded.node_types}


def joined(how):
    """Steps whose states are joined and stepped again."""

    def function(x, count):
        for _ in range(3):
            x = how([STEP(x * i) for i in range(1, count + 1)])
        return STEP(x).sum()

    return function


@pytest.mark.parametrize(("how", "slot"), [(sum, Slot.SUM), (lambda xs: torch.stack(xs).mean(0), Slot.MEAN)])
def test_readers_list_the_terms(how, slot):
    function = joined(how)
    edbatch.check(function, X, [1, 2, 3, 4])
    types = types_of(function, X, [1, 2, 3, 4])
    assert not {"sum", "mean"} & types.keys()
    assert [s for t in types.values() for s in t.slots].count(slot) == 2  # the product and the last step


def test_what_else_reads_a_sum_keeps_it():
    def result(x):
        total = STEP(x) + x
        return total, STEP(total)

    def stacked(x):
        total = STEP(x) + x
        return torch.stack([total, x]).amax(0), STEP(STEP(total))

    def chain(x):  # each sum is read by a step and by the next sum: no launch would be saved
        for _ in range(4):
            x = x + STEP(x)
        return STEP(x).sum()

    for function in (result, stacked, chain):
        edbatch.check(function, X)
        assert "sum" in types_of(function, X)


def test_a_sum_of_one_term_and_of_one_value_twice():
    def function(x, other):
        single = torch.stack([STEP(x)]).sum(0)
        twice = other + other
        return OTHER(single, twice), STEP(torch.stack([x, x, other]).mean(0))

    edbatch.check(function, X, X * 2)


def test_no_gradient_passes_a_sum_made_without():
    def function(x):
        y = STEP(x)
        with torch.no_grad():
            total = y + x
        return STEP(total).sum()

    edbatch.check(function, X)
    assert "sum" in types_of(function, X)
    with torch.no_grad():
        assert "sum" not in types_of(function, X)


def test_a_reader_of_sums_and_of_means_absorbs_one_of_them():
    def function(x):
        y = STEP(x)
        return STEP(y + x), STEP(torch.stack([y, x]).mean(0)), STEP(y)

    edbatch.check(function, X)
    types = types_of(function, X)
    assert len({"sum", "mean"} & types.keys()) == 1


def test_many_readers_of_many_terms_do_not_absorb(monkeypatch):
    """Rows summed again by every reader cost more than a launch, once there are enough of them."""

    def function(x):
        total = sum(STEP(x * i) for i in range(8))
        return sum((STEP(total * i) * i).sum() for i in range(8))

    assert "sum of values f64[3]" not in edbatch.record(function, X).type_names
    monkeypatch.setattr(absorb, "LAUNCH_BYTES", absorb.ROW_BYTES)
    assert "sum of values f64[3]" in edbatch.record(function, X).type_names


def test_sums_do_not_explode():
    def fibonacci(x):
        a, b = x, x * 2
        for _ in range(40):
            a, b = b, a + b
        return torch.tanh(b * 1e-9)

    recorded, results = edbatch.batch(fibonacci).pipeline.record_examples((X,), {})
    assert len(rewrite(recorded, results)[0].args) <= len(recorded.args)


def test_nothing_is_touched_without_sums():
    recorded, results = edbatch.batch(lambda x: STEP(STEP(x))).pipeline.record_examples((X,), {})
    after, same = rewrite(recorded, results)
    assert after is recorded
    assert same is results


def test_the_first_node_of_every_example_is_known():
    recorded, _ = rewrite(*edbatch.batch(joined(sum)).pipeline.record_examples((X, [1, 2, 3, 4]), {}))
    one = [rewrite(*edbatch.batch(joined(sum)).pipeline.record_examples((X[:1], [n]), {}))[0] for n in (1, 2, 3, 4)]
    sizes = [len(r.types) for r in one]
    assert recorded.starts.tolist() == np.cumsum([0, *sizes[:-1]]).tolist()


@st.composite
def programs(draw):
    """A list of (what, values): each makes a value out of earlier ones, value 0 being the example's own."""
    program = []
    for i in range(draw(st.integers(2, 12))):
        what = draw(st.sampled_from(["step", "other", "sum", "mean", "stacked sum", "scale", "no_grad sum"]))
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
        else:
            with torch.no_grad():
                value = sum(terms)
        values.append(torch.tanh(value) if what == "other" else value)
    return [values[i] for i in program[1]] + [torch.tanh(values[-1]).sum()]


RUN = edbatch.batch(run, stack=False, policy="bound-greedy")  # keeps its kernels from example to example


@given(st.lists(programs(), min_size=1, max_size=3), st.sampled_from([0, 1 << 60]))
@settings(max_examples=60)
def test_random_programs(given_programs, launch_bytes):
    before, absorb.LAUNCH_BYTES = absorb.LAUNCH_BYTES, launch_bytes
    try:
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
    finally:
        absorb.LAUNCH_BYTES = before
