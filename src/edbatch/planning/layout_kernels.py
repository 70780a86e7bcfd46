"""The loops of `layout.py`, compiled by numba; imported at first use only."""
# ruff: noqa: SIM109 (plain comparisons compile faster)
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import numpy as np
from numba import njit

# The values of layout.Slot, as constants that numba can see.
ONE, REPEAT, ROWS, LIST, SUM, SUM_ROWS, DATA, OFFSETS = range(8)
MASK = (1 << 32) - 1


@njit(cache=True)
def edges(types, args, slot_starts, slot_kinds):
    inputs, offsets = np.empty(len(args), np.int64), np.empty(len(types) + 1, np.int64)
    at, out = 0, 0
    for n in range(len(types)):
        offsets[n] = out
        for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
            kind = slot_kinds[s]
            if kind == OFFSETS:
                continue
            count = 1
            if kind == LIST or kind == SUM:
                count, at = args[at], at + 1
            if kind != DATA:
                for k in range(at, at + count):
                    if args[k] >= 0:
                        inputs[out] = args[k] & MASK
                        out += 1
            at += count
    offsets[len(types)] = out
    return inputs[:out].copy(), offsets


@njit(cache=True)
def place(types, args, slot_starts, slot_kinds, order, starts, batch_types):
    """Positions of nodes and of their rows among those of their type, in launch order; lengths; where args begin."""
    n, num_types = len(types), len(slot_starts) - 1
    length, arg_begin = np.ones(n, np.int64), np.empty(n, np.int64)
    at = 0
    for i in range(n):
        arg_begin[i] = at
        for s in range(slot_starts[types[i]], slot_starts[types[i] + 1]):
            kind = slot_kinds[s]
            if kind == OFFSETS:
                continue
            if kind == LIST or kind == SUM:
                if kind == LIST:
                    length[i] = args[at]
                at += args[at] + 1
            else:
                if kind == ROWS:
                    length[i] = length[args[at] & MASK]
                at += 1
    position, row_position = np.empty(n, np.int64), np.empty(n, np.int64)
    nodes, rows = np.zeros(num_types, np.int64), np.zeros(num_types, np.int64)
    batches = len(batch_types)
    node_begin, row_begin, num_rows = (
        np.empty(batches, np.int64),
        np.empty(batches, np.int64),
        np.empty(batches, np.int64),
    )
    for b in range(batches):
        t = batch_types[b]
        node_begin[b], row_begin[b] = nodes[t], rows[t]
        for k in range(starts[b], starts[b + 1]):
            i = order[k]
            position[i], row_position[i] = nodes[t], rows[t]
            nodes[t] += 1
            rows[t] += length[i]
        num_rows[b] = rows[t] - row_begin[b]
    return position, row_position, length, arg_begin, nodes, rows, node_begin, row_begin, num_rows


@njit(cache=True)
def bases(output_starts, output_arenas, output_per_row, type_nodes, type_rows, num_arenas, outside):
    arena_rows = outside.copy()
    base = np.empty(len(output_arenas), np.int64)
    for t in range(len(type_nodes)):
        for o in range(output_starts[t], output_starts[t + 1]):
            base[o] = arena_rows[output_arenas[o]]
            arena_rows[output_arenas[o]] += type_rows[t] if output_per_row[o] else type_nodes[t]
    return base, arena_rows


@njit(cache=True)
def sizes(types, args, slot_starts, slot_kinds, length, arg_begin, num_batches_of):
    """How many entries of the index array each slot needs over the whole mini-batch."""
    size = np.zeros(len(slot_kinds), np.int64)
    for t in range(len(num_batches_of)):
        for s in range(slot_starts[t], slot_starts[t + 1]):
            if slot_kinds[s] == OFFSETS or slot_kinds[s] == SUM or slot_kinds[s] == SUM_ROWS:
                size[s] += num_batches_of[t]  # offsets take one more than the batch has nodes
    for i in range(len(types)):
        at = arg_begin[i]
        for s in range(slot_starts[types[i]], slot_starts[types[i] + 1]):
            kind = slot_kinds[s]
            if kind == ONE or kind == DATA:
                size[s] += 1
                at += 1
            elif kind == REPEAT:
                size[s] += length[i]
                at += 1
            elif kind == ROWS:
                size[s] += length[args[at] & MASK]
                at += 1
            elif kind == SUM_ROWS:
                size[s] += length[args[at] & MASK] + 1
                at += 1
            elif kind == LIST:
                size[s] += args[at]
                at += args[at] + 1
            elif kind == SUM:
                size[s] += args[at] + 1
                at += args[at] + 1
            else:
                size[s] += 1
    return size


@njit(cache=True)
def fill(
    types,
    args,
    slot_starts,
    slot_kinds,
    output_starts,
    output_per_row,
    order,
    starts,
    batch_types,
    position,
    row_position,
    length,
    arg_begin,
    base,
    outside_row,
):
    batches, width = len(batch_types), 0
    num_batches_of = np.zeros(len(slot_starts) - 1, np.int64)
    for t in batch_types:
        num_batches_of[t] += 1
        width = max(width, slot_starts[t + 1] - slot_starts[t])
    size = sizes(types, args, slot_starts, slot_kinds, length, arg_begin, num_batches_of)
    cursor = np.zeros(len(slot_kinds) + 1, np.int64)
    cursor[1:] = np.cumsum(size)
    index = np.empty(cursor[-1], np.int64)
    slot_begin = np.zeros((batches, width), np.int64)
    slot_size = np.zeros((batches, width), np.int64)
    slot_first = np.full((batches, width), -2, np.int64)
    arg_at = arg_begin.copy()
    for b in range(batches):
        t = batch_types[b]
        for s in range(slot_starts[t], slot_starts[t + 1]):
            kind, k = slot_kinds[s], s - slot_starts[t]
            begin = cursor[s]
            at, consecutive = begin, True
            for j in range(starts[b], starts[b + 1]):
                i = order[j]
                if kind == OFFSETS:
                    continue
                if kind == DATA:
                    index[at] = args[arg_at[i]]
                    at += 1
                    arg_at[i] += 1
                    continue
                count = 1
                if kind == LIST or kind == SUM:
                    count = args[arg_at[i]]
                    arg_at[i] += 1
                for q in range(arg_at[i], arg_at[i] + count):
                    ref = args[q]
                    repeat, step = 1, 0
                    if ref < 0:
                        row = outside_row[-1 - ref]
                    else:
                        producer = ref & MASK
                        o = output_starts[types[producer]] + (ref >> 32)
                        row = base[o] + (row_position[producer] if output_per_row[o] else position[producer])
                        if kind == ROWS or kind == SUM_ROWS:
                            repeat, step = length[producer], 1
                    if kind == REPEAT:
                        repeat = length[i]
                    for r in range(repeat):
                        index[at] = row + r * step
                        if at > begin and index[at] != index[at - 1] + 1:
                            consecutive = False
                        at += 1
                arg_at[i] += count
            slot_begin[b, k], slot_size[b, k] = begin, at - begin
            if kind != DATA and kind != OFFSETS:
                slot_first[b, k] = (
                    index[begin] if consecutive and at > begin and kind != SUM and kind != SUM_ROWS else -1
                )
            if kind == OFFSETS or kind == SUM or kind == SUM_ROWS:
                at = offsets_of(
                    b, kind, s, at, types, args, slot_starts, slot_kinds, order, starts, length, arg_begin, index
                )
            cursor[s] = at
    return index, slot_begin, slot_size, slot_first


@njit(cache=True)
def offsets_of(b, kind, slot, at, types, args, slot_starts, slot_kinds, order, starts, length, arg_begin, index):
    """Write where each node's entries of a slot begin inside the batch, and their total; returns the end."""
    total = 0
    for j in range(starts[b], starts[b + 1]):
        index[at] = total
        at += 1
        i = order[j]
        if kind == OFFSETS:
            total += length[i]
            continue
        a = arg_begin[i]
        for s in range(slot_starts[types[i]], slot):
            if slot_kinds[s] == LIST or slot_kinds[s] == SUM:
                a += args[a] + 1
            elif slot_kinds[s] != OFFSETS:
                a += 1
        total += args[a] if kind == SUM else length[args[a] & MASK]
    index[at] = total
    return at + 1


@njit(cache=True)
def feeds(types, args, slot_starts, slot_kinds, output_starts, outside_needs):
    """Which outputs feed each slot, and whether an input from outside that needs a gradient does."""
    by_output = np.zeros((len(slot_kinds), output_starts[-1]), np.bool_)
    by_outside = np.zeros(len(slot_kinds), np.bool_)
    at = 0
    for n in range(len(types)):
        for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
            kind, count = slot_kinds[s], 1
            if kind == OFFSETS:
                continue
            if kind == LIST or kind == SUM:
                count, at = args[at], at + 1
            if kind != DATA:
                for k in range(at, at + count):
                    if args[k] < 0:
                        by_outside[s] |= outside_needs[-1 - args[k]]
                    else:
                        by_output[s, output_starts[types[args[k] & MASK]] + (args[k] >> 32)] = True
            at += count
    return by_output, by_outside
