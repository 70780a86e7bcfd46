"""Reads the operands of batches as tensors, and adds their gradients back. For kernels that do not do so themselves.

In: arenas (memory of all values of one spec, a row each) and the `Layout`, which says which rows a batch reads. Out: a
tensor per operand, as a view of rows, a gather or a sum. A *slot* is the place of an operand in a recorded call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edbatch.layout.layout import Layout, Slot
from edbatch.recording.types.recording import Recording
from edbatch.runtime.row_loops import LONG, NAMES, copier, row_kernels
from edbatch.scheduling.schedule import Schedule
from edbatch.spec import Spec
from edbatch.torch_insides.tensors import storage_number


class Operands:
    """Reads the slots of batches. The layout's arrays are turned into lists, since indexing lists is far cheaper."""

    def __init__(self, recording: Recording, schedule: Schedule, layout: Layout, *, moves_rows: bool):
        self.types = recording.node_types
        self.batch_types: list[int] = schedule.batch_types.tolist()
        self.arena_of = recording.type_set.slot_arenas
        self._layout, self._starts = layout, schedule.starts
        self._copiers = [self._find_copiers(t, moves_rows) for t in range(len(self.types))]
        self._moves_rows = moves_rows
        self._index_on: dict[torch.device, Tensor] = {}
        self._index_of: dict[tuple[int, int], dict[int, Tensor]] = {}

    @cached_property
    def nodes(self) -> list[int]:
        return as_list(np.diff(self._starts))

    @cached_property
    def begin(self) -> list[list[int]]:
        return as_list(self._layout.slot_begin)

    @cached_property
    def size(self) -> list[list[int]]:
        return as_list(self._layout.slot_size)

    @cached_property
    def first(self) -> list[list[int]]:
        return as_list(self._layout.slot_first)

    @cached_property
    def _index_address(self) -> int:
        return self._layout.addresses[2]

    def index(self, device: torch.device) -> Tensor:
        """The index of all rows to read, on a device; copied there once."""
        found = self._index_on.get(device)
        if found is None:
            found = self._index_on[device] = torch.from_numpy(self._layout.index).to(device, non_blocking=True)
        return found

    @cached_property
    def batches_of(self) -> list[list[int]]:
        """The batches of each type, in launch order."""
        found: list[list[int]] = [[] for _ in self.types]
        for batch, t in enumerate(self.batch_types):
            found[t].append(batch)
        return found

    def index_of(self, batch: int, slot: int) -> Tensor:
        """The rows that a batch reads through a slot, or its numbers. They are cut out for all batches of a type at
        once, because that is much quicker than one by one."""
        t = self.batch_types[batch]
        known = self._index_of.get((t, slot))
        if known is None:
            known = self._index_of[t, slot] = self._cut_index(t, slot)
        return known[batch]

    def _cut_index(self, t: int, slot: int) -> dict[int, Tensor]:
        batches, spec = self.batches_of[t], self.types[t].slot_specs[slot]
        assert spec is not None
        sizes = [self.size[batch][slot] for batch in batches]
        column = self.index(spec.device).narrow(0, self.begin[batches[0]][slot], sum(sizes))
        if self.types[t].slots[slot] == Slot.DATA:
            column = number_column(column, spec)
        return dict(zip(batches, column.split_with_sizes(sizes), strict=True))

    def read(self, arenas: list[Tensor], batch: int, slot: int) -> Tensor:
        t = self.batch_types[batch]
        node_type = self.types[t]
        kind = node_type.slots[slot]
        if kind < Slot.SUM:
            arena, first = arenas[self.arena_of[t][slot]], self.first[batch][slot]
            if first >= 0:
                return arena.narrow(0, first, self.size[batch][slot])
            return self._select(arena, batch, slot, None)
        if kind == Slot.DATA:
            return self.index_of(batch, slot)
        begin, size = self.begin[batch][slot], self.size[batch][slot]
        if kind == Slot.OFFSETS:
            device = node_type.slot_specs[0].device  # type: ignore[union-attr]
            return self.index(device).narrow(0, begin, self.nodes[batch] + 1)
        arena = arenas[self.arena_of[t][slot]]
        index = self.index(arena.device)
        offsets = index.narrow(0, begin + size, self.nodes[batch] + 1)
        bounds = self._layout.index[begin + size : begin + size + self.nodes[batch] + 1]  # no wait for the device
        is_long = bool(np.diff(bounds).max() > LONG)
        return sum_rows(arena, index.narrow(0, begin, size), offsets, is_long)

    def gather(self, arenas: list[Tensor], batch: int, slot: int, target: Tensor) -> None:
        """Write a slot of a batch into a tensor, which is contiguous."""
        t = self.batch_types[batch]
        if self.types[t].slots[slot] >= Slot.SUM or self.first[batch][slot] >= 0:
            target.copy_(self.read(arenas, batch, slot))
        else:
            self._select(arenas[self.arena_of[t][slot]], batch, slot, target)

    def _select(self, arena: Tensor, batch: int, slot: int, target: Tensor | None) -> Tensor:
        """The rows of an arena that a batch reads through a slot, in a tensor or in new memory."""
        loop = self._copiers[self.batch_types[batch]][slot]
        if loop is None:
            rows = self.index_of(batch, slot)
            return arena.index_select(0, rows) if target is None else torch.index_select(arena, 0, rows, out=target)
        size, (copy, width) = self.size[batch][slot], loop
        target = arena.new_empty((size, *arena.shape[1:])) if target is None else target
        copy(size, self._index_address, self.begin[batch][slot], arena.data_ptr(), target.data_ptr(), width)
        return target

    def _find_copiers(self, t: int, moves_rows: bool) -> list[tuple[Callable[..., None], int] | None]:
        """For each slot of a type the loop that copies its rows and the elements of a row; None if torch does it."""
        slots = zip(self.types[t].slots, self.types[t].slot_specs, strict=True)
        return [copier(spec) if moves_rows and kind < Slot.SUM and spec is not None else None for kind, spec in slots]

    def is_one_view(self, t: int, slot: int) -> bool:
        """Whether all nodes of a type are one batch, which reads a slot as a view."""
        batch = self.batch_types.index(t)
        return self.first[batch][slot] >= 0 and t not in self.batch_types[batch + 1 :]

    def read_all(self, arenas: list[Tensor], batches: list[int], slot: int) -> Tensor:
        """A slot of all batches of a cell's type, in launch order; cells read rows as they are, and numbers."""
        if len(batches) == 1:
            return self.read(arenas, batches[0], slot)
        t = self.batch_types[batches[0]]
        kind, begin = self.types[t].slots[slot], self.begin[batches[0]][slot]
        size = self.begin[batches[-1]][slot] + self.size[batches[-1]][slot] - begin
        if kind == Slot.DATA:
            spec = self.types[t].slot_specs[slot]
            assert spec is not None
            return number_column(self.index(spec.device).narrow(0, begin, size), spec)
        arena = arenas[self.arena_of[t][slot]]
        return arena.index_select(0, self.index(arena.device).narrow(0, begin, size))

    def add_gradient(self, grads: list[Tensor | None], batch: int, slot: int, gradient: Tensor) -> None:
        """Add the gradient of what a batch read through a slot to the gradients of the rows it came from."""
        t = self.batch_types[batch]
        target = grads[self.arena_of[t][slot]]
        if target is None:
            return
        first, size = self.first[batch][slot], self.size[batch][slot]
        if first >= 0:
            target.narrow(0, first, size).add_(gradient)
            return
        is_sum = self.types[t].slots[slot] >= Slot.SUM
        begin = self.begin[batch][slot]
        if self._moves_rows and target.is_cpu and target.dtype in NAMES:
            gradient = gradient.clone() if _lies_in(gradient, target) else gradient
            gradient = gradient.contiguous()
            memory = gradient.data_ptr(), target.data_ptr(), math.prod(target.shape[1:])
            if is_sum:
                row_kernels(target.dtype).add_back(self.nodes[batch], self._index_address, begin, size, *memory)
            else:
                row_kernels(target.dtype).add(size, self._index_address, begin, *memory)
            return
        if is_sum:
            offsets = self.index(target.device).narrow(0, begin + size, self.nodes[batch] + 1)
            gradient = gradient.repeat_interleave(offsets.diff(), dim=0, output_size=size)
            rows = self.index(target.device).narrow(0, begin, size)
        else:
            rows = self.index_of(batch, slot)
            if _lies_in(gradient, target):
                # The kernel returned a gradient that it was given, in this arena. index_add_ refuses overlaps.
                gradient = gradient.clone()
        target.index_add_(0, rows, gradient)


def as_list(array: np.ndarray) -> list[Any]:
    found: list[Any] = array.tolist()
    return found


def _lies_in(tensor: Tensor, whole: Tensor) -> bool:
    """Whether a tensor begins inside the memory of another of its dtype."""
    if storage_number(tensor) != storage_number(whole):
        return False
    return 0 <= tensor.storage_offset() - whole.storage_offset() < whole.numel()


def number_column(column: Tensor, spec: Spec) -> Tensor:
    """Numbers of the layout's index in the dtype of a spec; floats are there as their bits."""
    return column.view(torch.float64).to(spec.dtype) if spec.is_float else column.to(spec.dtype)


def sum_rows(arena: Tensor, index: Tensor, offsets: Tensor, is_long: bool) -> Tensor:
    """The sum of each segment of gathered rows, in float64 if one of them is long."""
    if arena.numel() == 0:
        return arena.new_zeros(offsets.shape[0] - 1, *arena.shape[1:])
    flat = arena.reshape(arena.shape[0], -1)
    if arena.dtype == torch.float32 and is_long:
        flat, index = flat.index_select(0, index).double(), torch.arange(index.shape[0], device=index.device)
        total = F.embedding_bag(index, flat, offsets, mode="sum", include_last_offset=True)
        return total.to(arena.dtype).view(-1, *arena.shape[1:])
    total = F.embedding_bag(index, flat, offsets, mode="sum", include_last_offset=True)
    return total.view(-1, *arena.shape[1:])
