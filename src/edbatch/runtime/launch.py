"""What a fused program is bound to: the memory of one type of node in a mini-batch, and where its batches lie."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from edbatch.cells.kernel import Read
from edbatch.planning.layout import Slot
from edbatch.runtime.arena import Lease, Part
from edbatch.runtime.rows import NAMES, row_kernels
from edbatch.spec import Spec

if TYPE_CHECKING:
    from edbatch.frontend.type_set import NodeType
    from edbatch.runtime.forward import Execution


class Binding:
    """The memory of type `t`. Batch b has `sizes[b]` rows, from row `own[b]` of the type's own buffers (outs, saved,
    deferred, out_grads), and the rows of its operand k begin at `begin[b][k]` of the index."""

    def __init__(self, execution: Execution, t: int, lease: Lease) -> None:
        self._execution, self._type, self._lease = execution, t, lease
        operands = execution.operands
        self.sizes, self.own, self.begin = execution.sizes, execution.own, operands.begin
        self.index = operands.index(torch.device("cpu"))
        self.pro = execution.prologues[t]
        self._saved = execution.saved[t]
        self._deferred: list[Tensor] = []
        self.sums: dict[Any, Any] = {}
        self._gradients: list[Tensor | None] = []
        self._ways = np.empty((0, 0), np.int64)
        self._held: list[Any] = []
        self._buffers: dict[int, tuple[Part, bool]] = {}
        self._scratch: dict[int, Part] = {}

    def with_gradients(
        self, arenas: list[Tensor | None], ways: np.ndarray, deferred: list[Tensor], sums: dict[Any, Any]
    ) -> Binding:
        """For backward: the arenas of gradients, how they are written, and where what waits for the end goes."""
        self._gradients, self._ways, self._deferred, self.sums = arenas, ways, deferred, sums
        return self

    def way(self, slot: int) -> int:
        """The address of the number that says whether the gradients of an operand of the first batch are added or
        stored."""
        address: int = self._ways.ctypes.data
        return address + 8 * slot

    def tensor(self, group: str, number: int) -> Tensor:
        """One of the type's own buffers: of outs, saved, deferred or out_grads."""
        whole, first = self._own(group, number)
        return whole[first : first + self._execution.type_sizes[self._type]]

    def address(self, group: str, number: int) -> int:
        """Its address, for which no tensor is made."""
        whole, first = self._own(group, number)
        return whole.data_ptr() + first * whole.stride(0) * whole.itemsize

    def _own(self, group: str, number: int) -> tuple[Tensor, int]:
        """The tensor that an own buffer is part of, and its first row there."""
        if group in ("saved", "deferred"):
            return (self._saved if group == "saved" else self._deferred)[number], 0
        arena, first, _ = self._execution.outputs[self._type][number]
        whole = (self._execution.arenas if group == "outs" else self._gradients)[arena]
        assert whole is not None
        return whole, first

    def start(self, slot: int) -> int:
        """The address of the number that says where the rows of an operand of the first batch begin in the index."""
        return self._execution.plan.layout.addresses[2] + 8 * slot

    def arguments(self, *given: int) -> array[int]:
        """What a generated kernel reads its arguments from, see `kernel_text.Kernel`; it lives as long as this."""
        layout = self._execution.plan.layout
        sizes, own, *_ = layout.addresses
        step = layout.slot_begin.shape[1]
        made = array("q", (sizes, own, self.index.data_ptr(), step, *given))
        self._held.append(made)
        return made

    def numbers(self, slot: int) -> int:
        """The address of an operand that is one whole number a row, of all batches."""
        first = self._execution.operands.batch_types.index(self._type)
        return self.index.data_ptr() + 8 * self.begin[first][slot]

    def arena(self, slot: int) -> Tensor:
        """The arena that an operand's rows lie in."""
        return self._execution.arenas[self._execution.operands.arena_of[self._type][slot]]

    def gradient(self, slot: int) -> Tensor:
        """The arena of the gradients of an operand's rows."""
        found = self._gradients[self._execution.operands.arena_of[self._type][slot]]
        assert found is not None
        return found

    def shared(self, number: int) -> Tensor:
        """A shared value with its elements in order; it lives as long as this."""
        value: Tensor = self.pro[number].contiguous()
        self._held.append(value)
        return value

    def scratch(self, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """The address of memory for the largest batch of the type."""
        part = self._scratch[number] = self._lease.reserve(_on_cpu(shape, dtype), self._execution.largest[self._type])
        return part.address

    def scratch_tensor(self, number: int) -> Tensor:
        """That memory as a tensor."""
        return self._scratch[number].tensor()

    def reader(self, slot: int) -> Callable[[int], Tensor]:
        """A function that gives a batch's operand as a tensor.

        In training an operand that is read again at the end, for the gradients of weights, is kept from now on.
        """
        execution, t = self._execution, self._type
        kind, spec = execution.types[t].slots[slot], execution.types[t].slot_specs[slot]
        operands, arenas, own, sizes = execution.operands, execution.arenas, self.own, self.sizes
        kept = self._kept(slot)
        if kept is not None:
            return lambda b: kept[own[b] : own[b] + sizes[b]]
        if spec is None or spec.dtype not in NAMES or kind in (Slot.DATA, Slot.OFFSETS):
            return lambda b: operands.read(arenas, b, slot)
        arena, write, first = self.arena(slot), self.writer(slot), operands.first
        part, keep = self._buffer(slot)
        buffer = part.tensor()

        def read(b: int) -> Tensor:
            at = first[b][slot]
            if at >= 0 and not keep:
                return arena[at : at + sizes[b]]
            begin = own[b] if keep else 0
            rows = buffer[begin : begin + sizes[b]]
            write(b, rows.data_ptr())
            return rows

        return read

    def rows(self, slot: int) -> tuple[int, ...]:
        """The same for products that run without torch: the first fields of `Product` in `cells/_blas.c`."""
        kept = self._kept(slot)
        if kept is not None:
            return 1, kept.data_ptr(), 0, 0, 0, 0
        buffer, keep = self._buffer(slot)
        first = self._execution.plan.layout.addresses[3] + 8 * slot
        return 2, self.arena(slot).data_ptr(), self.start(slot), first, buffer.address, keep

    def _kept(self, slot: int) -> Tensor | None:
        """The rows of an operand that forward has kept, of all batches."""
        return None if slot in self._buffers else self._execution.kept[self._type].get(slot)

    def _buffer(self, slot: int) -> tuple[Part, bool]:
        """Memory for the gathered rows of an operand; whether it is for all batches, to be kept."""
        if slot not in self._buffers:
            execution, t = self._execution, self._type
            kind, spec, training = (
                execution.types[t].slots[slot],
                execution.types[t].slot_specs[slot],
                execution.training[t],
            )
            assert spec is not None
            keep = training is not None and (training.finish_rows[slot] or is_taken(kind))
            keep = keep and not execution.operands.is_one_view(t, slot)
            if keep:
                buffer = execution.lease.reserve(spec, execution.type_sizes[t])
                execution.kept[t][slot] = buffer.tensor()
            else:
                buffer = self._lease.reserve(spec, execution.largest[t])
            self._buffers[slot] = buffer, keep
        return self._buffers[slot]

    def weights(self, blocks: Tensor) -> tuple[int, int, int, bool]:
        """Of weights [count, length, columns]: address, step, stride, and whether they are transposed."""
        _, length, columns = blocks.shape
        step, row, column = blocks.stride()
        if column == 1 and row >= columns:
            return blocks.data_ptr(), step, row, False
        if row == 1 and column >= length:
            return blocks.data_ptr(), step, column, True
        blocks = blocks.contiguous()
        self._held.append(blocks)
        return blocks.data_ptr(), length * columns, columns, False

    def matrix(self, whole: Tensor, column: int) -> tuple[int, int, bool]:
        """Of a shared matrix from a column on: address, stride, and whether it is transposed."""
        address, _, stride, is_transposed = self.weights(whole[:, column:].unsqueeze(0))
        return address, stride, is_transposed

    def writer(self, slot: int) -> Callable[[int, int], None]:
        """A function that writes a batch's operand, rows of floats, to an address."""
        execution, t, sizes, begin = self._execution, self._type, self.sizes, self.begin
        kind, spec, operands = execution.types[t].slots[slot], execution.types[t].slot_specs[slot], execution.operands
        assert spec is not None
        first, size, index, source = operands.first, operands.size, self.index.data_ptr(), self.arena(slot).data_ptr()
        copy, total, _ = row_kernels(spec.dtype)
        width, is_summed, is_mean = math.prod(spec.shape), is_taken(kind), kind == Slot.MEAN

        def write(b: int, address: int) -> None:
            if is_summed and first[b][slot] < 0:
                total(sizes[b], index, begin[b][slot], size[b][slot], source, address, width, is_mean)
            else:
                copy(sizes[b], index, begin[b][slot], source, address, width)

        return write

    def adder(self, slot: int) -> Callable[[int, Tensor], None]:
        """A function that adds the gradient of a batch's operand to the rows it was read from."""
        execution, t = self._execution, self._type
        kind, spec = execution.types[t].slots[slot], execution.types[t].slot_specs[slot]
        operands, gradients = execution.operands, self._gradients
        if spec is None or spec.dtype not in NAMES or not is_taken(kind):
            return lambda b, gradient: operands.add_gradient(gradients, b, slot, gradient)
        begin, first, size, sizes = self.begin, operands.first, operands.size, self.sizes
        index, target, width = self.index.data_ptr(), self.gradient(slot), math.prod(spec.shape)
        add_back, is_mean = row_kernels(spec.dtype).add_back, kind == Slot.MEAN

        def add(b: int, gradient: Tensor) -> None:
            at = first[b][slot]
            if at >= 0:
                target[at : at + sizes[b]].add_(gradient)
                return
            gradient = gradient.contiguous()
            add_back(
                sizes[b], index, begin[b][slot], size[b][slot], gradient.data_ptr(), target.data_ptr(), width, is_mean
            )

        return add


def copies(node_type: NodeType) -> bool:
    """Whether a type only writes its operand, rows of floats, as `copying` does."""
    return getattr(node_type.kernel, "copies", False) and node_type.kernel.outputs[0].dtype in NAMES


def copying(x: Binding) -> Callable[[int], None]:
    """The launches of a type that writes its only operand, rows of floats: a stack or a sum of values."""
    write, out, own = x.writer(0), x.tensor("outs", 0), x.own
    address, row_bytes = out.data_ptr(), out.stride(0) * out.itemsize
    return lambda b: write(b, address + own[b] * row_bytes)


def adding_back(x: Binding) -> Callable[[int], None]:
    """The same, backwards."""
    add, gradients, own, sizes = x.adder(0), x.tensor("out_grads", 0), x.own, x.sizes
    return lambda b: add(b, gradients[own[b] : own[b] + sizes[b]])


@lru_cache(1024)
def _on_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> Spec:
    return Spec(shape, dtype, torch.device("cpu"))


def reading(kind: Slot) -> Read:
    """How a fused cell finds an operand."""
    return Read.NUMBERS if kind == Slot.DATA else Read.TENSOR if is_taken(kind) else Read.ROWS


def is_taken(kind: Slot) -> bool:
    """Whether an operand is read as a tensor before a kernel runs: sums of rows, and numbers."""
    return kind >= Slot.SUM
