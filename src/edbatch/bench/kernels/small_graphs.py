"""How far policies are from the fewest batches, on small graphs where search finds that number: part of `edbatch bench
policies`.

In: policies, functions that learn a policy, and a number of graphs. Out: for each policy the mean gap, and how often it
is optimal. Graphs that are too hard for the search are replaced by others, which favours easy ones a little.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import mean
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from edbatch.datasets import Tree, random_programs
from edbatch.datasets.graphs import STRUCTURES, Nodes
from edbatch.datasets.lattices import Lattice
from edbatch.errors import PolicyError
from edbatch.policies import Exact
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.schedule import Policy

LOWER_BOUND = "lower bound"


def run(
    policies: Mapping[str, Policy], learners: Mapping[str, Callable[[Graph, int], Policy]], count: int, seed: int,
    advance: Callable[[], object],
) -> dict[str, Any]:  # fmt: skip
    """The gaps, batches / optimum - 1, of policies, and of those that learners learn on each graph with seed 0."""
    rng = random.Random(seed)
    gaps: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    families, redrawn = list(FAMILIES), 0
    sizes: list[int] = []
    while len(sizes) < count:
        family = families[len(sizes) % len(families)]
        graph = FAMILIES[family](rng)
        try:
            optimum = Exact().run(graph).num_batches
        except PolicyError:
            redrawn += 1
            continue
        sizes.append(graph.num_nodes)
        gaps[LOWER_BOUND][family].append(graph.lower_bound() / optimum - 1)
        learned = {name: learn(graph, 0) for name, learn in learners.items()}
        for name, policy in {**policies, **learned}.items():
            gaps[name][family].append(policy.run(graph).num_batches / optimum - 1)
        advance()
    return {
        "count": count,
        "seed": seed,
        "redrawn": redrawn,
        "mean_nodes": mean(sizes) if sizes else 0,
        "families": families[:count],
        "policies": {name: _summary(by_family) for name, by_family in gaps.items()},
    }


def _summary(gaps: Mapping[str, list[float]]) -> dict[str, Any]:
    together = [gap for family in gaps.values() for gap in family]
    return {
        "mean_gap": mean(together),
        "optimal": together.count(0.0) / len(together),
        "mean_gap_by_family": {family: mean(values) for family, values in gaps.items()},
    }


def _dag(rng: random.Random) -> Graph:
    """8 to 24 nodes of 2 to 4 types, each with up to three inputs."""
    types = "abcd"[: rng.randint(2, 4)]
    n = rng.randint(8, 24)
    inputs = [[rng.randrange(i) for _ in range(rng.randint(0, 3))] if i else [] for i in range(n)]
    return Graph.from_lists([rng.choice(types) for _ in range(n)], inputs)


def _trees(rng: random.Random) -> Graph:
    """3 to 6 trees of 4 to 10 leaves with two internal types."""
    nodes = Nodes(rng)
    for _ in range(rng.randint(3, 6)):
        roots = [Tree(0, word=1) for _ in range(rng.randint(4, 10))]
        while len(roots) > 1:
            at = rng.randrange(len(roots) - 1)
            roots[at : at + 2] = [Tree(0, left=roots[at], right=roots[at + 1])]
        STRUCTURES["tree-lstm-2type"].add(nodes, roots[0])
    return Graph.from_lists(nodes.types, nodes.inputs)


def _lattices(rng: random.Random) -> Graph:
    """2 to 4 lattices of 5 to 12 nodes, a word arc to every other node, sums as nodes."""
    nodes = Nodes(rng)
    for _ in range(rng.randint(2, 4)):
        arcs: list[tuple[tuple[int, int], ...]] = [()]
        for i in range(1, rng.randint(5, 12)):
            words = ((rng.randrange(i - 1), 0),) if i > 1 and rng.random() < 0.5 else ()
            arcs.append(((i - 1, 0), *words))
        STRUCTURES["lattice-lstm"].add(nodes, Lattice((0,) * len(arcs), tuple(arcs)))
    return Graph.from_lists(nodes.types, nodes.inputs)


def _programs(rng: random.Random) -> Graph:
    """2 or 3 programs over 6 to 12 modules."""
    nodes = Nodes(rng)
    for program in random_programs(rng.randint(2, 3), rng.randrange(2**32), rng.randint(6, 12)).programs:
        STRUCTURES["module-net"].add(nodes, program)
    return Graph.from_lists(nodes.types, nodes.inputs)


FAMILIES: dict[str, Callable[[random.Random], Graph]] = {
    "DAGs": _dag, "trees": _trees, "lattices": _lattices, "programs": _programs,
}  # fmt: skip


def table(result: dict[str, Any]) -> Table:
    """The result as a table for people."""
    title = f"{result['count']} small graphs of {result['mean_nodes']:.0f} nodes on average, against the optimum"
    caption = (f"gap: mean of batches / optimum - 1, over all and by family; learned on each graph alone\n"
               f"{result['redrawn']} graphs whose optimum was not found were drawn again")  # fmt: skip
    rows = Table(title=title, caption=caption, box=SIMPLE)
    rows.add_column(no_wrap=True)
    for column in ("gap, %", "optimal", *result["families"]):
        rows.add_column(column, justify="right")
    for name, row in result["policies"].items():
        gap, *by_family = (f"{100 * gap:+.2f}" for gap in (row["mean_gap"], *row["mean_gap_by_family"].values()))
        rows.add_row(name, gap, f"{100 * row['optimal']:.0f} %", *by_family)
    return rows
