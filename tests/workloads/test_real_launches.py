"""How often kernels are launched for real data: the first 32 examples."""

from __future__ import annotations

import os

import pytest

import edbatch
from edbatch.workloads import find

pytestmark = pytest.mark.skipif(
    not os.environ.get("EDBATCH_DATA"), reason="EDBATCH_DATA does not name the folder of real data"
)


@pytest.mark.parametrize(("policy", "most_batches"), [("bound-greedy", 260), ("learned", 242)])
@pytest.mark.parametrize(
    ("name", "sums"), [("lattice-lstm", 757 + 760), ("lattice-gru", 760)]
)  # an LSTM has two states
def test_lattices(name: str, sums: int, policy: str, most_batches: int) -> None:
    corpus = find(name).load(limit=32)
    graph = edbatch.record(edbatch.batch(find(name).make(corpus, hidden=128), stack="cat"), corpus.train)
    ahead = sum("ahead" in str(graph.type_names[t]) for t in graph.types)  # a product for each token, not for each arc
    assert graph.num_nodes - ahead - sums == 3910  # arcs, tags, and for each lattice the sum of its losses
    assert sum(graph.type_names[t] == "sum of values f32[128]" for t in graph.types) == sums
    assert ahead == 439 + 499
    assert graph.lower_bound() == 211
    assert edbatch.schedule(graph, policy).num_batches <= most_batches
