"""The phases of a fused program: which ops run in generated kernels, which as torch ops, and in what order.

In: a body and a program. Out: `Phases`. *Soft* ops are computed element by element inside kernels. *Hard* ones are
calls of torch or BLAS. Views are neither: their readers find the elements in the viewed value. Phase p is kernel p,
then its hard ops; soft ops that depend on these belong to kernel p + 1.
"""

from __future__ import annotations

import math
from collections.abc import Container
from functools import cached_property

import torch

from edbatch.cells.body.body import VIEWS, Body, Op, Val
from edbatch.cells.body.program import Program
from edbatch.cells.fused.loops.outer import columns
from edbatch.cells.fused.loops.pointwise import DTYPES, FLOATS, is_known
from edbatch.cells.fused.loops.ranges import RANGES, behind_shifts
from edbatch.cells.fused.loops.reductions import REDUCTIONS, is_reduction
from edbatch.spec import Spec

aten = torch.ops.aten
MOVES = {*RANGES, *REDUCTIONS} - {aten.view.default}  # element i depends on other elements than i
LONGEST_CHAIN = 4  # of ops along rows in one kernel


def is_soft(body: Body, index: int, exact_math: bool) -> bool:
    """Whether kernels compute a value: by an elementwise op, as slices of other values, or by a reduction of a row."""
    op, spec = body.op(index), body.specs[index]
    if op is None or not isinstance(spec, Spec) or spec.dtype not in DTYPES or not body.is_row[index]:
        return False
    if not all(isinstance(s := body.specs[v.index], Spec) and s.dtype in DTYPES for v in op.operands):
        return False
    if op.target in RANGES:
        return RANGES[op.target](body, op) is not None
    if op.target in REDUCTIONS:
        return is_reduction(body, op, exact_math)
    size = math.prod(spec.shape)
    if op.target is aten._to_copy.default:
        return body.spec(op.args[0]).device == spec.device
    plain = all(math.prod(body.spec(v).shape) in (1, size) for v in op.operands) or columns(body, op)
    return bool(plain) and size > 0 and not _promotes(body, op) and is_known(op, exact_math)


def _promotes(body: Body, op: Op) -> bool:
    """Whether torch converts integers or masks to floats here, by rules that kernels do not follow."""
    if any(body.spec(v).dtype in FLOATS for v in op.operands):
        return False
    assert isinstance(op.spec, Spec)
    return op.spec.dtype in FLOATS or any(isinstance(a, float) for a in (*op.args, *dict(op.kwargs).values()))


class Phases:
    def __init__(self, body: Body, program: Program, exact_math: bool) -> None:
        self.body, self.program = body, program
        self.soft = self._soft(exact_math)
        self.hard = [i for i in program.ops if i not in self.soft and not self.is_view(i)]
        self.level = self._levels()

    def _soft(self, exact_math: bool) -> set[int]:
        """Soft ops, without those that would make chains of reductions too long: each reduction computes again all that
        it reads."""
        length: dict[int, int] = {}
        for index in self.program.ops:
            if is_soft(self.body, index, exact_math):
                op = self.body.op(index)
                assert op is not None
                before = max((length.get(v.index, 0) for v in op.operands), default=0)
                if any(base in length for base in self._borders(index)):
                    continue  # kernels read the column and the row of an outer product from memory only
                if before < LONGEST_CHAIN or op.target not in REDUCTIONS:
                    length[index] = before + (op.target in REDUCTIONS)
        return set(length)

    def _borders(self, index: int) -> list[int]:
        """If an op makes a matrix of a column and a row (see `outer`): the values that these two are slices of."""
        op, size = self.body.op(index), math.prod(self.body.spec(Val(index)).shape)
        if op is None or not columns(self.body, op):
            return []
        found = [v for v in op.operands if math.prod(self.body.spec(v).shape) not in (1, size)]
        return [behind_shifts(self.body, v, self.program.inputs.__contains__)[0] for v in found]

    def _levels(self) -> dict[int, int]:
        """The phase of every op; of a soft one, the first kernel that can compute it."""
        level: dict[int, int] = {}
        for index in self.program.ops:
            op = self.body.op(index)
            assert op is not None
            needs = [0]
            for v in op.operands:
                waits = index in self.soft and v.index not in self.soft and self.root(v.index) in level
                needs.append(level.get(v.index, 0) + waits)
            level[index] = max(needs)
        return level

    def is_view(self, index: int) -> bool:
        op = self.body.op(index)
        return index not in self.program.inputs and op is not None and op.target in VIEWS

    def root(self, index: int) -> int:
        """The viewed value, through any number of views; else the value itself."""
        while self.is_view(index):
            index = self.body.op(index).args[0].index  # type: ignore[union-attr]
        return index

    def behind_reshapes(self, index: int) -> int:
        """The hard op of whose result a value is a reshape; the value itself if there is none."""
        base = index
        while self.is_view(base) and self.body.op(base).target is aten.view.default:  # type: ignore[union-attr]
            base = self.body.op(base).args[0].index  # type: ignore[union-attr]
        return base if base in self.hard else index

    def end_of_chain(self, index: int, stored: Container[int]) -> int:
        """Follows a value through elementwise ops of one size, each the only reader of the one before, to the last.

        -1 if something else reads that last value, or if the chain meets a stored value that is read further.
        """
        size, readers = math.prod(self.body.spec(Val(index)).shape), self._readers
        while index not in stored and len(readers.get(index, ())) == 1:
            (reader,) = readers[index]
            op = self.body.op(reader)
            if reader not in self.soft or op is None or op.target in MOVES:
                break
            if math.prod(self.body.spec(Val(reader)).shape) != size:
                break
            index = reader
        return index if not readers.get(index) else -1

    @cached_property
    def _readers(self) -> dict[int, set[int]]:
        """The ops that read a value; -1 for what the program returns or adds up over rows."""
        found: dict[int, set[int]] = {}
        for index in self.program.ops:
            for v in self.body.op(index).operands:  # type: ignore[union-attr]
                found.setdefault(v.index, set()).add(index)
        for value in (*(self.program.returns or ()), *(v for _, v in self.program.sums)):
            if value is not None:
                found.setdefault(value.index, set()).add(-1)
        return found

    def read_by_torch(self, but_for: Container[int]) -> set[int]:
        """The values that torch ops (without those in `but_for`) or sums over rows read, and the columns and rows of
        outer products: all must lie in memory."""
        found = {v.index for _, v in self.program.sums}
        for index in self.program.ops:
            if index not in self.soft and index not in but_for:
                found |= {self.root(v.index) for v in self.body.op(index).operands}  # type: ignore[union-attr]
            elif index in self.soft:
                found.update(self._borders(index))
        return found
