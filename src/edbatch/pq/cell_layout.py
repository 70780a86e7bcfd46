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

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
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
    is_local: element i of a result needs only elements i of the operands, so results may overwrite operands.
    """

    signature: Hashable
    operands: tuple[Operand, ...]
    results: Run
    is_wide: bool = False
    is_local: bool = False

    @property
    def runs(self) -> list[Run]:
        """The operands that are values."""
        return [operand for operand in self.operands if not isinstance(operand, Parameter)]


@dataclass(frozen=True)
class CellGraph:
    """Ops in an order in which they can run; value `v` takes `sizes[v]` bytes. Values that no op makes are inputs.

    outside: values in tensors of their own, which no order can put beside others. kept: values that are still needed
    when all ops have run, or that are not to be overwritten. blocks: sets of values that are copied in or out as one,
    so they should lie side by side. homes: values that overwrite others, with these; see `in_place`. tensors: values
    outside that are parts of a tensor, with its name and where in it they begin.

    >>> x, i, o = 0, 1, 2
    >>> CellGraph((8, 8, 8), (CellOp("tanh", ((x,),), (i,)), CellOp("tanh", ((i,),), (o,))), frozenset({x, o}))
    CellGraph(2 ops, 3 values, 2 outside)
    """

    sizes: tuple[int, ...]
    ops: tuple[CellOp, ...]
    outside: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    blocks: tuple[frozenset[int], ...] = ()
    homes: tuple[tuple[int, int], ...] = ()
    tensors: tuple[tuple[int, tuple[Hashable, int]], ...] = ()

    @cached_property
    def tensor_of(self) -> dict[int, tuple[Hashable, int]]:
        return dict(self.tensors)

    @cached_property
    def _home_of(self) -> dict[int, int]:
        return dict(self.homes)

    def home(self, run: Iterable[int]) -> Run:
        """The memory of values: that of the first value of those that overwrite each other."""
        return tuple([self._home_of.get(value, value) for value in run])

    @property
    def made_by(self) -> dict[int, int]:
        """The op that makes a value."""
        return {value: i for i, op in enumerate(self.ops) for value in op.results}

    @property
    def inside(self) -> list[int]:
        """The values that are laid out: those that ops read or make, but for the ones outside and those that overwrite
        others."""
        found = {v for op in self.ops for run in (*op.runs, op.results) for v in run}
        return sorted(set(self.home(found)) - self.outside)

    @cached_property
    def _num_parts(self) -> Counter[Hashable]:
        return Counter(tensor for _, (tensor, _) in self.tensors)

    def cost(self, run: Run) -> int:
        """How many calls it takes to copy these values; parts of a tensor outside must be cut out first."""
        return 1 + sum(self._num_parts[self.tensor_of[v][0]] > 1 for v in run if v in self.tensor_of)

    def num_bytes(self, run: Run) -> int:
        return sum(self.sizes[value] for value in run)

    def check(self) -> None:
        """Raise a GraphError if a value is made twice or read before it is made, or if a signature has two sizes."""
        made_by, form_of = self.made_by, dict[Hashable, list[int]]()
        for i, op in enumerate(self.ops):
            if any(made_by[value] != i for value in op.results) or len(set(op.results)) < len(op.results):
                raise GraphError(f"op {i} makes {op.results}, of which some are made twice; values are made once")
            for value in chain.from_iterable(op.runs):
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
    """How a batch reads one slot (or writes its results: slot -1), and the values that must be copied for that.

    grid: of a broadcast of several values, (outer, inner): members are numbered by rows of this grid, and either all of
    a row or all of a column read the same.
    """

    batch: int
    slot: int
    kind: Reading
    copied: Run = ()
    grid: tuple[int, int] | None = None


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
        """What is copied; operands that want the same values in the same order share a copy. Results that are not
        written in place are copied one by one."""
        operands = dict.fromkeys(a.copied for a in self.accesses if a.slot >= 0 and a.copied)
        scattered = [a.batch for a in self.accesses if a.slot < 0 and a.copied]
        return (*operands, *(self.graph.ops[i].results for batch in scattered for i in self.batches[batch]))

    @property
    def num_copies(self) -> int:
        return len(self.copies)

    @property
    def num_calls(self) -> int:
        """How many kernels are launched; a block that does not lie side by side takes one for each of its parts."""
        parts = sum(self._num_parts(block) - 1 for block in self.graph.blocks)
        return len(self.batches) + sum(map(self.graph.cost, self.copies)) + parts

    def _num_parts(self, block: frozenset[int]) -> int:
        inside = set(self.graph.home(block))
        return max(1, sum(b in inside and a not in inside for a, b in pairwise([-1, *self.order])))

    @property
    def bytes_copied(self) -> int:
        """For one example."""
        return sum(map(self.graph.num_bytes, self.copies))

    def __repr__(self) -> str:
        work = f"{len(self.graph.ops)} ops, {len(self.batches)} batches"
        return f"CellLayout({work}, {self.num_copies} copies of {self.bytes_copied} bytes)"


def lay_out_cell(graph: CellGraph) -> CellLayout:
    """Batch the ops of a cell and lay its values out so that few calls are made; never more than in plain order.

    >>> gates = [CellOp("product", ((0,), Parameter(g)), (v,), is_wide=True) for g, v in (("i", 1), ("u", 3), ("o", 5))]
    >>> sigmoids = [CellOp("sigmoid", ((v,),), (v + 1,)) for v in (1, 5)]
    >>> body = CellGraph((8,) * 7, (*gates, *sigmoids), outside=frozenset({0}))
    >>> lay_out_cell(body), lay_out_cell(body).order
    (CellLayout(5 ops, 2 batches, 0 copies of 0 bytes), (1, 5, 3, 2, 6))
    >>> in_plain_order(body)
    CellLayout(5 ops, 2 batches, 0 copies of 0 bytes)
    """
    from edbatch.pq.cell_order import propose_orders

    plain = in_plain_order(graph)
    if len(plain.order) > MAX_VALUES:
        return plain
    batches = plain.batches
    graph = in_place(graph, batches)
    orders = [*propose_orders(graph, batches), [value for value in plain.order if value in set(graph.inside)]]
    planned = [verify(graph, divide(graph, batches, order), order) for order in orders]
    return min(*planned, plain, key=lambda layout: (layout.num_calls, layout.bytes_copied))


def in_plain_order(graph: CellGraph) -> CellLayout:
    """The layout without planning: the same batches, values in the order in which they make them, none overwritten."""
    graph.check()
    batches = find_batches(graph)
    made = [value for members in batches for i in members for value in graph.ops[i].results]
    inputs = [value for value in graph.inside if value not in set(made)]
    return verify(graph, batches, [*inputs, *(value for value in made if value not in graph.outside)])


def find_batches(graph: CellGraph) -> tuple[tuple[int, ...], ...]:
    """The fewest batches possible, or, where those take too long to find, those of bound greedy."""
    made_by = graph.made_by
    inputs = [sorted({made_by[v] for run in op.runs for v in run if v in made_by}) for op in graph.ops]
    ops = Graph.from_lists([op.signature for op in graph.ops], inputs)
    try:
        schedule = Exact(max_states=MAX_STATES).run(ops)
    except PolicyError:
        schedule = BoundGreedy().run(ops)
    return tuple(tuple(members) for _, members in schedule.batches)


def in_place(graph: CellGraph, batches: Sequence[Sequence[int]]) -> CellGraph:
    """The graph in which the results of elementwise batches overwrite operands that nothing else reads. So there are
    fewer values to lay out, and what several batches read and write lies in the same places."""
    readers = Counter(v for op in graph.ops for v in {v for run in op.runs for v in run})
    made_by, home = graph.made_by, dict[int, int]()

    def fits(op: CellOp, operand: Operand) -> bool:
        if isinstance(operand, Parameter) or not graph.outside.isdisjoint((*operand, *op.results)):
            return False
        is_free = all(readers[v] == 1 and v in made_by and v not in graph.kept for v in operand)
        sizes = [[graph.sizes[v] for v in run] for run in (operand, op.results)]
        return is_free and sizes[0] == sizes[1] and len(set(operand)) == len(operand)

    for members in batches:
        ops = [graph.ops[i] for i in members]
        for slot in range(len(ops[0].operands)) if ops[0].is_local else ():
            if all(fits(op, op.operands[slot]) for op in ops):  # each read by one op, so all differ
                for op in ops:
                    for result, operand in zip(op.results, op.operands[slot], strict=True):  # type: ignore[arg-type]
                        home[result] = home.get(operand, operand)
                break
    return replace(graph, homes=tuple(home.items()))


def divide(graph: CellGraph, batches: Sequence[Sequence[int]], order: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Batches that would need copies in this order as several without, unless these are more calls."""
    memory = _Beginnings(graph, order)
    divided: list[tuple[int, ...]] = []
    for members in batches:
        members = memory.sorted_by_results(members)
        copies = [a for a in memory.accesses(members) if a.kind is Reading.COPY]
        parts: list[tuple[int, ...]] = []
        for i in members if copies else ():
            longer = (*parts[-1], i) if parts else ()
            if longer and all(a.kind is not Reading.COPY for a in memory.accesses(longer)):
                parts[-1] = longer
            else:
                parts.append((i,))
        calls = 1 + sum(len(members) if a.slot < 0 else graph.cost(a.copied) for a in copies)
        divided += parts if copies and len(parts) <= calls else [members]
    return tuple(divided)


def verify(graph: CellGraph, batches: Sequence[Sequence[int]], order: Sequence[int]) -> CellLayout:
    """Find out how every operand is read and every result written, when values lie in this order."""
    memory = _Beginnings(graph, order)
    ordered = tuple(map(memory.sorted_by_results, batches))
    accesses = [
        replace(access, batch=number) for number, members in enumerate(ordered) for access in memory.accesses(members)
    ]
    return CellLayout(graph, ordered, tuple(order), tuple(accesses))


def split_operands(operands: Sequence[Operand]) -> tuple[list[Parameter], list[Run]]:
    """The operands of a slot: either all are parameters, or all are values."""
    parameters = [operand for operand in operands if isinstance(operand, Parameter)]
    return parameters, [operand for operand in operands if not isinstance(operand, Parameter)]


class _Beginnings:
    """The byte at which each value begins."""

    def __init__(self, graph: CellGraph, order: Sequence[int]) -> None:
        self.graph, self.sizes = graph, graph.sizes
        self.begin: dict[int, int] = {}
        end = 0
        for value in order:
            self.begin[value] = end
            end += self.sizes[value]

    def sorted_by_results(self, members: Sequence[int]) -> tuple[int, ...]:
        """The members of a batch in the order in which their results lie."""
        firsts = [self.begin.get(self.graph.home(self.graph.ops[i].results)[0]) for i in members]
        known = [(first, i) for first, i in zip(firsts, members, strict=True) if first is not None]
        return tuple(i for _, i in sorted(known)) if len(known) == len(members) else tuple(members)

    def accesses(self, members: Sequence[int]) -> list[Access]:
        """How a batch of these members writes its results and reads its operands."""
        ops = [self.graph.ops[i] for i in members]
        wide = len(ops) > 1 and ops[0].is_wide
        found = [replace(self.classify([op.results for op in ops], side_by_side=wide), slot=-1)]
        grid = None
        for slot in range(len(ops[0].operands)):
            parameters, runs = split_operands([op.operands[slot] for op in ops])
            if parameters:
                kind = Reading.STACKED if len(set(parameters)) > 1 else Reading.BROADCAST
                found.append(Access(0, slot, kind))
                continue
            access = self.classify(runs)
            if access.grid is not None and (not ops[0].is_local or grid not in (None, access.grid)):
                # one call has one shape, and products take a list of operands, not a grid
                access = Access(0, 0, Reading.COPY, tuple(chain.from_iterable(runs)))
            else:
                grid = grid or access.grid
            found.append(replace(access, slot=slot))
        return found

    def classify(self, runs: Sequence[Run], side_by_side: bool = False) -> Access:
        distinct = tuple(dict.fromkeys(runs))
        times = len(runs) // len(distinct)
        repeated = tuple(run for run in distinct for _ in range(times))
        copy = Access(0, 0, Reading.COPY, tuple(chain.from_iterable(runs)))
        if tuple(runs) not in (repeated, distinct * times):  # an expanded view cannot repeat values like this
            return copy
        if not self._is_strided(list(map(self.graph.home, distinct)), side_by_side):
            return copy
        if times == 1 or len(distinct) == 1:
            return Access(0, 0, Reading.VIEW if times == 1 else Reading.BROADCAST)
        grid = (len(distinct), times) if tuple(runs) == repeated else (times, len(distinct))
        return Access(0, 0, Reading.BROADCAST, grid=grid)

    def _is_strided(self, runs: Sequence[Run], side_by_side: bool) -> bool:
        """Whether every run is one range and each begins the same distance after the one before it."""
        if len(runs) == 1 and len(runs[0]) == 1:
            return True  # also in a tensor of its own
        if any(value not in self.begin for run in runs for value in run):
            return self._are_parts(runs) and not side_by_side
        if any(self.begin[b] != self.begin[a] + self.sizes[a] for run in runs for a, b in pairwise(run)):
            return False
        if side_by_side:
            return all(self.begin[b[0]] == self.begin[a[-1]] + self.sizes[a[-1]] for a, b in pairwise(runs))
        steps = {self.begin[b[0]] - self.begin[a[0]] for a, b in pairwise(runs)}
        return len(steps) <= 1 and min(steps, default=1) > 0

    def _are_parts(self, runs: Sequence[Run]) -> bool:
        """Whether values outside are equal parts of one tensor, at equal distances."""
        places = [self.graph.tensor_of.get(run[0]) for run in runs if len(run) == 1]
        if len(places) < len(runs) or None in places:
            return False
        begins = [place[1] for place in places if place is not None]
        steps = {b - a for a, b in pairwise(begins)}
        return len({place[0] for place in places if place is not None}) == 1 and len(steps) == 1 and min(steps) > 0
