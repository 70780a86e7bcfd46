"""`Recording`: all calls that were recorded in a mini-batch, as flat arrays. All later stages read it.

A node is one recorded call; its type says what it reads and which kernel computes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from edbatch.layout.layout import Ints, SlotTable, unpack
from edbatch.recording.types.type_set import NodeType, TypeSet, TypeSets
from edbatch.scheduling.graph import Graph
from edbatch.spec import Spec


class Origin(NamedTuple):
    """Where the nodes of a recording came from: see `Recording`. names: of the types."""

    types: Ints
    names: tuple[str, ...]
    sites: Ints
    spans: Ints


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """One mini-batch as recorded: types and args of all nodes (see layout/layout.py), and the tensors that no
    node computes (outside).

    sites: of each of the first nodes the instruction of the user's code that recorded it, (code << 32) + offset, where
    `code` is the number of a function's code; -1 for nodes of marked cells. Empty if nobody has noted it.
    spans: for each call of one of the user's functions that recorded several nodes the first of them, the one after the
    last, and the number of its code; what a function calls comes before the function.
    num_recorded, num_in_python: how many nodes were recorded in this call, before any were merged, and how many of them
    in Python.
    """

    types: Ints
    args: Ints
    node_types: tuple[NodeType, ...]
    outside: tuple[torch.Tensor, ...]
    outside_specs: tuple[Spec, ...]
    starts: Ints  # the first node of every example
    type_sets: TypeSets = field(default_factory=TypeSets)  # what is known of types that occur together
    sites: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    spans: Ints = field(default_factory=lambda: np.empty((0, 3), np.int64))
    num_recorded: int = 0
    num_in_python: int = 0

    @property
    def origin(self) -> Origin:
        """What is known of where the nodes were recorded, without the tensors that they read."""
        return Origin(self.types, tuple([t.name for t in self.node_types]), self.sites, self.spans)

    @cached_property
    def type_set(self) -> TypeSet:
        return self.type_sets.of(self.node_types)

    @property
    def table(self) -> SlotTable:
        return self.type_set.table

    @cached_property
    def arenas(self) -> tuple[Spec, ...]:
        """The specs of all values, each with its own arena (memory): first those of the types, then other results."""
        known = self.type_set.arenas
        return tuple(dict.fromkeys((*known, *self.outside_specs))) if self.outside_specs else known

    @cached_property
    def arena_of(self) -> dict[Spec, int]:
        known = self.type_set
        return known.arena_of if self.arenas is known.arenas else {spec: i for i, spec in enumerate(self.arenas)}

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
        from edbatch.layout.layout import edges

        inputs, offsets = edges(self.types, self.args, self.table)
        return Graph(types=self.types, inputs=inputs, offsets=offsets, type_names=self.type_set.names)

    def outputs_of(self, refs: Ints) -> Ints:
        """For each value that a node computes: its output's number, counted over the outputs of all types."""
        nodes, numbers = unpack(refs[refs >= 0])
        outputs: Ints = self.table.output_starts[self.types[nodes]] + numbers
        return outputs

    def check(self) -> None:
        """Raise an AssertionError that names the first node, type or input at fault, if there is one.

        The args of a node are those that the slots of its type ask for. References lead to outputs of earlier nodes or
        to inputs from outside, of the spec that the slot says.
        """
        from edbatch.recording.types.checking import check_recording

        check_recording(self)

    def __repr__(self) -> str:
        return f"Recording({len(self.types)} nodes, {len(self.node_types)} types, {len(self.outside)} inputs)"
