"""How often kernels are launched for real data, sums absorbed: the first 32 examples."""

from __future__ import annotations

import os

import pytest

import edbatch
from edbatch.workloads import find

pytestmark = pytest.mark.skipif(
    not os.environ.get("EDBATCH_DATA"), reason="EDBATCH_DATA does not name the folder of real data"
)


@pytest.mark.parametrize("policy", ["bound-greedy", "learned"])
@pytest.mark.parametrize("name", ["lattice-lstm", "lattice-gru"])
def test_lattices(name: str, policy: str) -> None:
    corpus = find(name).load(limit=32)
    graph = edbatch.record(edbatch.batch(find(name).make(corpus, hidden=128), stack="cat"), corpus.train)
    ahead = sum("ahead" in str(graph.type_names[t]) for t in graph.types)  # a product for each token, not for each arc
    assert graph.num_nodes - ahead == 3910  # arcs, tags, and for each lattice the sum of its losses
    assert ahead == 439 + 499
    assert edbatch.schedule(graph, policy).num_batches <= 155
