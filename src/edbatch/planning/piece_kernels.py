"""The loops of `frontend/pieces.py`, compiled by numba: a recording cut into its examples, and put together again.

References are as in `layout.py`: `node + output * REF`, or `-1 - number` for an input from outside. In a piece, nodes,
inputs from outside and types are numbered from 0. Graphs are rewritten later, so no slot is a mean yet.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import numpy as np
from numba import njit

from edbatch.planning.frontier import KERNEL
from edbatch.planning.layout_kernels import DATA, MASK, entries


@njit(**KERNEL)
def cut(types, args, starts, outside_starts, slot_starts, slot_kinds):
    """Number the nodes, inputs and types of every example from 0, in place.

    Args:
        starts: the first node of each example, and the number of nodes. outside_starts: likewise for inputs.

    Returns: where each example's args begin; the types each example uses, in order of first use, flat, and where each
    example's begin; whether it uses values of another example.
    """
    n, num_types = len(starts) - 1, len(slot_starts) - 1
    arg_starts, used_starts = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    used = np.empty(len(types), np.int64)
    is_foreign = np.zeros(n, np.bool_)
    number, seen_in = np.zeros(num_types, np.int64), np.full(num_types, -1, np.int64)
    at, num_used = 0, 0
    for e in range(n):
        for i in range(starts[e], starts[e + 1]):
            t = types[i]
            if seen_in[t] != e:
                seen_in[t], number[t] = e, num_used - used_starts[e]
                used[num_used] = t
                num_used += 1
            types[i] = number[t]
            for s in range(slot_starts[t], slot_starts[t + 1]):
                first, at = entries(slot_kinds[s], args, at)
                if slot_kinds[s] != DATA:
                    for k in range(first, at):
                        if args[k] >= 0:
                            is_foreign[e] |= (args[k] & MASK) < starts[e]
                            args[k] -= starts[e]
                        else:
                            is_foreign[e] |= -1 - args[k] < outside_starts[e]
                            args[k] += outside_starts[e]
        arg_starts[e + 1], used_starts[e + 1] = at, num_used
    return arg_starts, used[:num_used], used_starts, is_foreign


@njit(**KERNEL)
def shift(refs, owners, starts, outside_starts, outside_numbers):
    """References to values of the given pieces, numbered through all pieces, in place; see `join`."""
    for k in range(len(refs)):
        if refs[k] >= 0:
            refs[k] += starts[owners[k]]
        else:
            refs[k] = -1 - outside_numbers[outside_starts[owners[k]] - 1 - refs[k]]


@njit(**KERNEL)
def join(types, args, starts, type_row, type_table, outside_starts, outside_numbers, slot_starts, slot_kinds):
    """The opposite, in place: types, nodes and inputs numbered through all pieces.

    Args:
        starts: the first node of each piece, and the number of nodes. type_row: the row of `type_table` that maps each
            piece's types. outside_starts, outside_numbers: the numbers of each piece's inputs from outside, flat.
    """
    at = 0
    for e in range(len(starts) - 1):
        row, begin, outside = type_row[e], starts[e], outside_starts[e]
        for i in range(begin, starts[e + 1]):
            t = type_table[row, types[i]]
            types[i] = t
            for s in range(slot_starts[t], slot_starts[t + 1]):
                first, at = entries(slot_kinds[s], args, at)
                if slot_kinds[s] != DATA:
                    for k in range(first, at):
                        args[k] = args[k] + begin if args[k] >= 0 else -1 - outside_numbers[outside - 1 - args[k]]
