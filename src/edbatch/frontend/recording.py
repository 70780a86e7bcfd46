"""What recording yields: the `Recording` of a mini-batch, flat arrays over its nodes and the `NodeType` of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from edbatch.cells.kernel import Kernel, Mask
from edbatch.planning.graph import Graph
from edbatch.planning.layout import Ints, Slot, SlotTable
from edbatch.spec import Spec


@dataclass(frozen=True, eq=False)
class NodeType:
    """All nodes of one type run together: the same kernel, the same shared tensors, operands of the same specs.

    slots, slot_specs: how each operand is read, and what one row of it is (None for OFFSETS).
    shared: the tensors that all nodes share, parameters above all; the kernel's own (`kernel.bound`) come last.
    per_row: for each output, whether a node writes one row or as many as it has.
    """

    name: str
    kernel: Kernel
    slots: tuple[Slot, ...]
    slot_specs: tuple[Spec | None, ...]
    shared: tuple[torch.Tensor, ...] = ()
    per_row: tuple[bool, ...] = ()

    @cached_property
    def can_differentiate(self) -> Mask:
        """Which outputs can have a gradient at all."""
        return self.kernel.differentiable((True,) * len(self.slots), (True,) * len(self.shared))

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Recording:
    """One mini-batch as recorded: types and args of all nodes (see planning/layout.py), and the inputs from outside."""

    types: Ints
    args: Ints
    node_types: tuple[NodeType, ...]
    outside: tuple[torch.Tensor, ...]
    outside_specs: tuple[Spec, ...]
    starts: Ints  # the first node of every example

    @cached_property
    def table(self) -> SlotTable:
        def starts(counts: list[int]) -> Ints:
            return np.cumsum([0, *counts], dtype=np.int64)

        arena = self.arena_of
        types = self.node_types
        outputs = [(arena[spec], row) for t in types for spec, row in zip(t.kernel.outputs, t.per_row, strict=True)]
        return SlotTable(
            starts=starts([len(t.slots) for t in types]),
            kinds=np.array([slot for t in types for slot in t.slots], dtype=np.int64),
            output_starts=starts([len(t.per_row) for t in types]),
            output_arenas=np.array([a for a, _ in outputs], dtype=np.int64),
            output_per_row=np.array([row for _, row in outputs], dtype=np.int64),
        )

    @cached_property
    def arenas(self) -> tuple[Spec, ...]:
        """The specs of all values: one arena each."""
        specs = dict.fromkeys(self.outside_specs)
        specs.update(dict.fromkeys(spec for t in self.node_types for spec in t.kernel.outputs))
        return tuple(specs)

    @cached_property
    def arena_of(self) -> dict[Spec, int]:
        return {spec: i for i, spec in enumerate(self.arenas)}

    @cached_property
    def outside_rows(self) -> tuple[Ints, Ints]:
        """How many rows of each arena come from outside, and the row of each input from outside."""
        counts, rows = [0] * len(self.arenas), []
        for spec in self.outside_specs:
            arena = self.arena_of[spec]
            rows.append(counts[arena])
            counts[arena] += 1
        return np.array(counts, dtype=np.int64), np.array(rows, dtype=np.int64)

    @cached_property
    def graph(self) -> Graph:
        from edbatch.planning.layout import edges

        inputs, offsets = edges(self.types, self.args, self.table)
        return Graph(
            types=self.types, inputs=inputs, offsets=offsets, type_names=tuple(t.name for t in self.node_types)
        )

    def __repr__(self) -> str:
        return f"Recording({len(self.types)} nodes, {len(self.node_types)} types, {len(self.outside)} inputs)"
