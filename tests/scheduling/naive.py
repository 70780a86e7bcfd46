"""Oracles, slow and obvious: the definitions of the policies on lists and sets; types are in order of appearance."""

from __future__ import annotations

import math
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


def beam(types: Types, inputs: Inputs, width: int) -> int:
    """The batches of a beam search: as many beginnings as `width`, by bound, waiting nodes, rank and type."""
    beginnings: list[Done] = [frozenset()]
    for length in range(len(types) + 1):
        if any(len(done) == len(types) for done in beginnings):
            return length
        moves: dict[Done, tuple[int, int]] = {}
        for done in beginnings:
            for type_ in type_order(types):
                after = done | set(ready(types, inputs, done, type_))
                if after != done:
                    moves.setdefault(after, (bound(types, inputs, after), -len(after)))
        beginnings = sorted(moves, key=lambda after: moves[after])[:width]  # stable: the first of equals
    raise AssertionError("unreachable: every step launches something")


def lengths(inputs: Inputs) -> list[int]:
    """Per node, the nodes on the longest path to a sink."""
    length = [1] * len(inputs)
    for i in reversed(range(len(inputs))):
        for p in inputs[i]:
            length[p] = max(length[p], length[i] + 1)
    return length


class Frontier:
    """What a machine sees after some nodes have run, from the definitions."""

    def __init__(self, types: Types, inputs: Inputs, done: Done) -> None:
        now, way = bound(types, inputs, done), lengths(inputs)
        order = [t for t in type_order(types) if ready(types, inputs, done, t)]
        self.ready = {t: ready(types, inputs, done, t) for t in order}
        self.free = {t: free(types, inputs, done, t) for t in order}
        self.lowers = {t: bound(types, inputs, done | set(self.ready[t])) < now for t in order}
        self.longest = {t: max(way[i] for i in self.ready[t]) for t in order}
        self.way = {t: sum(way[i] for i in self.ready[t]) for t in order}
        self.sure = [t for t in order if len(self.ready[t]) == len(self.free[t])]

    def state(self, encoding: str) -> tuple[tuple[str, str], ...]:
        sizes = {t: len(nodes) for t, nodes in self.ready.items()}
        if encoding == "sort":
            return tuple((t, "") for t in sorted(sizes, key=lambda t: -sizes[t]))
        if encoding == "max":
            most = max(sizes, key=lambda t: sizes[t])  # the first of equals
            return tuple((t, "most" if t == most else "") for t in sizes)
        if encoding == "base":
            return tuple((t, "") for t in sizes)
        longest = max(self.longest.values())
        marks = {t: " ".join(["lowers"] * self.lowers[t] + ["longest"] * (self.longest[t] == longest)) for t in sizes}
        return tuple((t, mark) for t, mark in marks.items() if mark)

    def rule(self, crowd: float) -> str:
        longest = max(self.longest.values())

        def score(t: str) -> tuple[float, int]:
            signs = self.lowers[t] + self.longest[t] / longest
            return signs + (crowd and crowd * math.log(self.way[t])), len(self.ready[t])

        return max(self.ready, key=score)  # the first of equals
