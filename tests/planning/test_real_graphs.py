"""The numbers of batches on real data: the first mini-batch of 32, and the sum over the five after it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from edbatch.planning.graph import Graph
from edbatch.planning.schedule import schedule

DATA = os.environ.get("EDBATCH_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="EDBATCH_DATA does not name the folder of real data")

POLICIES = ("depth", "agenda", "agenda-remaining", "bound-greedy")


class Builder:
    """Lists of types and inputs that grow node by node."""

    def __init__(self) -> None:
        self.types: list[str] = []
        self.inputs: list[list[int]] = []

    def add(self, type_: str, *producers: int) -> int:
        self.types.append(type_)
        self.inputs.append(list(producers))
        return len(self.types) - 1

    def graph(self) -> Graph:
        return Graph.from_lists(self.types, self.inputs)


def tree_graph(batch: int) -> Graph:
    """Leaf, internal and output nodes of 32 s-expressions; every tree node has an output."""
    builder = Builder()
    lines = Path(DATA or "", "trees/train.txt").read_text(encoding="utf-8").split("\n")
    for line in lines[32 * batch : 32 * batch + 32]:
        children: list[list[int]] = [[]]
        for token in re.findall(r"\(\d |\)", line):
            if token != ")":
                children.append([])
                continue
            below = children.pop()
            children[-1].append(builder.add("node" if below else "leaf", *below))
            builder.add("out", children[-1][-1])
    return builder.graph()


def lattice_graph(batch: int, absorb_sums: bool) -> Graph:
    """Start, char, word and output nodes of 32 lattices; arcs that meet are added by a sum, or by its readers."""
    builder = Builder()
    text = Path(DATA or "", "lattice/train.txt").read_text(encoding="utf-8").split("\n", 1)[1]
    for lattice in re.split(r"\n\n", text)[32 * batch : 32 * batch + 32]:
        states: list[list[int]] = []
        for i, line in enumerate(lattice.strip("\n").split("\n")[2:]):
            sources = [int(word) for word in line.split()[1::2]]
            arcs = [builder.add("char" if j == i - 1 else "word", *states[j]) for j in sources]
            if not arcs:
                arcs = [builder.add("start")]
            states.append([builder.add("sum", *arcs)] if len(arcs) > 1 and not absorb_sums else arcs)
        for state in states:
            builder.add("out", *state)
    return builder.graph()


def assert_counts(graphs: list[Graph], expected: dict[str, tuple[int, int]]) -> None:
    counts = {"lower bound": [graph.lower_bound() for graph in graphs]}
    for name in POLICIES:
        schedules = [schedule(graph, name) for graph in graphs]
        for graph, made in zip(graphs, schedules, strict=True):
            made.check(graph)
        counts[name] = [made.num_batches for made in schedules]
    assert {name: (found[0], sum(found[1:])) for name, found in counts.items()} == expected


def test_trees() -> None:
    graphs = [tree_graph(batch) for batch in range(6)]
    assert graphs[0].num_nodes == 2112
    assert_counts(
        graphs,
        {
            "lower bound": (19, 111), "depth": (36, 212), "agenda": (36, 212), "agenda-remaining": (29, 167),
            "bound-greedy": (19, 111),
        },
    )  # fmt: skip


def test_lattices_with_sums_as_nodes() -> None:
    graphs = [lattice_graph(batch, absorb_sums=False) for batch in range(6)]
    assert graphs[0].num_nodes == 4670
    assert_counts(
        graphs,
        {
            "lower bound": (209, 859), "depth": (585, 2380), "agenda": (480, 1830), "agenda-remaining": (434, 1680),
            "bound-greedy": (255, 1016),
        },
    )  # fmt: skip


def test_lattices_with_sums_absorbed() -> None:
    graphs = [lattice_graph(batch, absorb_sums=True) for batch in range(6)]
    assert graphs[0].num_nodes == 3910
    assert_counts(
        graphs,
        {
            "lower bound": (150, 642), "depth": (312, 1361), "agenda": (207, 891), "agenda-remaining": (243, 1082),
            "bound-greedy": (150, 660),
        },
    )  # fmt: skip
