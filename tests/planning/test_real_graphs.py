"""The numbers of batches on real data: the first mini-batch of 32, and the sum over the five after it."""

from __future__ import annotations

import os

import pytest

from edbatch.datasets.graphs import mini_batch_graphs
from edbatch.planning.graph import Graph
from edbatch.planning.schedule import schedule

pytestmark = pytest.mark.skipif(
    not os.environ.get("EDBATCH_DATA"), reason="EDBATCH_DATA does not name the folder of real data"
)

POLICIES = ("depth", "agenda", "agenda-remaining", "bound-greedy")


def assert_counts(graphs: list[Graph], expected: dict[str, tuple[int, int]]) -> None:
    counts = {"lower bound": [graph.lower_bound() for graph in graphs]}
    for name in POLICIES:
        schedules = [schedule(graph, name) for graph in graphs]
        for graph, made in zip(graphs, schedules, strict=True):
            made.check(graph)
        counts[name] = [made.num_batches for made in schedules]
    assert {name: (found[0], sum(found[1:])) for name, found in counts.items()} == expected


def test_trees() -> None:
    graphs = mini_batch_graphs("tree-lstm", count=6)
    assert graphs[0].num_nodes == 2112
    assert_counts(
        graphs,
        {
            "lower bound": (19, 111), "depth": (36, 212), "agenda": (36, 212), "agenda-remaining": (29, 167),
            "bound-greedy": (19, 111),
        },
    )  # fmt: skip


def test_lattices_with_sums_as_nodes() -> None:
    graphs = mini_batch_graphs("lattice-lstm", count=6)
    assert graphs[0].num_nodes == 4670
    assert_counts(
        graphs,
        {
            "lower bound": (209, 859), "depth": (585, 2380), "agenda": (480, 1830), "agenda-remaining": (434, 1680),
            "bound-greedy": (255, 1016),
        },
    )  # fmt: skip


def test_lattices_with_sums_absorbed() -> None:
    graphs = mini_batch_graphs("lattice-absorbed", count=6)
    assert graphs[0].num_nodes == 3910
    assert_counts(
        graphs,
        {
            "lower bound": (150, 642), "depth": (312, 1361), "agenda": (207, 891), "agenda-remaining": (243, 1082),
            "bound-greedy": (150, 660),
        },
    )  # fmt: skip
