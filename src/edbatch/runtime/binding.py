"""The memory that a program is bound to: that of one type of node in one mini-batch, and where its batches lie in it.

In: an `Execution` and a type (all recorded calls that the same kernel computes). Out: a `Binding`, which programs ask:
those made of torch ops for the tensors of a batch, fused ones for addresses that serve all batches.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from edbatch.cells.fused.strided import Strided
from edbatch.cells.kernel import Launch, Mask, Read
from edbatch.layout.layout import Slot
from edbatch.runtime.arena import CPU, Buffer, Lease, Span
from edbatch.runtime.row_loops import NAMES, Total, copy_rows, row_kernels
from edbatch.spec import Spec

if TYPE_CHECKING:
    from edbatch.runtime.execution import Execution

Shared = Tensor | Strided


class Binding:
    """The memory of type `t`. Batch b has `sizes[b]` rows, from row `own[b]` of the type's own buffers (outs, saved,
    deferred, out_grads).

    head: the first arguments of every kernel, see `kernel_text.FIRST_ARGUMENTS`.
    starts: the address of the first batch's numbers that say, for each operand, where its rows begin in the index.
    ways: the address of its numbers that say, for each operand, whether gradients are added or stored.
    """

    ways: int
    sums: dict[Any, Any]
    _gradients: list[Tensor | None]
    _deferred: list[Tensor]

    def __init__(self, execution: Execution, t: int, lease: Lease) -> None:
        self._execution, self._type, self._lease = execution, t, lease
        self.head, self.pro = execution.head, execution.prologues[t]
        self.starts = execution.plan.layout.addresses.slot_begin
        self._arena_of = execution.operands.arena_of[t]
        self._held: list[Shared] = []
        self._buffers: dict[int, tuple[Span, bool]] = {}
        self._scratch: dict[int, tuple[Buffer, int]] = {}

    def with_gradients(
        self, arenas: list[Tensor | None], ways: np.ndarray, deferred: list[Tensor], sums: dict[Any, Any]
    ) -> Binding:
        """For backward: the arenas of gradients, how these are written, and buffers for what `finish` reads."""
        self._gradients, self.ways, self._deferred, self.sums = arenas, ways.ctypes.data, deferred, sums
        return self

    @property
    def sizes(self) -> list[int]:
        return self._execution.sizes

    @property
    def own(self) -> list[int]:
        return self._execution.own

    @property
    def largest(self) -> int:
        """The number of rows of the largest batch of the type."""
        return self._execution.largest[self._type]

    # ---- tensors of a batch

    def operands(self, b: int, read: Mask | None = None) -> list[Any]:
        """The operands of a batch, as tensors; None for those that the mask `read` leaves out."""
        arenas, find = self._execution.arenas, self._execution.operands.read
        if read is None:
            return [find(arenas, b, slot) for slot in range(len(self._arena_of))]
        return [find(arenas, b, slot) if is_read else None for slot, is_read in enumerate(read)]

    def gather(self, b: int, slot: int, target: Tensor) -> None:
        """Let an operand of a batch lie in this tensor."""
        self._execution.operands.gather(self._execution.arenas, b, slot, target)

    def outs(self, b: int) -> list[Any]:
        """The rows that a batch writes, as views of arenas."""
        return self._outs[b]

    def out_grads(self, b: int) -> list[Any]:
        """The gradients of these rows; None for outputs that have none."""
        return self._out_grads[b]

    def saved(self, b: int) -> list[Tensor]:
        """What forward keeps for backward, for the rows of a batch."""
        return self._saved_rows[b]

    def deferred(self, b: int) -> list[Tensor]:
        """What backward keeps for the end of the mini-batch, for the rows of a batch."""
        return self._deferred_rows[b]

    def add_gradient(self, b: int, slot: int, gradient: Tensor) -> None:
        """Add the gradient of a batch's operand to the gradients of the rows that it was read from."""
        self._execution.operands.add_gradient(self._gradients, b, slot, gradient)

    @cached_property
    def _outs(self) -> dict[int, list[Any]]:
        return self._rows_of(self._execution.arenas)

    @cached_property
    def _out_grads(self) -> dict[int, list[Any]]:
        needs = self._execution.needs
        assert needs is not None
        return self._rows_of(self._gradients, needs.outs[self._type])

    @cached_property
    def _saved_rows(self) -> dict[int, list[Any]]:
        return self._by_batch(self._execution.saved[self._type])

    @cached_property
    def _deferred_rows(self) -> dict[int, list[Any]]:
        return self._by_batch(self._deferred)

    def _rows_of(self, arenas: Sequence[Tensor | None], wanted: Mask | None = None) -> dict[int, list[Any]]:
        """For every batch the rows of its outputs, as views of arenas."""
        execution = self._execution
        wholes, counts = [], []
        for k, (number, arena, _, per_row) in enumerate(execution.outputs[self._type]):
            count = execution.num_rows if per_row else execution.operands.nodes
            total = sum(count[b] for b in self._batches)
            whole = arenas[arena] if wanted is None or wanted[k] else None
            wholes.append(None if whole is None else whole[execution.base[number] : execution.base[number] + total])
            counts.append(count)
        return self._by_batch(wholes, counts)

    def _by_batch(
        self, wholes: Sequence[Tensor | None], counts: Sequence[list[int]] | None = None
    ) -> dict[int, list[Any]]:
        """Buffers of the type, cut into the rows of its batches: all at once, which is much quicker than one by one."""
        batches = self._batches
        counts = [self.sizes] * len(wholes) if counts is None else counts
        columns = [
            [None] * len(batches) if whole is None else whole.split_with_sizes([count[b] for b in batches])
            for whole, count in zip(wholes, counts, strict=True)
        ]
        if not columns:
            return {b: [] for b in batches}
        return dict(zip(batches, map(list, zip(*columns, strict=True)), strict=True))

    @property
    def _batches(self) -> list[int]:
        return self._execution.operands.batches_of[self._type]

    # ---- addresses and tensors of all batches

    def tensor(self, group: str, number: int) -> Tensor:
        """One of the type's own buffers: of outs, saved, deferred or out_grads."""
        execution, t = self._execution, self._type
        if group in ("saved", "deferred"):
            return (execution.saved[t] if group == "saved" else self._deferred)[number]
        output = execution.outputs[t][number]
        whole = execution.arenas[output.arena] if group == "outs" else self._gradient_arena(output.arena)
        first = execution.base[output.number]
        return whole[first : first + execution.type_sizes[t]]

    def address(self, group: str, number: int) -> int:
        """The address of that buffer; no tensor is made only for this."""
        execution, t = self._execution, self._type
        if group in ("saved", "deferred"):
            return self.tensor(group, number).data_ptr()
        output = execution.outputs[t][number]
        is_value = group == "outs"
        whole = execution.addresses[output.arena] if is_value else self._gradient_arena(output.arena).data_ptr()
        return whole + execution.base[output.number] * output.row_bytes

    def numbers(self, slot: int) -> int:
        """The address of an operand that is an integer per row, for all batches."""
        first = self._execution.operands.batch_types.index(self._type)
        return self.head[2] + 8 * int(self._execution.plan.layout.slot_begin[first, slot])

    def arena(self, slot: int) -> int:
        """The address of the arena (memory of all values of one spec) that an operand's rows lie in."""
        return self._execution.addresses[self._arena_of[slot]]

    def gradient(self, slot: int) -> int:
        """The address of the arena with the gradients of an operand's rows."""
        return self._gradient_arena(self._arena_of[slot]).data_ptr()

    def _gradient_arena(self, number: int) -> Tensor:
        found = self._gradients[number]
        assert found is not None
        return found

    def shared(self, number: int) -> int:
        """The address of a shared value, made contiguous."""
        value: Shared = self.pro[number].contiguous()
        self._held.append(value)
        return value.data_ptr()

    def scratch(self, number: int, row_bytes: int) -> int:
        """The address of memory for the largest batch of the type."""
        size = row_bytes * self._execution.largest[self._type]
        buffer, begin = self._scratch[number] = self._lease.cut(CPU, size)
        return buffer.address + begin

    def scratch_tensor(self, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """That memory as a tensor."""
        buffer, begin = self._scratch[number]
        return buffer.tensor(begin, self._execution.largest[self._type], shape, dtype)

    def reader(self, slot: int) -> Callable[[int], Tensor]:
        """A function that returns a batch's operand as a tensor.

        In training, an operand that is read again at the end, for the gradients of weights, is kept when it is read.
        """
        execution, t = self._execution, self._type
        kind, spec = execution.types[t].slots[slot], execution.types[t].slot_specs[slot]
        operands, arenas, own, sizes = execution.operands, execution.arenas, self.own, self.sizes
        kept = self._kept(slot)
        if kept is not None:
            return lambda b: kept[own[b] : own[b] + sizes[b]]
        if spec is None or spec.dtype not in NAMES or kind == Slot.DATA:
            return lambda b: operands.read(arenas, b, slot)
        arena, starts, first = arenas[self._arena_of[slot]], operands.begin, operands.first
        copy, index, source = copy_rows(spec.dtype.itemsize), self.head[2], self.arena(slot)
        width = math.prod(spec.shape)
        part, keep = self._buffer(slot)
        buffer = part.tensor()

        def read(b: int) -> Tensor:
            at = first[b][slot]
            if at >= 0 and not keep:
                return arena[at : at + sizes[b]]
            begin = own[b] if keep else 0
            rows = buffer[begin : begin + sizes[b]]
            copy(sizes[b], index, starts[b][slot], source, rows.data_ptr(), width)
            return rows

        return read

    def rows(self, slot: int) -> tuple[int, ...]:
        """An operand for products that run without torch: the first fields of `Product` in `_blas.c`."""
        kept = self._kept(slot)
        if kept is not None:
            return 1, kept.data_ptr(), 0, 0, 0, 0
        buffer, keep = self._buffer(slot)
        first = self._execution.plan.layout.addresses.slot_first + 8 * slot
        return 2, self.arena(slot), self.starts + 8 * slot, first, buffer.address, keep

    def _kept(self, slot: int) -> Tensor | None:
        """The rows of an operand for all batches, if forward has kept them."""
        return None if slot in self._buffers else self._execution.kept[self._type].get(slot)

    def _buffer(self, slot: int) -> tuple[Span, bool]:
        """Memory for the gathered rows of an operand; whether it is kept, and so for all batches instead of for one."""
        if slot not in self._buffers:
            execution, t = self._execution, self._type
            spec = execution.types[t].slot_specs[slot]
            assert spec is not None
            keep = slot in execution.programs[t].finish_rows and not execution.operands.is_one_view(t, slot)
            if keep:
                buffer = execution.lease.reserve(spec, execution.type_sizes[t])
                execution.kept[t][slot] = buffer.tensor()
            else:
                buffer = self._lease.reserve(spec, execution.largest[t])
            self._buffers[slot] = buffer, keep
        return self._buffers[slot]

    def weights(self, whole: Shared, num_blocks: int) -> tuple[int, int, int, bool]:
        """A shared matrix, or a list of them, each divided into blocks of columns: its address, the distance from one
        block to the next, the stride of a matrix, and whether it is transposed."""
        *_, length, columns = whole.shape
        *steps, row, column = whole.stride()
        width = columns // num_blocks
        step = steps[0] if steps and num_blocks == 1 else width * column
        if num_blocks == 1 or not steps or steps[0] == num_blocks * step:
            if column == 1 and row >= width:
                return whole.data_ptr(), step, row, False
            if row == 1 and column >= length:
                return whole.data_ptr(), step, column, True
        parted = whole.reshape((*whole.shape[:-1], num_blocks, width)).transpose(-2, -3)
        blocks = parted.contiguous()
        self._held.append(blocks)
        return blocks.data_ptr(), length * width, width, False

    def matrix(self, whole: Shared, column: int) -> tuple[int, int, bool]:
        """A shared matrix from a column on: its address, its stride, and whether it is transposed."""
        address, _, stride, is_transposed = self.weights(whole.narrow(1, column, whole.shape[1] - column), 1)
        return address, stride, is_transposed

    def copier(self) -> Launch:
        """The launch function of a type that copies its only operand, rows of floats: a stack or a sum of values."""
        kind, spec = self._copied()
        _, _, _, begins, counts, _ = self._execution.plan.layout.addresses
        width, is_summed = math.prod(spec.shape), kind >= Slot.SUM
        given = array("q", Total(*self.head, begins, counts, self.arena(0), self.address("outs", 0), width, is_summed))
        total, p = row_kernels(spec.dtype).total, given.buffer_info()[0]
        return lambda b, memory=(self, given): total(b, p)  # type: ignore[misc]

    def copier_back(self) -> Launch:
        """The launch function of its backward."""
        kind, spec = self._copied()
        own, sizes, width = self.own, self.sizes, math.prod(spec.shape)
        if kind < Slot.SUM:
            gradients = self.tensor("out_grads", 0)
            return lambda b: self.add_gradient(b, 0, gradients[own[b] : own[b] + sizes[b]])
        begin, size = self._execution.operands.begin, self._execution.operands.size
        index, source, target = self.head[2], self.address("out_grads", 0), self.gradient(0)
        add_back, row_bytes = row_kernels(spec.dtype).add_back, width * spec.dtype.itemsize

        def add(b: int, memory: Any = self) -> None:
            add_back(sizes[b], index, begin[b][0], size[b][0], source + own[b] * row_bytes, target, width)

        return add

    def _copied(self) -> tuple[Slot, Spec]:
        """How a type that only copies reads its operand, and the spec of a row."""
        node_type = self._execution.types[self._type]
        (kind,), (spec,) = node_type.slots, node_type.slot_specs
        assert spec is not None
        return kind, spec


def reading(kind: Slot) -> Read:
    """How a fused cell finds an operand."""
    return Read.NUMBERS if kind == Slot.DATA else Read.ROWS
