"""Proposes orders of a cell's values in which batches find their operands side by side: ED-Batch's use of PQ trees.

In: the ops of a cell and their batches. Out: orders of the values, as good as this method finds; `cell_layout` verifies
them. The ops of a batch are its *members*. A *lane* is all that a batch reads through one slot (as its first operand,
its second, …), or all that it writes: one run of values per member.

1. A PQ tree over all values is reduced by what each batch writes,
2. then by what each slot reads. A set that does not fit is left out.
3. The lanes of a batch get the same structure: members that must be consecutive in one lane must be so in the others.
   Where the tree leaves more than a choice of direction, one order is chosen for all lanes.
4. Each node of the tree can now only be read forward or backward. A batch has its members in the same order in all its
   lanes when certain nodes have equal or opposite directions, which a union-find with parity settles. A lane that
   contradicts becomes *loose*: it need not be consecutive any more, and all begins again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, pairwise
from typing import Any

from edbatch.pq.cell_layout import CellGraph, Run, split_operands
from edbatch.pq.tree import PQTree

Members = frozenset[int]
Leaves = frozenset[int]
RESULTS = -1  # stands for a slot where a lane is what a batch writes
GROUND = -1  # a node beside the tree that is always read forward


@dataclass(frozen=True)
class Lane:
    """What the members of a batch read through a slot, or write: one run of values per member.

    side_by_side: the runs must follow each other without gaps; a strided view is not enough.
    """

    batch: int
    slot: int
    runs: tuple[Run, ...]
    side_by_side: bool = False

    @property
    def is_pair(self) -> bool:
        """Whether it has just two values: they are a strided view wherever they lie, if the first comes first."""
        return not self.side_by_side and len(set(self.runs)) == 2 == len(self.leaves)

    @property
    def is_possible(self) -> bool:
        """Whether an order could fit it: none has a value twice, or two different runs that begin at one value."""
        distinct = set(self.runs)
        return all(len(set(run)) == len(run) for run in distinct) and len({run[0] for run in distinct}) == len(distinct)

    @cached_property
    def leaves(self) -> Leaves:
        return frozenset(chain.from_iterable(self.runs))

    def leaves_of(self, members: Members) -> Leaves:
        return frozenset(chain.from_iterable(self.runs[m] for m in members))

    def members_of(self, leaves: Leaves) -> Members:
        """The members with one of these leaves. If these must be consecutive, so must all leaves of the members."""
        return frozenset(m for m, run in enumerate(self.runs) if not leaves.isdisjoint(run))


class Contradiction(Exception):
    """A lane cannot be laid out like the others of its batch."""

    def __init__(self, lane: Lane) -> None:
        super().__init__(f"slot {lane.slot} of batch {lane.batch} cannot be aligned")
        self.lane = lane


def propose_orders(graph: CellGraph, batches: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Orders of all values that are not outside: pairs side by side where that fits, and pairs anywhere; both with
    blocks side by side, and without."""
    values, lanes = graph.inside, _lanes(graph, batches)
    blocks = [frozenset(graph.home(block)).intersection(values) for block in graph.blocks]
    for together in (blocks, []) if blocks else ([],):
        for loose in ([], [lane for lane in lanes if lane.is_pair]):
            proposed = None
            while proposed is None:
                try:
                    proposed = _Proposal(values, lanes, loose, together).order()
                except Contradiction as found:
                    loose = [*loose, found.lane]
            yield proposed


def _lanes(graph: CellGraph, batches: Sequence[Sequence[int]]) -> list[Lane]:
    """All lanes that ask something of an order; a lane with a value outside can never be side by side.

    Lanes of results come first, because they always fit together, then those that would be expensive to copy.
    """
    lanes = []
    for number, members in enumerate(batches):
        ops = [graph.ops[i] for i in members]
        wide = len(ops) > 1 and ops[0].is_wide
        lanes.append(Lane(number, RESULTS, tuple(graph.home(op.results) for op in ops), wide))
        for slot in range(len(ops[0].operands)):
            parameters, runs = split_operands([op.operands[slot] for op in ops])
            if not parameters:
                lanes.append(Lane(number, slot, tuple(map(graph.home, runs))))
    needy = [lane for lane in lanes if len(lane.leaves) > 1 and lane.leaves.isdisjoint(graph.outside)]
    possible = [lane for lane in needy if lane.is_possible]
    return sorted(possible, key=lambda lane: (lane.slot != RESULTS, -graph.num_bytes(tuple(lane.leaves))))


class _Proposal:
    """One attempt; `loose` lanes need not be consecutive."""

    def __init__(self, values: list[int], lanes: list[Lane], loose: list[Lane], blocks: Sequence[Leaves]) -> None:
        self.tree = PQTree(values)
        self.fitting = [lane for lane in lanes if lane not in loose and self._reduce(lane)]
        for block in blocks:
            self.tree.reduce(block)  # a wish: if it does not fit, there are more copies
        self.others = [lane for lane in lanes if lane not in self.fitting]
        by_batch: dict[int, list[Lane]] = {}
        for lane in self.fitting:
            by_batch.setdefault(lane.batch, []).append(lane)
        self.groups = [group for group in by_batch.values() if len(group) > 1]

    def _reduce(self, lane: Lane) -> bool:
        pairs = [pair for run in dict.fromkeys(lane.runs) for pair in pairwise(run)]
        return all(self.tree.reduce(leaves) for leaves in (*map(frozenset, pairs), lane.leaves))

    def order(self) -> tuple[int, ...]:
        root = self._make_alike()
        while (choice := self._open_choice(root)) is not None:
            for a, b in pairwise(choice):
                self.tree.reduce(a | b)
            root = self._make_alike()
        return _Directions(root).settle(self.fitting, self.others)

    def _make_alike(self) -> _OrderedNode:
        """Makes consecutive in each lane what is consecutive in the other lanes of its batch, until nothing changes."""
        before, root = None, self._root()
        while before != root:
            before = root
            for group in self.groups:
                for source in group:
                    for members in _families(root, source):
                        for lane in group:
                            if lane is not source and not self.tree.reduce(lane.leaves_of(members)):
                                raise Contradiction(lane if lane.slot != RESULTS else source)
                root = self._root()
        return root

    def _root(self) -> _OrderedNode:
        return _OrderedNode.of(self.tree.structure())

    def _open_choice(self, root: _OrderedNode) -> list[Leaves] | None:
        """The leaves of each child of a P node inside a lane that has three children or more, if there is one."""
        lanes = [lane.leaves for group in self.groups for lane in group]
        for node in root.walk():
            if node.kind == "P" and len(node.children) > 2 and any(node.leaves <= leaves for leaves in lanes):
                return [child.leaves for child in node.children]
        return None


def _families(root: _OrderedNode, lane: Lane) -> Iterator[Members]:
    """The sets of members of a lane that are consecutive in every order of the tree."""
    for node in root.walk():
        pairs = [a.leaves | b.leaves for a, b in pairwise(node.children)]
        for leaves in pairs if node.kind == "Q" else [node.leaves]:
            members = lane.members_of(leaves) if leaves <= lane.leaves else frozenset()
            if len(members) > 1:
                yield members


@dataclass(frozen=True)
class _OrderedNode:
    """A node of a PQ tree that knows its leaves. Children are in the order of their smallest leaves as far as the tree
    allows it, so that equal trees are equal nodes."""

    kind: str
    leaves: Leaves
    children: tuple[_OrderedNode, ...]

    @staticmethod
    def of(structure: Any) -> _OrderedNode:
        kind, below = structure
        if kind == "leaf":
            return _OrderedNode(kind, frozenset([below]), ())
        children = tuple(map(_OrderedNode.of, below))
        if kind == "P":
            children = tuple(sorted(children, key=lambda child: min(child.leaves)))
        elif min(children[0].leaves) > min(children[-1].leaves):
            children = children[::-1]
        return _OrderedNode(kind, frozenset().union(*(child.leaves for child in children)), children)

    def walk(self) -> Iterator[_OrderedNode]:
        yield self
        for child in self.children:
            yield from child.walk()


Separation = tuple[int, bool]  # the lowest node above two leaves, and whether the first of them comes first in it


class _Directions:
    """Whether each node is read forward or backward: a union-find whose edges say "same" or "opposite"."""

    def __init__(self, root: _OrderedNode) -> None:
        self.nodes = list(root.walk())
        self.path_of: dict[int, list[tuple[int, int]]] = {value: [] for value in root.leaves}
        for number, node in enumerate(self.nodes):  # a path from the root down: (node, which child)
            for place, child in enumerate(node.children):
                for value in child.leaves:
                    self.path_of[value].append((number, place))
        self.towards = {number: (number, True) for number in range(GROUND, len(self.nodes))}

    def settle(self, fitting: list[Lane], others: list[Lane]) -> tuple[int, ...]:
        """An order of all leaves in which every batch has its members in the same order in all its fitting lanes."""
        for lane in fitting:
            for a, b in chain.from_iterable(map(pairwise, lane.runs)):
                if not self._agree(self._separation(a, b), (GROUND, True)) and lane.slot != RESULTS:
                    raise Contradiction(lane)
        for first, second in combinations(fitting, 2):
            if first.batch == second.batch and not self._align(first, second):
                raise Contradiction(second)
        pairs = [lane for lane in others if lane.is_pair]
        for first, second in combinations([*fitting, *pairs], 2):
            if first.batch == second.batch:
                self._align(first, second)  # only a wish: it may fail
        return tuple(sorted(self.path_of, key=self._place))

    def _align(self, first: Lane, second: Lane) -> bool:
        """Asks for the same order of members in both; False if that contradicts what was asked for before."""
        agreed = True
        for x, y in combinations(range(len(first.runs)), 2):
            if first.runs[x] != first.runs[y] and second.runs[x] != second.runs[y]:
                separations = [self._separation(lane.runs[x][0], lane.runs[y][0]) for lane in (first, second)]
                agreed = self._agree(*separations) and agreed
        return agreed

    def _separation(self, a: int, b: int) -> Separation:
        part = next((x, y) for x, y in zip(self.path_of[a], self.path_of[b], strict=False) if x != y)
        return part[0][0], part[0][1] < part[1][1]

    def _agree(self, first: Separation, second: Separation) -> bool:
        (a, same_a), (b, same_b) = self._find(first[0]), self._find(second[0])
        same = (first[1] == second[1]) == (same_a == same_b)
        if a == b:
            return same
        self.towards[max(a, b)] = (min(a, b), same)  # GROUND, the smallest number, stays the root of its set
        return True

    def _find(self, number: int) -> tuple[int, bool]:
        """The root of a node's set, and whether the node has the same direction as that root."""
        same = True
        while (step := self.towards[number])[0] != number:
            number, same = step[0], same == step[1]
        return number, same

    def _place(self, value: int) -> list[int]:
        """The sort key of a value: sorting by it reads the leaves of the tree in the directions that were found."""
        return [place if self._find(number)[1] else -place for number, place in self.path_of[value]]
