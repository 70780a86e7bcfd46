"""The loops of `layout.py`, compiled by numba; imported at first use only.

In: the flat arrays of a recording and its schedule. Out: the arrays of a `Layout`. What args, slots, references and
rows are is explained in `layout.py`.
"""
# ruff: noqa: SIM109 (plain comparisons compile faster)

import numpy as np

from edbatch.storage.loops import inner_loop, loop

# The values of layout.Slot, as constants that numba can see.
ONE, REPEAT, ROWS, LIST, SUM, SUM_ROWS, DATA, OFFSETS = range(8)
MASK = (1 << 32) - 1


@inner_loop
def entries(kind, args, at):
    """Where the entries of a slot begin and end in `args`. Its args begin at `at`; the next slot's begin at the end.

    An entry is a reference to a value, or a number if the slot is DATA.
    """
    if kind < LIST:  # the usual case first: `LIST <= kind <= SUM` first would take twice the time
        return at, at + 1
    if kind <= SUM:
        return at + 1, at + 1 + args[at]
    return at, at + (kind != OFFSETS)


@inner_loop
def renumbered(ref, place):
    """The reference after node i became node `place[i]`."""
    return ref if ref < 0 else place[ref & MASK] + (ref & ~MASK)


@loop
def edges(types, args, slot_starts, slot_kinds):
    inputs, offsets = np.empty(len(args), np.int64), np.empty(len(types) + 1, np.int64)
    at, out = 0, 0
    for n in range(len(types)):
        offsets[n] = out
        for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
            first, at = entries(slot_kinds[s], args, at)
            if slot_kinds[s] != DATA:
                for k in range(first, at):
                    if args[k] >= 0:
                        inputs[out] = args[k] & MASK
                        out += 1
    offsets[len(types)] = out
    return inputs, offsets


@loop
def place(types, args, slot_starts, slot_kinds, output_starts, output_per_row, order, starts, batch_types):
    """Numbers nodes and rows within their types, in launch order, and measures what `fill` is going to write.

    Returns the position of each node, and of its first row, among those of its type; how many rows each node has; where
    its args begin; where each slot begins in the index; for each type its nodes, rows, size and largest batch; for each
    batch its first node, first row, rows, own and size (see `Layout`); and the address of the array of batches.
    """
    n, num_types = len(types), len(slot_starts) - 1
    length, arg_begin, size = np.ones(n, np.int64), np.empty(n, np.int64), np.zeros(len(slot_kinds) + 1, np.int64)
    num_plain = np.empty(num_types, np.int64)  # how many args a node has, if it has one in every slot; else -1
    at, repeats = 0, False
    for t in range(num_types):
        num_plain[t] = slot_starts[t + 1] - slot_starts[t]
        for s in range(slot_starts[t], slot_starts[t + 1]):
            repeats |= slot_kinds[s] == REPEAT
            if slot_kinds[s] != ONE and slot_kinds[s] != DATA:
                num_plain[t] = -1
    for i in range(n):
        arg_begin[i] = at
        if num_plain[types[i]] >= 0:
            at += num_plain[types[i]]
            continue
        for s in range(slot_starts[types[i]], slot_starts[types[i] + 1]):
            kind = slot_kinds[s]
            first, at = entries(kind, args, at)
            count = length[args[first] & MASK] if kind == ROWS or kind == SUM_ROWS else at - first
            if kind == LIST or kind == ROWS:
                length[i] = count
            # A repeated value takes as many entries as the node has rows; they are known once all slots were seen.
            size[s + 1] += count + (1 if kind >= SUM else 0)
        if repeats:
            for s in range(slot_starts[types[i]], slot_starts[types[i] + 1]):
                if slot_kinds[s] == REPEAT:
                    size[s + 1] += length[i] - 1
    position, row_position = np.empty(n, np.int64), np.empty(n, np.int64)
    of_types, of_batches = np.zeros((4, num_types), np.int64), np.empty((5, len(batch_types)), np.int64)
    nodes, rows = of_types[0], of_types[1]
    by_rows = np.zeros(num_types, np.int64)  # whether a type runs on all rows of its nodes
    for t in range(num_types):
        for o in range(output_starts[t], output_starts[t + 1]):
            by_rows[t] |= output_per_row[o]
    for b in range(len(batch_types)):
        t = batch_types[b]
        node, row = nodes[t], rows[t]
        of_batches[0, b], of_batches[1, b] = node, row
        for s in range(slot_starts[t], slot_starts[t + 1]):
            size[s + 1] += 1  # offsets have one entry more than the batch has nodes
            if num_plain[t] >= 0:
                size[s + 1] += starts[b + 1] - starts[b]
        for k in range(starts[b], starts[b + 1]):
            i = order[k]
            position[i], row_position[i] = node, row
            node += 1
            row += length[i]
        nodes[t], rows[t] = node, row
        of_batches[2, b] = row - of_batches[1, b]
        of_batches[3, b] = of_batches[by_rows[t], b]
        of_batches[4, b] = of_batches[2, b] if by_rows[t] else starts[b + 1] - starts[b]
        of_types[2, t] += of_batches[4, b]
        of_types[3, t] = max(of_types[3, t], of_batches[4, b])
    for s in range(len(slot_kinds)):
        size[s + 1] += size[s]  # now where each slot begins
    return position, row_position, length, arg_begin, size, of_types, of_batches, of_batches.ctypes.data


@loop
def bases(output_starts, output_arenas, output_per_row, type_nodes, type_rows, outside):
    """The first arena row of each output of each type, and the size of each arena.

    The first outputs of all types lie side by side, then all second ones: an operand that reads several types then
    often reads one range.
    """
    arena_rows = outside.copy()
    base = np.empty(len(output_arenas), np.int64)
    most = 0
    for t in range(len(type_nodes)):
        most = max(most, output_starts[t + 1] - output_starts[t])
    for place in range(most):
        for t in range(len(type_nodes)):
            o = output_starts[t] + place
            if o < output_starts[t + 1]:
                base[o] = arena_rows[output_arenas[o]]
                arena_rows[output_arenas[o]] += type_rows[t] if output_per_row[o] else type_nodes[t]
    return base, arena_rows


@loop
def fill(args, slot_starts, slot_kinds, output_starts, output_per_row, order, starts, batch_types,
         of_batches, length, arg_at, cursor, base, outside_row):  # fmt: skip
    """Writes the rows that every slot of every batch reads; behind summed rows, where those of each node begin.

    `arg_at` (where each node's args begin) and `cursor` (where each slot begins) are moved on behind what was written.
    Returns the index; for each batch and slot where its rows begin, how many they are, and the first one; the addresses
    of both.
    """
    width, most = 0, 0
    for t in batch_types:
        width = max(width, slot_starts[t + 1] - slot_starts[t])
        most = max(most, output_starts[t + 1] - output_starts[t])
    index = np.empty(cursor[-1], np.int64)
    bounds = np.empty(len(order) + 1, np.int64)
    rows = np.empty((most, len(order)), np.int64)  # of each output and node, its first row
    slots = np.full((3, len(batch_types), width), -2, np.int64)  # of each batch and slot: begin, size, first row
    for b in range(len(batch_types)):
        t, nodes = batch_types[b], starts[b + 1] - starts[b]
        skip = 0  # args read so far in slots with one arg per node; those of other slots are counted in arg_at
        for s in range(slot_starts[t], slot_starts[t + 1]):
            kind, begin, offset = slot_kinds[s], cursor[s], 0
            at = begin
            if kind == ONE or kind == DATA:  # most slots; the long way below takes twice the time
                for k in range(starts[b], starts[b + 1]):
                    entry = args[arg_at[order[k]] + skip]
                    if kind == ONE:
                        entry = outside_row[-1 - entry] if entry < 0 else rows[entry >> 32, entry & MASK]
                    index[at] = entry
                    at += 1
                skip += 1
            else:
                for j in range(nodes):
                    i = order[starts[b] + j]
                    bounds[j] = offset if kind == OFFSETS else at - begin
                    offset += length[i]
                    first, end = entries(kind, args, arg_at[i] + skip)
                    arg_at[i] = end - skip
                    for q in range(first, end):
                        ref, repeat, step = args[q], 1, 0
                        row = outside_row[-1 - ref] if ref < 0 else rows[ref >> 32, ref & MASK]
                        if kind == REPEAT:
                            repeat = length[i]
                        elif kind == ROWS or kind == SUM_ROWS:
                            repeat, step = length[ref & MASK], 1
                        for r in range(repeat):
                            index[at] = row + r * step
                            at += 1
            slots[0, b, s - slot_starts[t]], slots[1, b, s - slot_starts[t]] = begin, at - begin
            if kind < DATA:
                same = begin + 1
                while same < at and index[same] == index[same - 1] + 1:
                    same += 1
                slots[2, b, s - slot_starts[t]] = index[begin] if same == at and kind < SUM else -1
            if kind >= SUM and kind != DATA:
                bounds[nodes] = offset if kind == OFFSETS else at - begin
                for j in range(nodes + 1):  # a slice would take a second more to compile
                    index[at + j] = bounds[j]
                at += nodes + 1
            cursor[s] = at
        for o in range(output_starts[t], output_starts[t + 1]):
            per_row, of_output = output_per_row[o], rows[o - output_starts[t]]
            row = base[o] + of_batches[per_row, b]
            for k in range(starts[b], starts[b + 1]):
                of_output[order[k]] = row
                row += length[order[k]] if per_row else 1
    return index, slots, index.ctypes.data, slots.ctypes.data


@loop
def feeds(types, args, slot_starts, slot_kinds, output_starts, outside_needs):
    """For each slot, which outputs it reads, and whether it reads an input from outside that needs a gradient."""
    by_output = np.zeros((len(slot_kinds), output_starts[-1]), np.bool_)
    by_outside = np.zeros(len(slot_kinds), np.bool_)
    at = 0
    for n in range(len(types)):
        for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
            first, at = entries(slot_kinds[s], args, at)
            if slot_kinds[s] != DATA:
                for k in range(first, at):
                    if args[k] < 0:
                        by_outside[s] |= outside_needs[-1 - args[k]]
                    else:
                        by_output[s, output_starts[types[args[k] & MASK]] + (args[k] >> 32)] = True
    return by_output, by_outside


@loop
def read_from_outside(types, args, slot_starts, slot_kinds, is_asked, num_outside):
    """Which inputs from outside are read by the slots of `is_asked`."""
    is_read = np.zeros(num_outside, np.bool_)
    at = 0
    for n in range(len(types)):
        for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
            first, at = entries(slot_kinds[s], args, at)
            if is_asked[s] and slot_kinds[s] != DATA:
                for k in range(first, at):
                    if args[k] < 0:
                        is_read[-1 - args[k]] = True
    return is_read


@loop
def rows_of(refs, types, output_starts, output_per_row, position, row_position, base, outside_row):
    """The first arena row of each reference."""
    rows = np.empty(len(refs), np.int64)
    for k in range(len(refs)):
        if refs[k] < 0:
            rows[k] = outside_row[-1 - refs[k]]
        else:
            node = refs[k] & MASK
            o = output_starts[types[node]] + (refs[k] >> 32)
            rows[k] = base[o] + (row_position[node] if output_per_row[o] else position[node])
    return rows
