"""The numbers of batches on real data: the first mini-batch of 32, and the sum over the five after it."""

from __future__ import annotations

import os

import pytest

from edbatch.datasets.graphs import mini_batch_graphs
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.policies import BoundGreedy, Learned
from edbatch.scheduling.schedule import schedule

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


def test_lattices() -> None:
    graphs = mini_batch_graphs("lattice-lstm", count=6)
    assert graphs[0].num_nodes == 4670
    assert_counts(
        graphs,
        {
            "lower bound": (209, 859), "depth": (585, 2380), "agenda": (480, 1830), "agenda-remaining": (434, 1680),
            "bound-greedy": (255, 1016),
        },
    )  # fmt: skip


HEURISTICS = ("depth", "agenda", "agenda-remaining", "ratio-greedy", "ratio-greedy-backward", "bound-greedy")


def learned(graphs: list[Graph], seed: int) -> list[int]:
    """The batches of the learned policy, which learns from the first graph."""
    policy = Learned(seed=seed)
    schedules = [policy.run(graph) for graph in graphs]
    for graph, made in zip(graphs, schedules, strict=True):
        made.check(graph)
    return [made.num_batches for made in schedules]


def batches(graphs: list[Graph], policy: str | BoundGreedy) -> int:
    return sum(schedule(graph, policy).num_batches for graph in graphs)


def test_a_beam_on_lattices() -> None:
    first, *unseen = mini_batch_graphs("lattice-lstm", 6)
    assert (batches([first], BoundGreedy(beam=4)), batches(unseen, BoundGreedy(beam=4))) == (232, 962)
    assert (batches([first], BoundGreedy(beam=64)), batches(unseen, BoundGreedy(beam=64))) == (224, 933)


@pytest.mark.parametrize("workload", ["tree-lstm", "tree-gru", "mv-rnn", "bilstm-tagger"])
def test_learned_reaches_the_lower_bound(workload: str) -> None:
    graphs = mini_batch_graphs(workload, 6)
    assert learned(graphs, seed=0) == [graph.lower_bound() for graph in graphs]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("coin", range(3))
def test_learned_on_trees_of_two_types(coin: int, seed: int) -> None:
    graphs = mini_batch_graphs("tree-lstm-2type", 6, seed=coin)
    count = sum(learned(graphs, seed)[1:])
    assert count <= 1.10 * batches(graphs[1:], BoundGreedy(beam=64))
    assert count <= min(batches(graphs[1:], name) for name in HEURISTICS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("workload", ["lattice-lstm", "lattice-gru"])
def test_learned_on_lattices(workload: str, seed: int) -> None:
    graphs = mini_batch_graphs(workload, 6)
    count = sum(learned(graphs, seed)[1:])
    assert count <= 1.15 * sum(graph.lower_bound() for graph in graphs[1:])
    assert count <= min(batches(graphs[1:], name) for name in HEURISTICS)


@pytest.mark.parametrize("seed", range(3))
def test_learned_on_module_networks(seed: int) -> None:
    graphs = mini_batch_graphs("module-net", 6)
    count = sum(learned(graphs, seed)[1:])
    assert count <= 1.15 * batches(graphs[1:], BoundGreedy(beam=64))
    assert count <= min(batches(graphs[1:], name) for name in HEURISTICS)
