"""The memory plan of a cell's programs: which of their ops run as one call, and which values lie beside each other.

In: a body and its programs (inference alone, or forward and backward). Out: a `MemoryPlan` for each of them. A program
has a *work space*. For a batch of B rows, a value of n elements takes B · n elements there, row after row; values that
are read or written together lie one after the other, so that they are one contiguous range. What forward saves of them
is copied as one to memory that lasts, and from there to the work space of backward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from edbatch.cells.body.body import Body
from edbatch.cells.body.program import Program
from edbatch.cells.torch_ops.program_graph import ProgramGraph, abstract
from edbatch.pq.cell_layout import Access, CellLayout, Reading, Run, divide, in_plain_order, lay_out_cell, verify
from edbatch.spec import Spec


@dataclass(frozen=True)
class Block:
    """A range of the work space that is copied from or to a range of what is saved; all in elements of one row."""

    begin: int
    saved_begin: int
    length: int


@dataclass(frozen=True)
class MemoryPlan:
    """How one program runs.

    layout: of the values that lie in the work space. numbers: for each op of the layout that of its result in the body.
    are_products: which of them are products with weights, or sums of these.
    saved: the values in the work space that forward saves, in the order in which they lie there. saved_apart: of what
    is saved, the numbers of all others.
    """

    source: ProgramGraph
    layout: CellLayout
    numbers: tuple[int, ...]
    are_products: tuple[bool, ...]
    saved: Run = ()
    saved_apart: tuple[int, ...] = ()

    @cached_property
    def begin(self) -> dict[int, int]:
        """Where each value in the work space begins, also those that overwrite others; in elements of one row."""
        at, begins = 0, dict[int, int]()
        for value in self.layout.order:
            begins[value] = at
            at += self.length(value)
        return begins | {value: begins[home] for value, home in self.layout.graph.homes if home in begins}

    @property
    def width(self) -> int:
        """How many elements of one row the work space has."""
        return sum(map(self.length, self.layout.order))

    def length(self, value: int) -> int:
        return self.source.atoms[value].length

    def place(self, index: int) -> int | None:
        """Where a value of the body begins in the work space, if it lies there in one piece."""
        run = self.source.runs.get(index, ())
        return self.begin.get(run[0]) if len(run) == 1 else None

    @property
    def placed_rows(self) -> list[tuple[int, int]]:
        """The operands of the cell that are gathered into the work space, and the values they are."""
        return [(slot, value) for value, slot in self.source.rows.items() if value in self.begin]

    @property
    def saved_width(self) -> int:
        return sum(map(self.length, self.saved))

    def saved_specs(self, specs: Sequence[Spec]) -> tuple[Spec, ...]:
        """Of the buffers that forward saves: those of values apart, then that of all others."""
        together = (Spec((self.saved_width,), self.source.dtype, self.source.device),) if self.saved else ()
        return (*[specs[number] for number in self.saved_apart], *together)

    def saved_number(self, number: int) -> int | None:
        """The new number of a saved value; None if it is saved together with others."""
        return self.saved_apart.index(number) if number in self.saved_apart else None

    @property
    def blocks(self) -> list[Block]:
        """What is copied between work space and saved values."""
        blocks: list[Block] = []
        at = 0
        for value in self.saved:
            begin, length = self.begin[value], self.length(value)
            last = blocks[-1] if blocks else None
            if last is not None and last.begin + last.length == begin:
                blocks[-1] = replace(last, length=last.length + length)
            else:
                blocks.append(Block(begin, at, length))
            at += length
        return blocks

    def accesses(self, batch: int) -> dict[int, Access]:
        """How a batch reads each slot, and writes its results: slot -1."""
        return {access.slot: access for access in self.layout.accesses if access.batch == batch}


def plan_memory(
    body: Body, programs: Sequence[Program], apart: frozenset[int] = frozenset(), *, planned: bool = True
) -> list[MemoryPlan] | None:
    """A plan for each program; None if no two ops can run as one. Without planning, values lie in the order in which
    batches make them.

    Args:
        apart: values that are saved by themselves, because finish reads them, over all rows of a mini-batch.
    """
    source = abstract(body, programs, apart)
    if max(Counter(op.signature for op in source.graph.ops).values(), default=0) < 2:
        return None
    joint = _lay_out(source) if planned else in_plain_order(source.graph)
    parts = [_part(source, joint, number, planned=planned) for number in range(len(programs))]
    if not any(len(members) > 1 for layout, _ in parts for members in layout.batches):
        return None
    placed = [_placed(layout) | _sums(source, layout, mine) for layout, mine in parts]
    together = set(joint.graph.home(source.saved)) & set().union(*placed)
    saved = tuple(value for value in joint.order if value in together)
    numbers = tuple(
        place.number
        for place, value in programs[0].dests.items()
        if place.group == "saved" and not _is_within(source.runs.get(value.index, ()), joint, together, source.saved)
    )
    plans = []
    for (layout, mine), values in zip(parts, placed, strict=True):
        order = [value for value in joint.order if value in values or value in together]
        batches = divide(layout.graph, layout.batches, order) if planned else layout.batches
        are_products = tuple(source.are_products[i] for i in mine)
        ops = tuple(source.numbers[i] for i in mine)
        plans.append(MemoryPlan(source, verify(layout.graph, batches, order), ops, are_products, saved, numbers))
    return plans


def lay_out_program(body: Body, program: Program) -> tuple[ProgramGraph, CellLayout]:
    """The graph of a program that stands alone and its layout, for people to look at."""
    source = abstract(body, [program])
    return source, _lay_out(source)


def _is_within(run: Run, joint: CellLayout, together: set[int], saved: frozenset[int]) -> bool:
    return bool(run) and saved.issuperset(run) and together.issuperset(joint.graph.home(run))


def _lay_out(source: ProgramGraph) -> CellLayout:
    """Operands of the cell and values for its end lie in tensors of their own, or beside others, if that saves calls:
    the ones are gathered there, the others copied from there."""
    copied = {value for access in in_plain_order(source.graph).accesses for value in access.copied}
    rows, ends = copied & source.rows.keys(), copied & source.ends
    found = []
    for inside in {frozenset(values) for values in (set[int](), rows, ends, rows | ends)}:
        layout = lay_out_cell(replace(source.graph, outside=source.graph.outside - inside))
        parts = sum(map(len, layout.copies))  # each takes about half as long as a call, beside the call of the copy
        calls = layout.num_calls + _num_products(source, layout) + len(inside & ends) + 0.5 * parts
        found.append((calls, layout.bytes_copied, len(inside), layout))
    return min(found, key=lambda candidate: candidate[:3])[-1]


def _num_products(source: ProgramGraph, layout: CellLayout) -> int:
    """How many calls of sums of products are more than one per batch."""
    firsts = [members[0] for members in layout.batches if source.are_products[members[0]]]
    return sum(len(layout.graph.ops[i].operands) // 2 - 1 for i in firsts)


def _part(source: ProgramGraph, joint: CellLayout, number: int, *, planned: bool) -> tuple[CellLayout, list[int]]:
    """The layout of one program, and the numbers of its ops in the graph of all."""
    mine = [i for i, program in enumerate(source.program_of) if program == number]
    new = {i: k for k, i in enumerate(mine)}
    graph = replace(joint.graph, ops=tuple(joint.graph.ops[i] for i in mine))
    batches = [tuple(new[i] for i in members) for members in joint.batches if members[0] in new]
    inside = set(graph.inside)
    order = [value for value in joint.order if value in inside]
    batches = list(divide(graph, batches, order)) if planned else batches
    return verify(graph, batches, order), mine


def _placed(layout: CellLayout) -> set[int]:
    """The values that lie beside others for a reason: some batch reads or writes them together, or they are parts of a
    value."""
    found: set[int] = set()
    for access in layout.accesses:
        members = layout.batches[access.batch]
        lanes = [
            layout.graph.ops[i].results if access.slot < 0 else layout.graph.ops[i].operands[access.slot]
            for i in members
        ]
        values = {v for lane in lanes if isinstance(lane, tuple) for v in layout.graph.home(lane)}
        if len(values) > 1 and access.kind is not Reading.COPY:
            found |= values
    return found - layout.graph.outside


def _sums(source: ProgramGraph, layout: CellLayout, mine: list[int]) -> set[int]:
    """The results of products of several operands, which are added up there."""
    sums = [op for op, i in zip(layout.graph.ops, mine, strict=True) if source.are_products[i] and len(op.runs) > 1]
    return {value for op in sums for value in layout.graph.home(op.results)} - layout.graph.outside
