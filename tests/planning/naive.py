"""Oracles, slow and obvious: the definitions of the policies on lists and sets; types are in order of appearance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from fractions import Fraction
from functools import cache
from itertools import chain, combinations

Types = list[str]
Inputs = list[list[int]]
Batches = list[tuple[Hashable, list[int]]]
Done = frozenset[int]


def type_order(types: Types) -> Types:
    return list(dict.fromkeys(types))


def depths(inputs: Inputs) -> list[int]:
    depth: list[int] = []
    for producers in inputs:
        depth.append(max((depth[p] + 1 for p in producers), default=0))
    return depth


def ready(types: Types, inputs: Inputs, done: Collection[int], type_: str) -> list[int]:
    return [i for i, t in enumerate(types) if t == type_ and i not in done and all(p in done for p in inputs[i])]


def free(types: Types, inputs: Inputs, done: Collection[int], type_: str) -> list[int]:
    """Frontier(G^a): waiting nodes of the type without a waiting ancestor of the type."""
    ancestors: list[set[int]] = []
    for producers in inputs:
        ancestors.append(set(producers).union(*(ancestors[p] for p in producers)))
    waiting = {i for i, t in enumerate(types) if t == type_ and i not in done}
    return [i for i in waiting if not ancestors[i] & waiting]


def bound(types: Types, inputs: Inputs, done: Collection[int]) -> int:
    """The sum over types of the most waiting nodes of that type on one path."""
    total = 0
    for type_ in type_order(types):
        most: list[int] = []
        for i, producers in enumerate(inputs):
            most.append((types[i] == type_ and i not in done) + max((most[p] for p in producers), default=0))
        total += max(most, default=0)
    return total


def launch_by(types: Types, inputs: Inputs, cost: Callable[[Done, str, list[int]], object]) -> Batches:
    """Launch all ready nodes of the type with the least (cost, type id) until nothing waits."""
    done: Done = frozenset()
    batches: Batches = []
    while len(done) < len(types):
        found = [(t, nodes) for t in type_order(types) if (nodes := ready(types, inputs, done, t))]
        type_, nodes = min(found, key=lambda batch: cost(done, *batch))  # the first of equals: the smaller type id
        batches.append((type_, nodes))
        done |= set(nodes)
    return batches


def depth(types: Types, inputs: Inputs) -> Batches:
    order, level = type_order(types), depths(inputs)
    keys = sorted({(level[i], order.index(t)) for i, t in enumerate(types)})
    return [(order[t], [i for i in range(len(types)) if (level[i], order.index(types[i])) == (d, t)]) for d, t in keys]


def agenda(types: Types, inputs: Inputs, remaining: bool = False) -> Batches:
    level = depths(inputs)

    def mean_depth(done: Done, type_: str, nodes: list[int]) -> Fraction:
        counted = [level[i] for i, t in enumerate(types) if t == type_ and not (remaining and i in done)]
        return Fraction(sum(counted), len(counted))

    return launch_by(types, inputs, mean_depth)


def agenda_remaining(types: Types, inputs: Inputs) -> Batches:
    return agenda(types, inputs, remaining=True)


def ratio_greedy(types: Types, inputs: Inputs) -> Batches:
    return launch_by(types, inputs, lambda done, t, nodes: -Fraction(len(nodes), len(free(types, inputs, done, t))))


def bound_greedy(types: Types, inputs: Inputs) -> Batches:
    return launch_by(types, inputs, lambda done, t, nodes: (bound(types, inputs, done | set(nodes)), -len(nodes)))


def subsets(nodes: list[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(nodes, size) for size in range(1, len(nodes) + 1))


def shortest_length(types: Types, inputs: Inputs, done: Done = frozenset()) -> int:
    """The fewest batches that finish the graph, trying every set of ready nodes of one type at every step."""

    @cache
    def rest(done: Done) -> int:
        if len(done) == len(types):
            return 0
        moves = chain.from_iterable(subsets(ready(types, inputs, done, t)) for t in type_order(types))
        return 1 + min(rest(done | set(nodes)) for nodes in moves)

    return rest(done)
