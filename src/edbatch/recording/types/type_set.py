"""Types of node that occur together, and all that follows from them alone.

Types rarely change from call to call, so what was found out about them is kept: `TypeSets` belongs to one batched
function and finds a `TypeSet` by its types. It holds kernels, which last, and no tensors that nodes share.
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

SUMS = (Slot.SUM, Slot.MEAN, Slot.SUM_ROWS, Slot.DATA)

T = TypeVar("T")
MAX_SETS = 32  # that are kept
MAX_KEPT = 32  # of what follows from a set and a little more


@dataclass(frozen=True, eq=False)
class NodeType:
    """All nodes of one type run together: the same kernel, the same shared tensors, operands of the same specs.

    slots, slot_specs: how each operand is read, and what one row of it is (None for OFFSETS).
    shared: the tensors that all nodes share, parameters above all; the kernel's own (`kernel.bound`) come last.
    per_row: for each output, whether a node writes one row or as many as it has.
    is_view: in torch its results would share the memory of its first operand, though its kernel does not tell.
    """

    name: str
    kernel: Kernel
    slots: tuple[Slot, ...]
    slot_specs: tuple[Spec | None, ...]
    shared: tuple[torch.Tensor, ...] = ()
    per_row: tuple[bool, ...] = ()
    is_view: bool = False

    @property
    def can_differentiate(self) -> Mask:
        """Which outputs can have a gradient at all."""
        return self.kernel.differentiable((True,) * len(self.slots), (True,) * len(self.shared))

    @cached_property
    def form(self) -> Hashable:
        """All but the shared tensors. The kernel must be kept alive where this is kept."""
        return self.name, id(self.kernel), self.slots, self.slot_specs, len(self.shared), self.per_row

    def __repr__(self) -> str:
        return self.name


class Output(NamedTuple):
    """An output of a type: its number among those of all types, its arena, the bytes of a row, and whether a node
    writes all its rows."""

    number: int
    arena: int
    row_bytes: int
    per_row: bool


@dataclass(frozen=True, eq=False)
class TypeSet:
    """What follows from the forms of some types, in their order.

    reasons: why nodes of a type run one by one; None of those that are batched, see `runs_alone`.
    arenas: the specs of all values that nodes compute or read, one arena each; slot_arenas: for each type and slot the
    arena that it reads, -1 for what is no value. row_bytes: for each type and slot the bytes of a row that it reads.
    """

    kernels: tuple[Kernel, ...]
    names: tuple[str, ...]
    reasons: tuple[str | None, ...]
    runs_alone: NDArray[np.bool_]
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
            runs_alone=np.array([reason is not None for reason in reasons], dtype=np.bool_),
            only_sums=np.array([all(kind in SUMS for kind in t.slots) for t in types], dtype=np.bool_),
            can_differentiate=any(any(t.can_differentiate) for t in types),
            arenas=arenas,
            arena_of=arena_of,
            slot_arenas=[[-1 if spec is None else arena_of[spec] for spec in specs] for specs in read],
            row_bytes=row_bytes,
            outputs=outputs,
            table=_table(types, outputs),
        )

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, kept for later calls; `key` says all that it depends on besides the forms of the types."""
        found: T | None = self._kept.get(key)
        if found is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            found = self._kept[key] = make()
        return found

    def forget(self) -> None:
        """Nothing is kept any more."""
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
    """The spec of what a slot reads if that is a value."""
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
