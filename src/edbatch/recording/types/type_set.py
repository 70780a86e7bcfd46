"""Types of nodes, sets of types that occur together in a mini-batch, and all that follows from the types.

A node is one recorded call; nodes of one type may run together. In: the types of a mini-batch. Out: a `TypeSet`, with
their kernels, the specs that they read and compute, and tables for later stages. Types rarely change from call to call,
so it is kept: `TypeSets` belongs to one batched function and finds a `TypeSet` by its types. It holds kernels, which
last, but no tensors that nodes share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from edbatch.cells.kernel import Kernel, Mask
from edbatch.layout.layout import Ints, Slot, SlotTable
from edbatch.spec import Spec

SUMS = (Slot.SUM, Slot.SUM_ROWS, Slot.DATA)

T = TypeVar("T")
MAX_SETS = 32  # sets that are kept
MAX_KEPT = 32  # entries of `TypeSet.keep`


@dataclass(frozen=True, eq=False)
class NodeType:
    """What nodes that run together have in common: the kernel, the shared tensors, and the specs of operands.

    slots, slot_specs: how each operand (value that a node reads) is read, and the spec of one row of it (None for
    OFFSETS).
    shared: the tensors that all nodes share, parameters above all. Last come the enclosed tensors, which the cell finds
    by itself (`kernel.enclosed`).
    per_row: for each output, whether it has as many rows as the node reads; else it is a single row.
    is_view: in torch the results would share memory with the first operand, although the kernel does not say so.
    function: what was called, as a function of the operands of one row and of the shared tensors that are arguments;
        None if it must not be called again.
    is_marked: the user has marked the cell, so it is never a part of a larger one.
    """

    name: str
    kernel: Kernel
    slots: tuple[Slot, ...]
    slot_specs: tuple[Spec | None, ...]
    shared: tuple[torch.Tensor, ...] = ()
    per_row: tuple[bool, ...] = ()
    is_view: bool = False
    function: Callable[..., Any] | None = None
    is_marked: bool = False

    @property
    def can_differentiate(self) -> Mask:
        """Which outputs can have a gradient at all."""
        return self.kernel.differentiable((True,) * len(self.slots), (True,) * len(self.shared))

    @cached_property
    def form(self) -> Hashable:
        """A key for all but the shared tensors. It has the id of the kernel: who keeps it must keep the kernel, too."""
        return self.name, id(self.kernel), self.slots, self.slot_specs, len(self.shared), self.per_row

    def __repr__(self) -> str:
        return self.name


class Output(NamedTuple):
    """An output of a type: its number among those of all types, its arena, the bytes of a row, and whether it has as
    many rows as the node reads."""

    number: int
    arena: int
    row_bytes: int
    per_row: bool


@dataclass(frozen=True, eq=False)
class TypeSet:
    """What follows from the forms of some types, in their order.

    reasons: why nodes of a type run one by one; None if they are batched. are_one_by_one: whether there is a reason.
    arenas: the specs of all values that nodes compute or read; each has an arena (memory for all values of a spec).
    slot_arenas: for each type and slot the arena that it reads, -1 if it reads no values.
    row_bytes: for each type and slot the bytes of a row that it reads.
    """

    kernels: tuple[Kernel, ...]
    names: tuple[str, ...]
    reasons: tuple[str | None, ...]
    are_one_by_one: NDArray[np.bool_]
    only_sums: NDArray[np.bool_]  # types that only sum values
    can_differentiate: bool  # whether some output of some type can have a gradient at all
    arenas: tuple[Spec, ...]
    arena_of: dict[Spec, int]
    slot_arenas: list[list[int]]
    row_bytes: Ints
    outputs: list[list[Output]]
    table: SlotTable
    _kept: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(types: Sequence[NodeType]) -> TypeSet:
        reasons = tuple(t.kernel.reason for t in types)
        computed = [spec for t in types for spec in t.kernel.outputs]
        read = [[_value(*slot) for slot in zip(t.slots, t.slot_specs, strict=True)] for t in types]
        arenas = tuple(dict.fromkeys([*computed, *(spec for specs in read for spec in specs if spec is not None)]))
        arena_of = {spec: i for i, spec in enumerate(arenas)}
        row_bytes = np.zeros((len(types), max(map(len, read), default=0)), np.int64)
        for t, specs in enumerate(read):
            row_bytes[t, : len(specs)] = [0 if spec is None else _num_bytes(spec) for spec in specs]
        numbers = count()
        outputs = [
            [Output(next(numbers), arena_of[spec], _num_bytes(spec), row)
             for spec, row in zip(t.kernel.outputs, t.per_row, strict=True)]
            for t in types
        ]  # fmt: skip
        return TypeSet(
            kernels=tuple(t.kernel for t in types),
            names=tuple(t.name for t in types),
            reasons=reasons,
            are_one_by_one=np.array([reason is not None for reason in reasons], dtype=np.bool_),
            only_sums=np.array([all(kind in SUMS for kind in t.slots) for t in types], dtype=np.bool_),
            can_differentiate=any(any(t.can_differentiate) for t in types),
            arenas=arenas,
            arena_of=arena_of,
            slot_arenas=[[-1 if spec is None else arena_of[spec] for spec in specs] for specs in read],
            row_bytes=row_bytes,
            outputs=outputs,
            table=_table(types, outputs),
        )

    @cached_property
    def num_ops(self) -> tuple[int, ...]:
        """About how many ops of torch a node of each type is."""
        return tuple([kernel.num_ops for kernel in self.kernels])

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, kept for later calls; `key` says all that it depends on besides the forms of the types."""
        found: T | None = self._kept.get(key)
        if found is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            found = self._kept[key] = make()
        return found

    def forget(self) -> None:
        """Drop all that `keep` has kept."""
        self._kept.clear()


class TypeSets:
    """The type sets of one batched function. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[Hashable, TypeSet] = {}

    def of(self, types: Sequence[NodeType]) -> TypeSet:
        key = tuple([t.form for t in types])
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_SETS:
                self._known.clear()
            found = self._known[key] = TypeSet.of(types)
        return found


def _value(slot: Slot, spec: Spec | None) -> Spec | None:
    """The spec of the values that a slot reads; None if it reads no values."""
    return None if slot == Slot.DATA else spec


def _num_bytes(spec: Spec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize


def _table(types: Sequence[NodeType], outputs: Sequence[Sequence[Output]]) -> SlotTable:
    def starts(counts: list[int]) -> Ints:
        return np.cumsum([0, *counts], dtype=np.int64)

    return SlotTable(
        starts=starts([len(t.slots) for t in types]),
        kinds=np.array([slot for t in types for slot in t.slots], dtype=np.int64),
        output_starts=starts([len(of_type) for of_type in outputs]),
        output_arenas=np.array([output.arena for of_type in outputs for output in of_type], dtype=np.int64),
        output_per_row=np.array([output.per_row for of_type in outputs for output in of_type], dtype=np.int64),
    )
