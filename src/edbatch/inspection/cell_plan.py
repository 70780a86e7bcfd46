"""The cell plan, for people: the ops of a cell, which run as one call, where values lie, what is copied, and the code.

In: a compiled cell. Out: a `CellPlan`, which prints itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edbatch.cells.body.body import Body, Op, Val
from edbatch.cells.body.split import inference
from edbatch.cells.compiled import CompiledCell
from edbatch.cells.torch_ops.memory_plan import lay_out_program
from edbatch.cells.torch_ops.program_graph import ProgramGraph
from edbatch.pq.cell_layout import CellLayout, Reading, in_plain_order
from edbatch.switches import ALL_ON, Switches


@dataclass(frozen=True)
class CellPlan:
    """How inference of a cell is batched inside; `print(plan)` shows all of it.

    form: how the cell runs, and why. planned: the batches and the order of values that torch ops follow; fused kernels
    need none, because they hold elementwise values in registers. without: the same without planning, values lie in the
    order in which batches make them. gathered: the operands of the cell that are gathered to where the plan wants them.
    """

    name: str
    form: str
    body: Body
    source: ProgramGraph
    without: CellLayout
    planned: CellLayout
    gathered: tuple[int, ...]
    code: str

    @property
    def num_ops(self) -> int:
        return len(self.planned.graph.ops)

    @property
    def num_batches(self) -> int:
        return len(self.planned.batches)

    @property
    def op_names(self) -> list[str]:
        """The ops of the plan, one line each."""
        return [self._op(i) for i in range(self.num_ops)]

    def __repr__(self) -> str:
        copies = f"{self.without.num_copies} → {self.planned.num_copies} copies"
        return f"CellPlan({self.name}: {self.num_ops} ops, {self.num_batches} batches, {copies})"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.name}: runs as {self.form}"
        yield f"\n{self.num_ops} ops of one example, without views, cuts and joins; w is what all examples share:"
        yield from (f"  {text}" for text in self.op_names)
        yield f"\nas torch ops {self.num_batches} batches, and how each reads its operands (bytes are of one row):"
        for number, members in enumerate(self.planned.batches):
            yield from self._batch(number, members)
        if self.planned.order:
            yield "\nvalues in memory:"
            yield f"  {self._values(self.planned.order)}"
        if self.gathered:
            yield f"  operands gathered there: {', '.join(f'%{slot}' for slot in self.gathered)}"
        yield "\ncopies:"
        for text, layout in (("without planning", self.without), ("with planning", self.planned)):
            what = "; ".join(f"({self._values(run, ', ')})" for run in layout.copies)
            yield f"  {text}: {layout.num_copies}, {layout.bytes_copied} bytes{': ' if what else ''}{what}"
        yield f"\nthe code that runs:\n{self.code}"

    def _op(self, i: int) -> str:
        cell_op, op = self.planned.graph.ops[i], self.body.op(self.source.numbers[i])
        assert isinstance(op, Op)
        operands = ["w" if not isinstance(o, tuple) else self._values(o) for o in cell_op.operands]
        name = "product" if self.source.are_products[i] else op.name.removesuffix(".default")
        return f"{self._values(cell_op.results)} = {name}({', '.join(operands)})"

    def _batch(self, number: int, members: tuple[int, ...]) -> Iterator[str]:
        graph = self.planned.graph
        results = self._values([value for i in members for value in graph.ops[i].results], ", ")
        reads = []
        for access in self.planned.accesses:
            if access.batch == number and access.slot >= 0:
                reads.append(f"{access.kind} of {self._values(access.copied, ', ')}" if access.copied else access.kind)
            elif access.batch == number and access.kind is Reading.COPY:
                reads.append("results scattered")
        head = self._op(members[0]).partition(" = ")[2].partition("(")[0]
        yield f"  {number}: {head} × {len(members)} → {results}: {', '.join(reads)}"

    def _values(self, values: Sequence[int], between: str = " ") -> str:
        return between.join(self._value(value) for value in values)

    def _value(self, value: int) -> str:
        index, begin, length = self.source.atoms[value]
        spec = self.body.specs[index]
        size = 1
        for n in self.body.spec(Val(index)).shape if not isinstance(spec, tuple) else ():
            size *= n
        return f"%{index}" if isinstance(spec, tuple) or size == length else f"%{index}[{begin}:{begin + length}]"


def plan_of(kernel: CompiledCell, switches: Switches = ALL_ON) -> CellPlan:
    """The cell plan of a compiled cell, as it runs with these switches."""
    source, planned = lay_out_program(kernel.body, inference(kernel.body).forward)
    gathered = tuple(slot for value, slot in source.rows.items() if value in planned.order)
    without = in_plain_order(source.graph)
    return CellPlan(
        kernel.name, kernel.form_in_words(switches), kernel.body, source, without, planned, gathered, kernel.source
    )
