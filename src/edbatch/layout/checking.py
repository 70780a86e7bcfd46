"""Checks a layout: finds out slowly, in plain Python and numpy, what it must be, without the loops that made it.

In: the arrays of a recording, its schedule and its `Layout`. Out: nothing, or an AssertionError that names the first
thing at fault.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbatch.layout.layout import Ints, Layout, Slot, SlotTable, unpack
from edbatch.layout.reads import OF_ROWS, Reads, lengths, parse, ranges, require, require_same
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.schedule import Schedule

BOUNDED = (Slot.SUM, Slot.SUM_ROWS, Slot.OFFSETS)  # behind their rows stands where those of each node begin


def check_layout(
    layout: Layout, graph: Graph, args: Ints, table: SlotTable, schedule: Schedule, outside: Ints, outside_row: Ints
) -> None:
    """Raise an AssertionError unless the layout fits these nodes and their schedule; see `Layout.check`."""
    reads = parse(graph.types, args, table)
    length = lengths(graph.num_nodes, reads)
    _check_batches(layout, graph, table, schedule, length)
    first_row = _check_rows(layout, graph, table, length, outside)
    places = _PlacesOfRows.of(layout, graph, table, schedule)
    _check_operands(layout, places, _operands(graph, table, places, reads, length, first_row, outside_row))
    _check_bounds(layout, schedule, places, reads, length)
    _check_addresses(layout)


def _before(values: Ints, types: Any) -> Ints:
    """For each value the sum of the earlier ones of its type."""
    found = np.zeros(len(values), np.int64)
    for t in np.unique(types):
        of_type = types == t
        found[of_type] = np.cumsum(values[of_type]) - values[of_type]
    return found


def _check_batches(layout: Layout, graph: Graph, table: SlotTable, schedule: Schedule, length: Ints) -> None:
    """Check how many nodes and rows batches and types have, and where those of each batch and node begin."""
    order, types, num_types = schedule.order, schedule.batch_types, len(table.starts) - 1
    by_rows = np.array([table.output_per_row[a:b].any() for a, b in pairwise(table.output_starts)], dtype=np.bool_)
    nodes = np.diff(schedule.starts)
    rows = np.array([length[order[a:b]].sum() for a, b in pairwise(schedule.starts)], dtype=np.int64)
    sizes = np.where(by_rows[types], rows, nodes)
    of_types = [sizes[types == t] for t in range(num_types)]
    require_same("num_rows, by batch", layout.num_rows, rows)
    require_same("node_begin, by batch", layout.node_begin, _before(nodes, types))
    require_same("row_begin, by batch", layout.row_begin, _before(rows, types))
    require_same("sizes, by batch", layout.sizes, sizes)
    require_same("own, by batch", layout.own, _before(sizes, types))
    require_same("type_sizes", layout.type_sizes, [of_type.sum() for of_type in of_types])
    require_same("largest, by type", layout.largest, [of_type.max(initial=0) for of_type in of_types])
    of_nodes = graph.types[order]
    require_same("position, in launch order", layout.position[order], _before(np.ones(len(order), np.int64), of_nodes))
    require_same("row_position, in launch order", layout.row_position[order], _before(length[order], of_nodes))


def _check_rows(layout: Layout, graph: Graph, table: SlotTable, length: Ints, outside: Ints) -> Ints:
    """Check that no two values share a row and that no row is empty; returns the first row of each output and node."""
    used = [[np.arange(count)] for count in outside.tolist()]
    most = int(np.diff(table.output_starts).max(initial=0))
    first_row = np.full((most, graph.num_nodes), -1, np.int64)
    for t, (begin, end) in enumerate(pairwise(table.output_starts.tolist())):
        nodes = np.flatnonzero(graph.types == t)
        for o in range(begin, end):
            per_row = bool(table.output_per_row[o])
            first = layout.base[o] + (layout.row_position if per_row else layout.position)[nodes]
            first_row[o - begin, nodes] = first
            used[table.output_arenas[o]].append(ranges(first, length[nodes] if per_row else np.ones_like(nodes)))
    for arena, (parts, size) in enumerate(zip(used, layout.arena_rows.tolist(), strict=True)):
        _check_arena(arena, size, np.concatenate(parts))
    return first_row


def _check_arena(arena: int, size: int, rows: Ints) -> None:
    """Check that there is exactly one value in every row."""
    require((rows >= 0) & (rows < size), lambda i: f"a value lies in row {rows[i]} of arena {arena}, which has {size}")
    values = np.bincount(rows, minlength=size)
    require(values == 1, lambda i: f"{values[i]} values lie in row {i} of arena {arena}")


class _PlacesOfRows(NamedTuple):
    """Where nodes run, and what the slots of batches are: for each batch and slot, whether it exists, and its kind."""

    place: Ints  # of each node, its number in launch order
    batch: Ints  # of each node
    local: Ints  # of each slot, numbered through all types, its number in its type
    exists: NDArray[np.bool_]
    kind: Ints

    @staticmethod
    def of(layout: Layout, graph: Graph, table: SlotTable, schedule: Schedule) -> _PlacesOfRows:
        place, batch = np.empty(graph.num_nodes, np.int64), np.empty(graph.num_nodes, np.int64)
        place[schedule.order] = np.arange(graph.num_nodes)
        batch[schedule.order] = np.repeat(np.arange(schedule.num_batches), np.diff(schedule.starts))
        local = np.concatenate([np.empty(0, np.int64), *[np.arange(n) for n in np.diff(table.starts)]])
        num_slots = np.diff(table.starts)[schedule.batch_types]
        exists = np.arange(num_slots.max(initial=0)) < num_slots[:, None]
        kind = np.full(exists.shape, -1, np.int64)
        for b, t in enumerate(schedule.batch_types):
            kind[b, : num_slots[b]] = table.kinds[table.starts[t] : table.starts[t + 1]]
        for name in ("slot_begin", "slot_size", "slot_first"):
            found = getattr(layout, name)
            if found.shape != exists.shape:
                raise AssertionError(f"{name}: the shape is {found.shape}, not {exists.shape}")
            require_same(f"{name} of slots that do not exist", found[~exists], np.full((~exists).sum(), -2))
        return _PlacesOfRows(place, batch, local, exists, kind)


def _counts(reads: Reads, length: Ints) -> Ints:
    """How many rows (or numbers) are read for each entry."""
    count, all_rows, repeats = (
        np.ones(len(reads.value), np.int64),
        np.isin(reads.kind, OF_ROWS),
        reads.kind == Slot.REPEAT,
    )
    count[all_rows] = length[unpack(reads.value[all_rows])[0]]
    count[repeats] = length[reads.node[repeats]]
    return count


def _operands(
    graph: Graph,
    table: SlotTable,
    places: _PlacesOfRows,
    reads: Reads,
    length: Ints,
    first_row: Ints,
    outside_row: Ints,
) -> tuple[Ints, Ints]:
    """The rows (or numbers) that all batches read, slot by slot in launch order, and the batch and slot of each of them
    (both as one number)."""
    first, count, is_ref = reads.value.copy(), _counts(reads, length), reads.kind != Slot.DATA
    is_outside = is_ref & (reads.value < 0)
    is_inside = is_ref & (reads.value >= 0)
    first[is_outside] = outside_row[-1 - reads.value[is_outside]]
    nodes, outputs = unpack(reads.value[is_inside])
    first[is_inside] = first_row[outputs, nodes]
    entry = np.repeat(np.arange(len(count)), count)
    rows = np.where((reads.kind == Slot.REPEAT)[entry], first[entry], ranges(first, count))
    group = places.batch[reads.node] * places.exists.shape[1] + places.local[reads.slot]
    in_order = np.lexsort((np.arange(len(rows)), places.place[reads.node][entry], group[entry]))
    return rows[in_order], group[entry][in_order]


def _check_operands(layout: Layout, places: _PlacesOfRows, operands: tuple[Ints, Ints]) -> None:
    """Check that every batch reads the rows of what its nodes refer to, and that views are marked as views."""
    rows, group = operands
    exists, kind = places.exists, places.kind
    size = np.bincount(group, minlength=exists.size).reshape(exists.shape)
    require_same("slot_size, by batch and slot", layout.slot_size[exists], size[exists])
    starts = np.cumsum(size.reshape(-1)) - size.reshape(-1)
    at = layout.slot_begin.reshape(-1)[group] + np.arange(len(rows)) - starts[group]
    where = [f"batch {b}, slot {s}" for b, s in np.ndindex(exists.shape)]
    require(
        (at >= 0) & (at < len(layout.index)),
        lambda i: f"{where[group[i]]} is read at {at[i]} of an index of {len(layout.index)}",
    )
    found = layout.index[at]
    require(found == rows, lambda i: f"{where[group[i]]} reads {found[i]} at {at[i]}, but should read {rows[i]}")
    breaks = np.bincount(group[1:][(rows[1:] != rows[:-1] + 1) & (group[1:] == group[:-1])], minlength=exists.size)
    is_view = (breaks.reshape(exists.shape) == 0) & (kind < Slot.SUM)
    first = np.full(exists.size, -1, np.int64)
    first[group[::-1]] = rows[::-1]
    expected = np.where(is_view, first.reshape(exists.shape), -1)
    is_value = exists & (kind < Slot.DATA)
    require_same("slot_first of values, by batch and slot", layout.slot_first[is_value], expected[is_value])
    missing = layout.slot_first[exists & ~is_value]
    require_same("slot_first of slots that read no values", missing, np.full(len(missing), -2))


def _check_bounds(layout: Layout, schedule: Schedule, places: _PlacesOfRows, reads: Reads, length: Ints) -> None:
    """Check where each node's rows begin, behind rows that are summed; and that slots do not overlap in the index."""
    read = np.zeros((places.exists.shape[1], len(length)), np.int64)
    np.add.at(read, (places.local[reads.slot], reads.node), _counts(reads, length))
    is_bounded = np.isin(places.kind, BOUNDED) & places.exists
    end = layout.slot_begin + layout.slot_size
    for b, s in np.argwhere(is_bounded).tolist():
        nodes = schedule.order[schedule.starts[b] : schedule.starts[b + 1]]
        counts = length[nodes] if places.kind[b, s] == Slot.OFFSETS else read[s, nodes]
        found = layout.index[end[b, s] : end[b, s] + len(nodes) + 1]
        require_same(f"bounds of batch {b}, slot {s}", found, np.concatenate(([0], np.cumsum(counts))))
    end = end + is_bounded * (np.diff(schedule.starts)[:, None] + 1)
    for t in np.unique(schedule.batch_types):
        of_type = schedule.batch_types == t
        begins, ends = layout.slot_begin[of_type], end[of_type]
        require_same(
            f"slot_begin of type {t}", begins[1:][places.exists[of_type][1:]], ends[:-1][places.exists[of_type][:-1]]
        )
    begins, ends = layout.slot_begin[places.exists], end[places.exists]
    by_begin = np.argsort(begins)
    require(
        begins[by_begin][1:] >= ends[by_begin][:-1],
        lambda i: f"slots overlap at {begins[by_begin][i + 1]} of the index",
    )


def _check_addresses(layout: Layout) -> None:
    for name, address in layout.addresses._asdict().items():
        array = layout.index if name == "rows" else getattr(layout, name)
        if array.size and (address != array.ctypes.data or not array.flags.c_contiguous):
            raise AssertionError(f"the address of {name} is not that of its array")
