"""Gradients that are stored instead of added: the same sums, on memory that holds no zeros before."""

import pytest
import torch

import edbatch
import zoo
from edbatch.layout.gradient_rows import STORE
from edbatch.runtime import backward
from edbatch.runtime.arena import Lease
from test_equal import assert_equal, gradients, tensors


@pytest.fixture
def ways(monkeypatch):
    """What every call of a test did, on memory full of NaN."""
    found, reserve, written_once = [], Lease.reserve, backward._written_once

    def poisoned(lease, spec, rows):
        part = reserve(lease, spec, rows)
        if spec.dtype.is_floating_point:
            part.tensor().fill_(float("nan"))
        return part

    def noted(*args):
        found.append(written_once(*args))
        return found[-1]

    monkeypatch.setattr(backward, "LARGE", 0)
    monkeypatch.setattr(Lease, "reserve", poisoned)
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
