"""Gradients that are stored instead of added: the same sums, on memory that holds no zeros before."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import edbatch
import zoo
from edbatch.planning.gradient_rows import ADD, STORE, stored_rows
from edbatch.runtime import backward
from edbatch.runtime.arena import Lease
from test_equal import assert_equal, gradients, tensors


@pytest.fixture
def ways(monkeypatch):
    """What every call of a test did, on memory full of NaN."""
    found, take, written_once = [], Lease.take, backward._written_once

    def poisoned(lease, spec, rows):
        taken = take(lease, spec, rows)
        return taken.fill_(float("nan")) if taken.is_floating_point() else taken

    def noted(*args):
        found.append(written_once(*args))
        return found[-1]

    monkeypatch.setattr(backward, "LARGE", 0)
    monkeypatch.setattr(Lease, "take", poisoned)
    monkeypatch.setattr(backward, "_written_once", noted)
    return found


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda c: c.name)
def test_gradients_equal_one_by_one_whatever_lies_in_memory(case, compiled, ways):
    model, columns = zoo.make(case, seed=0)
    batched = edbatch.batch(model, stack=case.stack)
    ours, theirs = tensors(batched(*columns)), tensors(batched.one_by_one(*columns))
    assert_equal(gradients(ours, model), gradients(theirs, model), 1e-9)


def test_in_a_chain_all_but_the_ends_are_stored(compiled, ways):
    """c is read by the next step alone; h is, too, but for the last one, which is the result."""
    cell = torch.nn.LSTMCell(4, 4)

    def chain(x, steps):
        h = c = torch.zeros(4)
        for _ in range(steps):
            h, c = cell(x, (h, c))
        return h

    batched = edbatch.batch(chain)
    batched(torch.ones(3, 4), [5, 5, 5]).sum().backward()
    ((ways, _),) = ways
    assert (ways == STORE).sum() == 2 * 4  # h and c of the four steps that another one follows


def test_what_is_read_twice_is_added(compiled, ways):
    linear = torch.nn.Linear(4, 4)
    combine = edbatch.cell(lambda a, b: torch.tanh(a * b))
    edbatch.batch(lambda x: combine(linear(x), linear(x)))(torch.ones(3, 4)).sum().backward()
    assert (ways.pop()[0] == STORE).any()

    def square(x):
        y = linear(x)
        return combine(y, y)

    edbatch.batch(square)(torch.ones(3, 4)).sum().backward()
    assert not (ways.pop()[0] == STORE).any()


@st.composite
def reads(draw):
    """Batches of two types with up to three operands each, that read rows of one arena."""
    types = draw(st.lists(st.integers(0, 1), min_size=1, max_size=5))
    rows = [[draw(st.lists(st.integers(0, 11), max_size=4)) for _ in range(3)] for _ in types]
    flags = [[draw(st.booleans()) for _ in range(3)] for _ in range(2)]
    left_alone = [[draw(st.booleans()) for _ in range(3)] for _ in range(2)]
    return types, rows, flags, left_alone, draw(st.lists(st.integers(0, 11), max_size=3))


@given(reads())
def test_rows_are_stored_that_one_operand_alone_reads(case):
    types, rows, flags, left_alone, results = case
    index = np.array([row for batch in rows for slot in batch for row in slot], np.int64)
    sizes = np.array([[len(slot) for slot in batch] for batch in rows], np.int64)
    begins = (np.cumsum(sizes) - sizes.ravel()).reshape(sizes.shape)
    first = np.where(left_alone, -1, 0).astype(np.int64)
    ways, adds = stored_rows(
        index, begins, sizes, np.array(types, np.int32), first, np.array(flags), np.array(results, np.int64), 12
    )
    terms = [
        (b, s, row)
        for b, batch in enumerate(rows)
        for s, slot in enumerate(batch)
        for row in slot
        if not left_alone[types[b]][s]
    ]
    count = {row: sum(r == row for *_, r in terms) + 2 * results.count(row) for row in range(12)}
    stored = {
        (b, s)
        for b, t in enumerate(types)
        for s in range(3)
        if flags[t][s] and not left_alone[t][s] and all(count[r] == 1 for r in rows[b][s])
    }
    assert {tuple(place) for place in np.argwhere(ways == STORE).tolist()} == stored
    assert set(np.unique(ways)) <= {ADD, STORE}
    assert set(np.flatnonzero(~adds).tolist()) == {row for b, s, row in terms if (b, s) in stored}
