"""The order of nodes inside batches by PQ trees: what the paper does inside of cells, one level up.

In: a graph and its schedule. Out: the same batches, each in an order that PQ trees have found; an experiment beside
`layout/batch_order.py`, which `bench/order.py` measures. What a batch reads through one operand is a *lane*: one
producer for each of its nodes. It is a view if the producers lie side by side, in the order of the nodes.

1. Each batch has a PQ tree of its nodes between two ends, since batches of a type lie in launch order. Lanes make their
   producers consecutive there, those of the most rows first. A lane that spans several batches wants the last nodes of
   the first one, the first nodes of the last one, and all nodes between. One that does not fit is left out.
2. From the first batch to the last: what must be consecutive among the producers must be so among the readers.
3. From the last batch to the first: a batch gets an order that its tree allows, and its producers have to follow.
   Batches from which no lane reads come last of all, and follow their producers.

Where a tree leaves a choice, nodes keep the order in which the schedule has them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from edbatch.layout.batch_order import Bools
from edbatch.pq.tree import PQTree
from edbatch.scheduling.graph import Graph, Ints
from edbatch.scheduling.schedule import Schedule

START, END = -1, -2  # leaves beside the nodes of a batch


@dataclass(eq=False)
class NodeLane:
    """What a batch reads through operands with the same producers.

    kind: types of readers and producers, and which operand. reader_of: the node that reads each producer. parts: the
    batches of the producers as they lie in memory, and the producers in each. weight: how many rows it reads.
    """

    batch: int
    kind: tuple[int, int, int]
    reader_of: dict[int, int]
    parts: list[tuple[int, list[int]]]
    weight: int
    rank: int = 0  # the first lanes decide


def order_by_pq_trees(graph: Graph, schedule: Schedule, fixed: Bools, only_sums: Bools, arenas: Ints) -> Schedule:
    """The schedule with the nodes of every batch in an order in which later batches read many views.

    Args:
        fixed: for each type, whether its batches keep their order.
        only_sums: for each type, whether it only sums values, so that none of its operands can be a view.
        arenas: for each type, the number of the arena where its values lie.

    >>> import edbatch
    >>> chains = Graph.from_lists("aabbb", [[], [], [1], [0], [2]])
    >>> neither, same = np.array([False, False]), np.array([0, 0])
    >>> order_by_pq_trees(chains, edbatch.schedule(chains, "depth"), neither, neither, same).batches
    (('a', [1, 0]), ('b', [2, 3]), ('b', [4]))
    """
    order = _Ordering(graph, schedule, fixed, only_sums, arenas).run()
    return replace(schedule, order=np.array(order, np.int64))


class _Ordering:
    """The trees and lanes of one schedule."""

    def __init__(self, graph: Graph, schedule: Schedule, fixed: Bools, only_sums: Bools, arenas: Ints) -> None:
        order = schedule.order.tolist()
        self.members = [order[begin:end] for begin, end in pairwise(schedule.starts.tolist())]
        self.place = {node: i for i, node in enumerate(order)}
        self.batch_of = {node: b for b, members in enumerate(self.members) for node in members}
        types = schedule.batch_types.tolist()
        self.types, self.fixed = types, [bool(fixed[t]) for t in types]
        in_memory = sorted(range(len(types)), key=lambda b: (arenas[types[b]], types[b], b))
        self.memory_place = dict(zip(in_memory, range(len(types)), strict=True))
        self.arena = [int(arenas[t]) for t in types]
        self.trees: dict[int, PQTree[int]] = {}
        self.asked: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        self.lanes = [lane for b, t in enumerate(types) if not only_sums[t] for lane in self._lanes_of(graph, b)]

    def _lanes_of(self, graph: Graph, batch: int) -> Iterator[NodeLane]:
        """The lanes of a batch that some order could make views."""
        members = self.members[batch]
        operands = [graph.inputs[graph.offsets[n] : graph.offsets[n + 1]].tolist() for n in members]
        if len(members) < 2 or len({len(of_node) for of_node in operands}) > 1:
            return
        lanes: dict[tuple[int, ...], int] = {}
        for producers in zip(*operands, strict=True):
            lanes[producers] = lanes.get(producers, 0) + len(members)
        for operand, (producers, weight) in enumerate(lanes.items()):
            parts: dict[int, list[int]] = defaultdict(list)
            for producer in producers:
                parts[self.batch_of[producer]].append(producer)
            ordered = sorted(parts.items(), key=lambda part: self.memory_place[part[0]])
            if len(set(producers)) == len(members) and self._can_be_consecutive(ordered):
                kind = self.types[batch], self.types[ordered[-1][0]], operand
                yield NodeLane(batch, kind, dict(zip(producers, members, strict=True)), ordered, weight)

    def _can_be_consecutive(self, parts: list[tuple[int, list[int]]]) -> bool:
        """Whether the batches of some producers lie side by side in one arena, those in the middle with all nodes."""
        batches = [batch for batch, _ in parts]
        first = self.memory_place[batches[0]]
        are_neighbours = all(self.memory_place[batch] == first + i for i, batch in enumerate(batches))
        in_one = len({self.arena[batch] for batch in batches}) == 1
        return are_neighbours and in_one and all(len(p) == len(self.members[batch]) for batch, p in parts[1:-1])

    def run(self) -> list[int]:
        lanes_of: dict[int, list[NodeLane]] = defaultdict(list)
        ranked = self._by_rank()
        for rank, lane in enumerate(ranked):
            lane.rank = rank
            if all(self._tree(batch).reduce(leaves) for batch, leaves in _ends(lane.parts)):
                lanes_of[lane.batch].append(lane)
        for batch in sorted(lanes_of):
            lanes_of[batch] = [lane for lane in lanes_of[batch] if self._follow_producers(lane)]
        for batch in range(len(self.members) - 1, -1, -1):
            if batch in self.trees and not self.fixed[batch]:
                self.members[batch] = self._read_off(batch, lanes_of[batch])
            place = {node: i for i, node in enumerate(self.members[batch])}
            for lane in lanes_of[batch]:
                self._lead_producers(lane, place)
        feeding = {batch for lanes in lanes_of.values() for lane in lanes for batch, _ in lane.parts}
        for batch in lanes_of.keys() - feeding:
            if not self.fixed[batch]:
                self.members[batch] = self._following(batch, lanes_of[batch])
        return list(chain.from_iterable(self.members))

    def _following(self, batch: int, lanes: list[NodeLane]) -> list[int]:
        """The order of a batch from which no lane reads: as it is or like that of a lane's producers, whichever suits
        the most rows."""
        followed = []
        for lane in lanes:
            in_memory = chain.from_iterable(self.members[producers] for producers, _ in lane.parts)
            followed.append([lane.reader_of[p] for p in in_memory if p in lane.reader_of])

        def rows_read_in_order(order: list[int]) -> int:
            return sum(lane.weight for lane, readers in zip(lanes, followed, strict=True) if readers == order)

        return max([self.members[batch], *followed], key=rows_read_in_order)

    def _by_rank(self) -> list[NodeLane]:
        """Lanes of a kind together: recurrences first, then kinds that read the most rows. Those that mix types come
        last."""
        rows: dict[tuple[int, int, int], int] = defaultdict(int)
        for lane in self.lanes:
            rows[lane.kind] += lane.weight

        def rank(lane: NodeLane) -> tuple[Any, ...]:
            reader, producer, _ = lane.kind
            return self._mixes(lane), reader != producer, -rows[lane.kind], lane.kind, lane.batch

        return sorted(self.lanes, key=rank)

    def _mixes(self, lane: NodeLane) -> bool:
        return len({self.types[batch] for batch, _ in lane.parts}) > 1

    def _tree(self, batch: int) -> PQTree[int]:
        """The tree of a batch: its nodes between both ends, in any order or, if it is fixed, in just one."""
        tree = self.trees.get(batch)
        if tree is None:
            members = self.members[batch]
            tree = self.trees[batch] = PQTree([START, *members, END])
            tree.reduce([START, *members])
            tree.reduce([*members, END])
            for pair in pairwise(members) if self.fixed[batch] else ():
                tree.reduce(pair)
        return tree

    def _follow_producers(self, lane: NodeLane) -> bool:
        """Make consecutive among the readers what is consecutive among the producers; False if that does not fit."""
        tree, readers = self._tree(lane.batch), lane.reader_of
        parts = [[readers[p] for p in producers] for _, producers in lane.parts]
        sets = [*parts, *(a + b for a, b in pairwise(parts))] if len(parts) > 1 else []
        for batch, producers in lane.parts:
            asked = set(producers)
            for family in _families(self._tree(batch).structure()):
                if asked.issuperset(family):
                    sets.append([readers[p] for p in family])
        return all(tree.reduce(members) for members in sets)

    def _read_off(self, batch: int, lanes: Sequence[NodeLane]) -> list[int]:
        """An order that the tree and the readers allow, those of the first ranks before others. Only the direction of
        what is consecutive is still open then, and is put to the vote."""
        wishes: dict[tuple[int, int], int] = defaultdict(int)
        tree = self.trees[batch]
        for _, leaves in sorted(self.asked.pop(batch, [])):
            if all(tree.reduce(pair) for pair in pairwise(leaves)):
                for pair in pairwise(leaves):
                    wishes[pair] += len(leaves)
        ranks = []
        for lane in lanes:
            if len(lane.parts) > 1:
                of_node = {lane.reader_of[p]: i for i, (_, producers) in enumerate(lane.parts) for p in producers}
                ranks.append((lane.weight, of_node))

        def votes(a: int, b: int) -> int:
            if START in (a, b):
                return 1 if a == START else -1
            found = wishes.get((a, b), 0) - wishes.get((b, a), 0)
            if END not in (a, b):
                found += sum(weight * (rank[b] - rank[a]) for weight, rank in ranks)
            return found

        def join(kind: str, parts: list[list[int]]) -> list[int]:
            if kind == "P" and len(parts) > 2:
                parts = sorted(parts, key=lambda part: min(self.place[node] for node in part))
            elif sum(votes(a[-1], b[0]) for a, b in pairwise(parts)) < (
                sum(votes(a[-1], b[0]) for a, b in pairwise(parts[::-1]))
            ):
                parts = parts[::-1]
            return list(chain.from_iterable(parts))

        return _folded(tree.structure(), join)[1:-1]

    def _lead_producers(self, lane: NodeLane, place: dict[int, int]) -> None:
        """Ask the batches of the producers for the order of the readers, unless these have mixed several batches."""
        ordered = [sorted(producers, key=lambda p: place[lane.reader_of[p]]) for _, producers in lane.parts]
        if any(place[lane.reader_of[a[-1]]] > place[lane.reader_of[b[0]]] for a, b in pairwise(ordered)):
            return
        parts = [(batch, producers) for (batch, _), producers in zip(lane.parts, ordered, strict=True)]
        for batch, leaves in _ends(parts):
            self.asked[batch].append((lane.rank, leaves))


def _ends(parts: list[tuple[int, list[int]]]) -> Iterator[tuple[int, list[int]]]:
    """What must be consecutive in each batch: producers, and the end of the batch where they go on in another one."""
    for i, (batch, producers) in enumerate(parts):
        yield batch, [*([START] if i else []), *producers, *([END] if i + 1 < len(parts) else [])]


def _families(structure: Any) -> Iterator[list[int]]:
    """The sets of nodes that are consecutive in every order of a tree; those with an end of the batch are left out."""
    found: list[list[int]] = []

    def join(kind: str, parts: list[list[int]]) -> list[int]:
        whole = list(chain.from_iterable(parts))
        found.extend([[*a, *b] for a, b in pairwise(parts)] if kind == "Q" else [whole])
        return whole

    _folded(structure, join)
    return (family for family in found if START not in family and END not in family)


def _folded(structure: Any, join: Any) -> list[int]:
    """The leaves of a tree, as `join(kind, leaves of each child)` orders those of every node."""
    nodes, stack = [], [structure]
    while stack:
        kind, below = stack.pop()
        nodes.append((kind, below))
        if kind != "leaf":
            stack.extend(below)
    done: list[list[int]] = []
    for kind, below in reversed(nodes):
        if kind == "leaf":
            done.append([below])
        else:
            parts = done[len(done) - len(below) :]
            del done[len(done) - len(below) :]
            done.append(join(kind, parts))
    return done[-1]
