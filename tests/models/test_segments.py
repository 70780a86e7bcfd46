"""Lattices and DAGs use segment reductions: joins of any number of arcs are of one type and run together."""

from __future__ import annotations

import pytest
import torch
from model_cases import CASE_OF

import edbatch
from edbatch.bench.kernels.listed_sums import ListedLatticeLSTM, ListedRandomDag

LISTED = {"lattice-lstm": ListedLatticeLSTM, "random-dag": ListedRandomDag}


def pair_of(name: str) -> tuple[edbatch.Batched, edbatch.Batched]:
    """The model and, with the same weights, the one that joins arcs by a cell that takes a list."""
    model, listed = CASE_OF[name].make(), CASE_OF[name].make()
    listed.__class__ = LISTED[name]
    return edbatch.batch(model, stack="cat"), edbatch.batch(listed, stack="cat")


def numbers_of_arcs(examples) -> set[int]:
    return {len(arcs) for example in examples for arcs in example.arcs if arcs}


@pytest.mark.parametrize("name", LISTED)
def test_types_do_not_grow_with_the_number_of_arcs(name):
    model, listed = pair_of(name)
    counts = []
    for size in (2, 4, 8):
        examples = CASE_OF[name].examples(8, size)
        ours, theirs = (len(set(edbatch.record(m, examples).type_names)) for m in (model, listed))
        joined = numbers_of_arcs(examples) - ({1} if name == "lattice-lstm" else set())  # a sum of one is no node
        assert ours == CASE_OF[name].num_types
        assert theirs == 6 + len(joined)  # two kinds of arcs and what runs ahead of them, the loss, the sum of losses
        counts.append(theirs)
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("policy", ["depth", "agenda", "bound-greedy", edbatch.policies.BoundGreedy(beam=4)], ids=str)
@pytest.mark.parametrize("name", LISTED)
def test_fewer_batches(name, policy):
    examples = CASE_OF[name].examples(8, 8)
    ours, theirs = (edbatch.schedule(edbatch.record(m, examples), policy).num_batches for m in pair_of(name))
    assert ours < theirs


@pytest.mark.parametrize("name", LISTED)
def test_the_same_results(name):
    model, listed = pair_of(name)
    examples = CASE_OF[name].examples()
    for ours, theirs in zip(model(examples), listed(examples), strict=True):
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-12)
