"""The cell plan, for people: the ops of a cell, which are batched, where values lie, what is copied, and the code.

In: a compiled cell. Out: a `CellPlan`, which prints itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from edbatch.cells.compiled import CompiledCell
from edbatch.inspection.cell_graph import AbstractCell, abstract
from edbatch.pq.cell_layout import CellLayout, Reading, in_plain_order, lay_out_cell


@dataclass(frozen=True)
class CellPlan:
    """What planning found out about the forward part of a cell; `print(plan)` shows all of it.

    without: values lie in the order in which the ops make them. planned: they lie in the order that the PQ tree found.
    gathered: like planned, but the cell's inputs are first gathered into its memory, where the layout wants them;
    inputs that could have been read in place are then gathered as well.

    source: the code that runs, which does not follow these layouts. Products of one operand are stacked, in the order
    of the body. Fused kernels hold elementwise values in registers, so they make none of these copies; torch ops make
    their own.
    """

    name: str
    cell: AbstractCell
    without: CellLayout
    planned: CellLayout
    gathered: CellLayout
    source: str

    @property
    def num_ops(self) -> int:
        return len(self.planned.graph.ops)

    @property
    def num_batches(self) -> int:
        return len(self.planned.batches)

    def __repr__(self) -> str:
        copies = f"{self.without.num_copies} → {self.planned.num_copies} → {self.gathered.num_copies} copies"
        return f"CellPlan({self.name}: {self.num_ops} ops, {self.num_batches} batches, {copies})"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.name}: {self.num_ops} ops in {self.num_batches} batches"
        yield "\nops of one example; (a b) reads a and b as one, shared values are the same for all rows:"
        yield from (f"  {text}" for text in self.cell.op_names)
        yield "\nbatches, and how each reads its operands and writes its results (bytes are of one row):"
        for number, members in enumerate(self.planned.batches):
            yield from self._batch(number, members)
        yield "\nvalues in memory:"
        yield f"  {self._values(self.planned.order)}"
        yield "\ncopies:"
        for text, layout in (
            ("without planning", self.without),
            ("with planning", self.planned),
            ("with inputs gathered side by side", self.gathered),
        ):
            what = "; ".join(f"({self._values(run, ', ')})" for run in layout.copies)
            yield f"  {text}: {layout.num_copies}, {layout.bytes_copied} bytes{': ' if what else ''}{what}"
        yield f"\nthe code that runs:\n{self.source}"

    def _batch(self, number: int, members: tuple[int, ...]) -> Iterator[str]:
        graph = self.planned.graph
        results = self._values([value for i in members for value in graph.ops[i].results], ", ")
        head = self.cell.op_names[members[0]].partition(" = ")[2].partition("(")[0]
        reads = []
        for access in self.planned.accesses:
            if access.batch == number and access.slot >= 0:
                reads.append(f"{access.kind} of {self._values(access.copied, ', ')}" if access.copied else access.kind)
            elif access.batch == number and access.kind is Reading.COPY:
                reads.append("results scattered")
        wide = ", one product with stacked weights" if len(members) > 1 and graph.ops[members[0]].is_wide else ""
        yield f"  {number}: {head} × {len(members)} → {results}{wide}: {', '.join(reads)}"

    def _values(self, values: tuple[int, ...] | list[int], between: str = " ") -> str:
        return between.join(self.cell.value_names[value] for value in values)


def plan_of(kernel: CompiledCell) -> CellPlan:
    """The cell plan of the forward part of a compiled cell."""
    cell = abstract(kernel.body)
    placed = replace(cell.graph, outside=cell.graph.outside - cell.inputs)
    return CellPlan(
        kernel.name, cell, in_plain_order(cell.graph), lay_out_cell(cell.graph), lay_out_cell(placed), kernel.source
    )
