"""What follows from types alone is found again in the next call, and is never that of other types."""

import gc
import weakref

import pytest
import torch
from torch import nn

import edbatch
import zoo
from edbatch.recording.types import type_set
from edbatch.rewriting.rewrite import rewrite

X = torch.randn(4, 6, dtype=torch.float64)


def recorded(batched, *columns):
    return rewrite(*batched.pipeline.record_examples(columns, {}))[0]


@pytest.mark.parametrize("key", [None, id], ids=["recorded", "known"])
@pytest.mark.parametrize("case", zoo.CASES[:4], ids=lambda case: case.name)
def test_the_next_call_finds_it(case, key):
    model, columns = zoo.make(case)
    batched = edbatch.batch(model, key=key, stack=False)
    batched(*columns)
    first, second = recorded(batched, *columns), recorded(batched, *columns)
    assert first.type_set is second.type_set
    fresh = type_set.TypeSet.of(second.node_types)
    for name in ("kernels", "names", "reasons", "arenas", "slot_arenas", "can_differentiate"):
        assert getattr(fresh, name) == getattr(second.type_set, name), name
    assert (fresh.row_bytes == second.type_set.row_bytes).all()


def test_other_modes_slots_and_outputs_are_other_types():
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0)).double()
    batched = edbatch.batch(model)
    training = recorded(batched, X).type_set
    model.eval()
    assert recorded(batched, X).type_set is not training
    model.train()
    assert recorded(batched, X).type_set is training
    with torch.no_grad():
        without_grad = recorded(batched, X).type_set
    assert training.can_differentiate
    assert not without_grad.can_differentiate


def test_tensors_of_a_call_are_not_kept():
    batched = edbatch.batch(lambda x, *, shared: x * shared)
    shared = torch.ones(6, dtype=torch.float64)
    weak = weakref.ref(shared)
    batched(X, shared=shared)
    known = batched.pipeline._last_types
    batched(X, shared=torch.ones(6, dtype=torch.float64) * 2)
    assert batched.pipeline._last_types is known
    del shared
    gc.collect()
    assert weak() is None


@pytest.mark.filterwarnings("ignore:each of the last:RuntimeWarning")
def test_few_are_kept():
    batched = edbatch.batch(lambda x: x * 2)
    for size in range(1, 3 * type_set.MAX_SETS):
        batched(torch.ones(2, size))
    assert len(batched.pipeline.type_sets._known) <= type_set.MAX_SETS
    kept = type_set.TypeSet.of(())
    for i in range(3 * type_set.MAX_KEPT):
        assert kept.keep(i, lambda i=i: [i]) == [i]
        assert kept.keep(i, lambda: [None]) == [i]
    assert len(kept._kept) <= type_set.MAX_KEPT


def test_requires_grad_is_read_afresh():
    """Which gradients are needed is kept with the types, but not whether tensors require them."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh()).double()
    batched = edbatch.batch(model)
    for wanted in (True, False, True):
        model[0].bias.requires_grad_(wanted)
        model.zero_grad(set_to_none=True)
        batched(X).sum().backward()
        assert (model[0].bias.grad is not None) == wanted
        assert model[0].weight.grad is not None
