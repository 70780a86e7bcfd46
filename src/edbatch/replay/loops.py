"""The loops of `example_recorder.py`, `piece_bank.py` and `joining.py`, compiled by numba.

They cut a recording into *pieces*, one of each example, and join pieces into mini-batches. References (value numbers)
are as in `layout/layout.py`: `node + output * REF`, or `-1 - number` for an input from outside. In a piece, nodes and
inputs from outside are numbered from 0.

A piece is a row of a table, and a range of one flat array: the types of its nodes, their args, and one reference for
each leaf of its result (without meaning if the leaf is not one recorded value). A second flat array says which numbers
are references: -1 for a reference, else 0.
"""

import numpy as np

from edbatch.layout.layout_loops import DATA, MASK, entries
from edbatch.storage.loops import inner_loop, loop

# The columns of the table: where the piece begins in the flat array, how many nodes, args, leaves and inputs from
# outside it has, and the number of its structure.
FIRST, NODES, ARGS, LEAVES, INPUTS, STRUCTURE, WIDTH = range(7)


@loop
def cut(types, args, starts, outside_starts, leaves, leaf_starts, slot_starts, slot_kinds):
    """The table and the flat arrays of the examples of a recording.

    Args:
        starts: the first node of each example, then the number of all nodes. outside_starts: likewise for inputs.
        leaves, leaf_starts: the leaves of each example's result, as references in its piece.

    Returns: the table, without structures; the flat arrays; the types each example uses, in order of first use, flat,
    and where those of each example begin; for each example, whether it uses values of another one.
    """
    n, num_types = len(starts) - 1, len(slot_starts) - 1
    rows = np.zeros((n, WIDTH), np.int64)
    flat = np.empty(len(types) + len(args) + len(leaves), np.int64)
    is_ref = np.zeros(len(flat), np.int8)
    used, used_starts = np.empty(len(types), np.int64), np.zeros(n + 1, np.int64)
    is_foreign = np.zeros(n, np.bool_)
    seen_in = np.full(num_types, -1, np.int64)
    at, out, num_used = 0, 0, 0
    for e in range(n):
        begin, end, num_leaves = starts[e], starts[e + 1], leaf_starts[e + 1] - leaf_starts[e]
        rows[e, FIRST], rows[e, NODES], rows[e, LEAVES] = out, end - begin, num_leaves
        rows[e, INPUTS] = outside_starts[e + 1] - outside_starts[e]
        flat[out : out + end - begin] = types[begin:end]
        out += end - begin
        first_arg = out
        for i in range(begin, end):
            t = types[i]
            if seen_in[t] != e:
                seen_in[t], used[num_used] = e, t
                num_used += 1
            for s in range(slot_starts[t], slot_starts[t + 1]):
                slot = at
                first, at = entries(slot_kinds[s], args, at)
                for k in range(slot, at):
                    arg = args[k]
                    if k >= first and slot_kinds[s] != DATA:
                        is_ref[out] = -1
                        is_foreign[e] |= (arg & MASK) < begin if arg >= 0 else -1 - arg < outside_starts[e]
                        arg += outside_starts[e] if arg < 0 else -begin
                    flat[out] = arg
                    out += 1
        rows[e, ARGS], used_starts[e + 1] = out - first_arg, num_used
        flat[out : out + num_leaves] = leaves[leaf_starts[e] : leaf_starts[e + 1]]
        is_ref[out : out + num_leaves] = -1
        out += num_leaves
    return rows, flat, is_ref, used[:num_used], used_starts, is_foreign


@loop
def uses_types(rows, flat, num_types):
    """For each type, whether a node of these pieces has it."""
    uses = np.zeros(num_types, np.bool_)
    for e in range(len(rows)):
        for i in range(rows[e, FIRST], rows[e, FIRST] + rows[e, NODES]):
            uses[flat[i]] = True
    return uses


@loop
def copy(rows, flat, is_ref, type_place, into, into_is_ref, at):
    """Copies pieces into other flat arrays, from `at` on, with `type_place[t]` for type t; changes `rows` to fit.

    Returns where the copies end.
    """
    for e in range(len(rows)):
        begin, num_nodes = rows[e, FIRST], rows[e, NODES]
        size = num_nodes + rows[e, ARGS] + rows[e, LEAVES]
        rows[e, FIRST] = at
        for i in range(num_nodes):
            into[at + i] = type_place[flat[begin + i]]
        into[at + num_nodes : at + size] = flat[begin + num_nodes : begin + size]
        into_is_ref[at : at + size] = is_ref[begin : begin + size]
        at += size
    return at


@loop
def measure(rows, numbers):
    """Of the pieces with these numbers: where the nodes and the inputs of each begin, and those of all end; how many
    args they have; the number of their structure, -1 when they have several."""
    n, structure, num_args = len(numbers), rows[numbers[0], STRUCTURE], 0
    starts, input_starts = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    for e in range(n):
        row = rows[numbers[e]]
        starts[e + 1] = starts[e] + row[NODES]
        input_starts[e + 1] = input_starts[e] + row[INPUTS]
        num_args += row[ARGS]
        if row[STRUCTURE] != structure:
            structure = -1
    return starts, input_starts, num_args, structure


@inner_loop
def shifted(ref, e, starts, input_starts, input_numbers):
    """A reference inside piece e as a reference in the mini-batch."""
    return ref + starts[e] if ref >= 0 else -1 - input_numbers[input_starts[e] - 1 - ref]


@loop
def shift(refs, owners, starts, input_starts, input_numbers):
    """Changes references inside the pieces `owners` to references in the mini-batch, in place; see `join`."""
    for k in range(len(refs)):
        refs[k] = shifted(refs[k], owners[k], starts, input_starts, input_numbers)


@loop
def join(rows, flat, is_ref, numbers, num_types, starts, input_starts, input_numbers, num_args, num_leaves):
    """Puts pieces one after the other: nodes and inputs are numbered through all of them, types in order of first use.

    Args:
        starts, input_starts, num_args: as `measure` returns them. input_numbers: the numbers of each piece's inputs
            from outside in the mini-batch, flat. num_leaves: how many leaves each piece has; 0 if structures differ.

    Returns: types and args of all nodes; for every leaf the references of all pieces; the types in their new order.
    """
    n = len(numbers)
    types, args = np.empty(starts[n], np.int64), np.empty(num_args, np.int64)
    leaves = np.empty((num_leaves, n), np.int64)
    used, number_of = np.empty(num_types, np.int64), np.full(num_types, -1, np.int64)
    at, num_used = 0, 0
    for e in range(n):
        row, begin = rows[numbers[e]], starts[e]
        first = row[FIRST]
        for i in range(row[NODES]):
            t = flat[first + i]
            if number_of[t] < 0:
                number_of[t], used[num_used] = num_used, t
                num_used += 1
            types[begin + i] = number_of[t]
        first += row[NODES]
        num = row[ARGS]
        for k in range(num):
            args[at + k] = flat[first + k] + (begin & is_ref[first + k])
        if row[INPUTS]:
            for k in range(num):
                if is_ref[first + k] and flat[first + k] < 0:
                    args[at + k] = shifted(flat[first + k], e, starts, input_starts, input_numbers)
        at += num
        first += num
        for j in range(num_leaves):
            leaves[j, e] = shifted(flat[first + j], e, starts, input_starts, input_numbers)
    return types, args, leaves, used[:num_used]
