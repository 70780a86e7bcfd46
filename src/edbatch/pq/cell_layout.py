"""Inside a cell: which ops run as one batch, where their values lie in memory, and what must be copied because of that.

In: a `CellGraph`, the ops of a cell with their operands. Out: a `CellLayout`: in-cell batches, the order of values in
memory, and for every operand and result of every batch whether it is read and written in place.

All values of one example lie one after the other in one row of memory. The rows of a mini-batch are a matrix, in which
a value is a range of columns. What a batch reads as one operand needs no copy if it is *strided* in this matrix: the
values of each member (op of the batch) begin the same distance after those of the member before. Inputs and outputs may
lie *outside*, in tensors of their own. `cell_order` proposes orders of the values, by a PQ tree. `verify` finds the
copies from an order alone, however it was found.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, pairwise

from edbatch.errors import GraphError, PolicyError
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.policies import BoundGreedy, Exact

MAX_STATES = 10_000  # limit of the search for a shortest schedule; beyond it, bound greedy decides
MAX_VALUES = 2_000  # cells with more keep the plain order: to look for a better one would take a minute
Run = tuple[int, ...]  # values that are read or written as one, so they must lie side by side, in this order


@dataclass(frozen=True, slots=True)
class Parameter:
    """An operand that all examples share. The parameters of a batch can be stacked in any order, once for all."""

    name: Hashable


Operand = Run | Parameter


@dataclass(frozen=True, slots=True)
class CellOp:
    """An op of one example. Ops of one signature may run as one batch.

    is_wide: a batch of such ops is one matrix product with stacked weights, which writes its results side by side.
    """

    signature: Hashable
    operands: tuple[Operand, ...]
    results: Run
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class CellGraph:
    """Ops in an order in which they can run; value `v` takes `sizes[v]` bytes. Values that no op makes are inputs.

    outside: values in tensors of their own, which no order can put beside others.

    >>> x, i, o = 0, 1, 2
    >>> CellGraph((8, 8, 8), (CellOp("tanh", ((x,),), (i,)), CellOp("tanh", ((i,),), (o,))), frozenset({x, o}))
    CellGraph(2 ops, 3 values, 2 outside)
    """

    sizes: tuple[int, ...]
    ops: tuple[CellOp, ...]
    outside: frozenset[int] = frozenset()

    @property
    def made_by(self) -> dict[int, int]:
        """The op that makes a value."""
        return {value: i for i, op in enumerate(self.ops) for value in op.results}

    def num_bytes(self, run: Run) -> int:
        return sum(self.sizes[value] for value in run)

    def check(self) -> None:
        """Raise a GraphError if a value is made twice or read before it is made, or if a signature has two sizes."""
        made_by, form_of = self.made_by, dict[Hashable, list[int]]()
        for i, op in enumerate(self.ops):
            if any(made_by[value] != i for value in op.results) or len(set(op.results)) < len(op.results):
                raise GraphError(f"op {i} makes {op.results}, of which some are made twice; values are made once")
            for value in chain.from_iterable(o for o in op.operands if not isinstance(o, Parameter)):
                if made_by.get(value, -1) >= i:
                    raise GraphError(f"op {i} reads value {value}, which is made later; give ops in running order")
            form = [-1 if isinstance(run, Parameter) else self.num_bytes(run) for run in (*op.operands, op.results)]
            if form_of.setdefault(op.signature, form) != form:
                raise GraphError(
                    f"op {i} has operands or results of other sizes than others of signature {op.signature!r}; "
                    "give it another signature"
                )

    def __repr__(self) -> str:
        return f"CellGraph({len(self.ops)} ops, {len(self.sizes)} values, {len(self.outside)} outside)"


class Reading(StrEnum):
    VIEW = "view"
    BROADCAST = "broadcast"
    STACKED = "stacked"  # parameters
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Access:
    """How a batch reads one slot (or writes its results: slot -1), and the values that must be copied for that."""

    batch: int
    slot: int
    kind: Reading
    copied: Run = ()


@dataclass(frozen=True)
class CellLayout:
    """Where the values of a cell lie, and how its batches read them.

    batches: in launch order; the ops of each stand in the order in which their results lie. order: the values that are
    not outside, as they lie in memory. accesses: how every operand is read and every result written.
    """

    graph: CellGraph
    batches: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    accesses: tuple[Access, ...]

    @property
    def copies(self) -> tuple[Run, ...]:
        """What is copied; operands that want the same values in the same order share a copy."""
        return tuple(run for _, run in dict.fromkeys((a.slot < 0, a.copied) for a in self.accesses if a.copied))

    @property
    def num_copies(self) -> int:
        return len(self.copies)

    @property
    def bytes_copied(self) -> int:
        """For one example."""
        return sum(map(self.graph.num_bytes, self.copies))

    def __repr__(self) -> str:
        work = f"{len(self.graph.ops)} ops, {len(self.batches)} batches"
        return f"CellLayout({work}, {self.num_copies} copies of {self.bytes_copied} bytes)"


def lay_out_cell(graph: CellGraph) -> CellLayout:
    """Batch the ops of a cell and lay its values out so that little is copied; never more than in plain order.

    >>> gates = [CellOp("product", ((0,), Parameter(g)), (v,), is_wide=True) for g, v in (("i", 1), ("o", 3))]
    >>> sigmoids = [CellOp("sigmoid", ((v,),), (v + 1,)) for v in (1, 3)]
    >>> body = CellGraph((8,) * 5, (gates[0], sigmoids[0], gates[1], sigmoids[1]), outside=frozenset({0}))
    >>> lay_out_cell(body), lay_out_cell(body).order
    (CellLayout(4 ops, 2 batches, 0 copies of 0 bytes), (1, 3, 2, 4))
    >>> in_plain_order(body)
    CellLayout(4 ops, 2 batches, 1 copies of 16 bytes)
    """
    from edbatch.pq.cell_order import propose_orders

    graph.check()
    batches = find_batches(graph)
    plain = verify(graph, batches, _plain_order(graph))
    if len(plain.order) > MAX_VALUES:
        return plain
    planned = [verify(graph, batches, order) for order in propose_orders(graph, batches)]
    return min(*planned, plain, key=lambda layout: (layout.bytes_copied, layout.num_copies))


def in_plain_order(graph: CellGraph) -> CellLayout:
    """The layout without planning: the same batches, values in the order in which the ops make them."""
    graph.check()
    return verify(graph, find_batches(graph), _plain_order(graph))


def _plain_order(graph: CellGraph) -> tuple[int, ...]:
    made = [value for op in graph.ops for value in op.results]
    inputs = sorted(set(range(len(graph.sizes))) - set(made))
    return tuple(value for value in [*inputs, *made] if value not in graph.outside)


def find_batches(graph: CellGraph) -> tuple[tuple[int, ...], ...]:
    """The fewest batches possible, or, where those take too long to find, those of bound greedy."""
    made_by = graph.made_by
    inputs = [
        sorted({made_by[v] for operand in op.operands if not isinstance(operand, Parameter) for v in operand
                if v in made_by})
        for op in graph.ops
    ]  # fmt: skip
    ops = Graph.from_lists([op.signature for op in graph.ops], inputs)
    try:
        schedule = Exact(max_states=MAX_STATES).run(ops)
    except PolicyError:
        schedule = BoundGreedy().run(ops)
    return tuple(tuple(members) for _, members in schedule.batches)


def verify(graph: CellGraph, batches: Sequence[Sequence[int]], order: Sequence[int]) -> CellLayout:
    """Find out how every operand is read and every result written, when values lie in this order."""
    memory = _Beginnings(graph.sizes, order)
    ordered = tuple(memory.sorted_by_results(graph, members) for members in batches)
    accesses = []
    for number, members in enumerate(ordered):
        ops = [graph.ops[i] for i in members]
        wide = len(ops) > 1 and ops[0].is_wide
        written = memory.classify([op.results for op in ops], side_by_side=wide)
        accesses.append(replace(written, batch=number, slot=-1))
        for slot in range(len(ops[0].operands)):
            parameters, runs = split_operands([op.operands[slot] for op in ops])
            if parameters:
                kind = Reading.STACKED if len(set(parameters)) > 1 else Reading.BROADCAST
                accesses.append(Access(number, slot, kind))
            else:
                accesses.append(replace(memory.classify(runs), batch=number, slot=slot))
    return CellLayout(graph, ordered, tuple(order), tuple(accesses))


def split_operands(operands: Sequence[Operand]) -> tuple[list[Parameter], list[Run]]:
    """The operands of a slot: either all are parameters, or all are values."""
    parameters = [operand for operand in operands if isinstance(operand, Parameter)]
    return parameters, [operand for operand in operands if not isinstance(operand, Parameter)]


class _Beginnings:
    """The byte at which each value begins."""

    def __init__(self, sizes: Sequence[int], order: Sequence[int]) -> None:
        self.sizes = sizes
        self.begin: dict[int, int] = {}
        end = 0
        for value in order:
            self.begin[value] = end
            end += sizes[value]

    def sorted_by_results(self, graph: CellGraph, members: Sequence[int]) -> tuple[int, ...]:
        """The members of a batch in the order in which their results lie."""
        firsts = [self.begin.get(graph.ops[i].results[0]) for i in members]
        known = [(first, i) for first, i in zip(firsts, members, strict=True) if first is not None]
        return tuple(i for _, i in sorted(known)) if len(known) == len(members) else tuple(members)

    def classify(self, runs: Sequence[Run], side_by_side: bool = False) -> Access:
        distinct = tuple(dict.fromkeys(runs))
        times = len(runs) // len(distinct)
        repeated = tuple(run for run in distinct for _ in range(times))
        if tuple(runs) not in (repeated, distinct * times):  # an expanded view cannot repeat values like this
            return Access(0, 0, Reading.COPY, tuple(chain.from_iterable(runs)))
        if not self._is_strided(distinct, side_by_side):
            return Access(0, 0, Reading.COPY, tuple(chain.from_iterable(distinct)))
        return Access(0, 0, Reading.VIEW if times == 1 else Reading.BROADCAST)

    def _is_strided(self, runs: Sequence[Run], side_by_side: bool) -> bool:
        """Whether every run is one range and each begins the same distance after the one before it."""
        if len(runs) == 1 and len(runs[0]) == 1:
            return True  # also in a tensor of its own
        if any(value not in self.begin for run in runs for value in run):
            return False
        if any(self.begin[b] != self.begin[a] + self.sizes[a] for run in runs for a, b in pairwise(run)):
            return False
        if side_by_side:
            return all(self.begin[b[0]] == self.begin[a[-1]] + self.sizes[a[-1]] for a, b in pairwise(runs))
        steps = {self.begin[b[0]] - self.begin[a[0]] for a, b in pairwise(runs)}
        return len(steps) <= 1 and min(steps, default=1) > 0
