"""Decides where every value of a mini-batch lies in memory, and which rows every batch reads.

In: the types of all nodes, their `args` (what each node reads), and a schedule. Out: a `Layout`. An *arena* is the
memory for all values of one shape, dtype and device; a value is one of its rows. All rows that one output of one type
produces lie side by side, in launch order. So a batch writes one range of rows, and all rows of a type can be read at
once when weight gradients are computed at the end. The rows that all batches read are listed in one int64 array.

`args` is flat: node after node, and for each node slot after slot. A *slot* is the place of an operand in a type. It
holds one *reference*, which is the number of a value (`node + output * REF`; negative for an input that no node
computes, but that comes from outside); or a length of at least 1 followed by so many references (LIST, SUM); or
one number (DATA); or nothing (OFFSETS).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbatch.scheduling.graph import Graph
from edbatch.scheduling.schedule import Schedule

Ints = NDArray[np.int64]
REF = 1 << 32  # the references of consecutive outputs of a node differ by this


def unpack(refs: Ints) -> tuple[Ints, Ints]:
    """The nodes and the output numbers of references to recorded values."""
    return refs & (REF - 1), refs >> 32


def renumber(refs: Ints, place: Ints) -> Ints:
    """References after node i became node `place[i]`; inputs from outside stay as they are.

    >>> renumber(np.array([-1, 2, 1 + REF]), place=np.array([0, 5, 7])) - np.array([0, 0, REF])
    array([-1,  7,  5])
    """
    inside = refs >= 0
    nodes, outputs = unpack(refs[inside])
    found = refs.copy()
    found[inside] = place[nodes] + outputs * REF
    return found


class Slot(IntEnum):
    """How a slot of a type is read; the comment says how many rows a node reads through it."""

    ONE = 0  # 1: a value
    REPEAT = 1  # as many as the node has rows: one value, repeated
    ROWS = 2  # as many as the producer has rows: a ragged value (a stack of any number of values)
    LIST = 3  # as many as are listed: values stacked
    SUM = 4  # as many as are listed, summed to one
    SUM_ROWS = 5  # as many as the producer has rows, summed to one
    DATA = 6  # 1: a number
    OFFSETS = 7  # none: where each node's rows begin in the batch


@dataclass(frozen=True, slots=True, eq=False)
class SlotTable:
    """The slots and outputs of every type, flat: `starts[t]:starts[t + 1]` are the slots of type t."""

    starts: Ints
    kinds: Ints  # a Slot for each slot
    output_starts: Ints
    output_arenas: Ints
    output_per_row: Ints  # 1 if a node writes a value for each of its rows, 0 if it writes one value


class Addresses(NamedTuple):
    """Addresses in memory of arrays of a `Layout`, for generated code; `rows` is the address of `index`."""

    sizes: int
    own: int
    rows: int
    slot_begin: int
    slot_size: int
    slot_first: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Layout:
    """Rows of every output and operand of a mini-batch; `[b, k]` arrays are over batches and the slots of their type.

    A node has as many rows as it lists values, or as the ragged value has that it reads; other nodes have one.

    Attributes:
        index: every row that is read: slot after slot, for each slot batch after batch in launch order. Behind the rows
            that a batch sums stands where the rows of each of its nodes begin among them.
        slot_begin: where the rows of a batch and slot begin in `index`. slot_size: how many they are. slot_first: the
            first row if they are consecutive and are not added up (a *view*), else -1 (a *gather*). All are `[b, k]`.
        node_begin, row_begin: the first node and the first row of each batch among those of its type.
        num_rows: how many rows the nodes of each batch have.
        sizes: on how many rows each batch runs: all rows of its nodes if its type writes those, else one per node.
            own: the first of these rows among those of the type.
        type_sizes, largest: for each type, the sum of the sizes of its batches, and the largest of them.
        base: the first arena row of each output of each type. arena_rows: how many rows each arena has.
        position, row_position: the place of each node, and of its first row, among those of its type.
    """

    index: Ints
    slot_begin: Ints
    slot_size: Ints
    slot_first: Ints
    node_begin: Ints
    row_begin: Ints
    num_rows: Ints
    own: Ints
    sizes: Ints
    type_sizes: Ints
    largest: Ints
    base: Ints
    arena_rows: Ints
    position: Ints
    row_position: Ints
    addresses: Addresses

    def __repr__(self) -> str:
        views = int((self.slot_first >= 0).sum())
        return f"Layout({len(self.node_begin)} batches, {views} views, {(self.slot_first == -1).sum()} gathers)"

    def rows_of(self, refs: Ints, types: Ints, table: SlotTable, outside_row: Ints) -> Ints:
        """The first arena row of each of these references."""
        from edbatch.layout import layout_loops

        rows: Ints = layout_loops.rows_of(
            refs, types, table.output_starts, table.output_per_row, self.position, self.row_position, self.base,
            outside_row,
        )  # fmt: skip
        return rows

    def check(
        self, graph: Graph, args: Ints, table: SlotTable, schedule: Schedule, outside: Ints, outside_row: Ints
    ) -> None:
        """Raise an AssertionError that names the first thing at fault, if there is one.

        What must hold: every value has a row of its own; every batch writes a range of rows, and reads the rows of the
        values that its nodes refer to; a slot is marked as a view exactly if it is one. The arguments are those of
        `lay_out`.
        """
        from edbatch.layout.checking import check_layout

        check_layout(self, graph, args, table, schedule, outside, outside_row)


def edges(types: Ints, args: Ints, table: SlotTable) -> tuple[Ints, Ints]:
    """The producers of every node, as the CSR arrays (inputs, offsets) of a Graph; inputs from outside are no edges."""
    from edbatch.layout import layout_loops

    inputs, offsets = layout_loops.edges(types, args, table.starts, table.kinds)
    return inputs[: offsets[-1]], offsets


def lay_out(graph: Graph, args: Ints, table: SlotTable, schedule: Schedule, outside: Ints, outside_row: Ints) -> Layout:
    """Lay out a scheduled mini-batch.

    Args:
        outside: for each arena, how many rows at its beginning are inputs from outside.
        outside_row: the row of each input from outside, in its arena.
    """
    from edbatch.layout import layout_loops

    position, row_position, length, arg_begin, cursor, of_types, of_batches, at_batches = layout_loops.place(
        graph.types, args, table.starts, table.kinds, table.output_starts, table.output_per_row,
        schedule.order, schedule.starts, schedule.batch_types,
    )  # fmt: skip
    type_nodes, type_rows, type_sizes, largest = of_types
    base, arena_rows = layout_loops.bases(
        table.output_starts, table.output_arenas, table.output_per_row, type_nodes, type_rows, outside
    )
    index, slots, at_index, at_slots = layout_loops.fill(
        args, table.starts, table.kinds, table.output_starts, table.output_per_row,
        schedule.order, schedule.starts, schedule.batch_types,
        of_batches, length, arg_begin, cursor, base, outside_row,
    )  # fmt: skip
    node_begin, row_begin, num_rows, own, sizes = of_batches
    per_batch, per_slot = sizes.nbytes, slots[0].nbytes
    addresses = Addresses(
        at_batches + 4 * per_batch, at_batches + 3 * per_batch, at_index,
        at_slots, at_slots + per_slot, at_slots + 2 * per_slot,
    )  # fmt: skip
    return Layout(
        index, slots[0], slots[1], slots[2], node_begin, row_begin, num_rows, own, sizes,
        type_sizes, largest, base, arena_rows, position, row_position, addresses,
    )  # fmt: skip
