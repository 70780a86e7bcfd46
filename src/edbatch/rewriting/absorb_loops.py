"""The loops that absorb sums into their readers (`absorb.py`), compiled by numba; imported at first use only.

In: the flat arrays of a recording (see `layout/layout.py`), and one type of sums: nodes whose first slot lists their
terms. Out: what absorbing them would save, and the arrays without them. `readers` says for each slot of each type
whether it is to read the terms of such sums itself.
"""

import numpy as np

from edbatch.layout.layout_loops import DATA, MASK, entries, renumbered
from edbatch.storage.loops import loop


@loop
def find_readers(types, args, slot_starts, slot_kinds, sum_type, takes, results):
    """Which of the slots that can take sums (`takes`) read one; where each node's args begin; and which sums stay."""
    n = len(types)
    readers, begin, stays = np.zeros(len(slot_kinds), np.bool_), np.empty(n, np.int64), np.zeros(n, np.bool_)
    for i in results:
        stays[i] = types[i] == sum_type
    at = 0
    for i in range(n):
        begin[i] = at
        for s in range(slot_starts[types[i]], slot_starts[types[i] + 1]):
            first, at = entries(slot_kinds[s], args, at)
            if slot_kinds[s] != DATA:
                for k in range(first, at):
                    if args[k] >= 0 and types[args[k] & MASK] == sum_type:
                        if takes[s]:
                            readers[s] = True
                        else:
                            stays[args[k]] = True
    return readers, begin, stays


@loop
def weigh(types, args, slot_starts, slot_kinds, sum_type, readers, begin, stays):
    """What absorbing changes: launches that it saves, rows that it reads in addition, room that the new args need.

    Launches saved: the sums on the path with most of them before, minus those on the path with most of them after.
    """
    n = len(types)
    # The most sums on a path to each node: before absorbing; after it without the node itself; after it.
    before, inside, after = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    most_before, most_after, rows, room, at = 0, 0, 0, len(args), 0
    for i in range(n):
        before[i] = inside[i] = 0
        for s in range(slot_starts[types[i]], slot_starts[types[i] + 1]):
            first, at = entries(slot_kinds[s], args, at)
            room += readers[s]
            if slot_kinds[s] != DATA:
                for k in range(first, at):
                    p = args[k] & MASK
                    if args[k] < 0:
                        rows += readers[s]
                    elif readers[s] and types[p] == sum_type:
                        before[i], inside[i] = max(before[i], before[p]), max(inside[i], inside[p])
                        rows += args[begin[p]] - 1
                        room += args[begin[p]]
                    else:
                        before[i], inside[i] = max(before[i], before[p]), max(inside[i], after[p])
                        rows += readers[s]
        after[i] = inside[i]
        if types[i] == sum_type:
            before[i] += 1
            after[i] += stays[i]
            if not stays[i]:
                rows -= args[begin[i]] + 1
        most_before, most_after = max(most_before, before[i]), max(most_after, after[i])
    return most_before - most_after, rows, room


@loop
def absorb(types, args, slot_starts, slot_kinds, sum_type, readers, begin, stays, room):
    """The types and args of the nodes that are left, and the new number of every node, -1 where it vanished.

    room: from `weigh`; the new args may be fewer.
    """
    n = len(types)
    left, place, flat = np.empty(n, types.dtype), np.empty(n, np.int64), np.empty(room, np.int64)
    num_left, out = 0, 0
    for i in range(n):
        if types[i] == sum_type and not stays[i]:
            place[i] = -1
            continue
        left[num_left], place[i] = types[i], num_left
        num_left += 1
        at = begin[i]
        for s in range(slot_starts[types[i]], slot_starts[types[i] + 1]):
            begins, header = at, out
            first, at = entries(slot_kinds[s], args, begins)
            has_header = first > begins or readers[s]
            out += has_header
            for k in range(first, at):
                if slot_kinds[s] == DATA or args[k] < 0:
                    flat[out], out = args[k], out + 1
                elif readers[s] and types[args[k] & MASK] == sum_type:
                    terms = begin[args[k]]
                    for q in range(terms + 1, terms + 1 + args[terms]):
                        flat[out], out = renumbered(args[q], place), out + 1
                else:
                    flat[out], out = renumbered(args[k], place), out + 1
            if has_header:
                flat[header] = out - header - 1
    return left[:num_left], flat[:out], place
