"""The order of nodes inside each batch, chosen so that later batches read consecutive rows: views instead of gathers.

In: a graph and a schedule, whose batches list nodes by id. Out: the same batches, each in the order in which its values
are read. A value lies where its node stands in its batch, so a batch reads a view when its operands' nodes stand in
the order in which it wants them. Batches are ordered from the last to the first: when it is a batch's turn, every
batch that reads from it is fixed. For chains every operand is then a view: the longest chain stands first in all
batches; and what one large batch computes before a recurrence lies in the order in which the recurrence reads it.

A value that several batches read is ordered for one of them, its *favourite*: the type that reads the value's type
alone in most batches, because an operand that mixes types is never a view. A recurrence is its own favourite when it
comes to a draw. Without one, the first read counts.

Where no order would make readers' operands views, because values are only summed or are results, a batch stands in the
order of its own first operand, which then is a view: the output of a model reads all states where they lie.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edbatch.scheduling.graph import Graph, Ints
from edbatch.scheduling.schedule import Schedule
from edbatch.storage.loops import inner_loop, loop

Bools = NDArray[np.bool_]


def order_batches(graph: Graph, schedule: Schedule, fixed: Bools, only_sums: Bools) -> Schedule:
    """The schedule with the nodes of every batch in the order in which later batches read their values.

    Args:
        fixed: for each type, whether its batches keep their order.
        only_sums: for each type, whether it only sums values, so that none of its operands can be a view.

    >>> import edbatch
    >>> chains = Graph.from_lists("aabbb", [[], [], [1], [0], [2]])
    >>> neither = np.array([False, False])
    >>> order_batches(chains, edbatch.schedule(chains, "depth"), fixed=neither, only_sums=neither).batches
    (('a', [1, 0]), ('b', [2, 3]), ('b', [4]))
    """
    batches = schedule.order, schedule.starts, schedule.batch_types
    order = reading_order(graph.types, graph.offsets, graph.inputs, *batches, fixed, only_sums)
    return replace(schedule, order=order)


@loop
def reading_order(
    types: Ints,
    offsets: Ints,
    inputs: Ints,
    order: Ints,
    starts: Ints,
    batch_types: Ints,
    fixed: Bools,
    only_sums: Bools,
) -> Ints:
    """`order` with every batch sorted by when its nodes are read: first what the favourite reads, then by first reads.

    Reads are numbered in launch order, in a batch operand by operand, as the rows of an operand are to be consecutive,
    or, where nodes have different numbers of them, node by node, as sums read. Other reads than those of favourites
    have numbers that are larger by `num_reads`; what counts is the smallest.
    """
    n, num_reads, num_types = len(order), len(inputs), len(fixed)
    arity, reads = arities(offsets, order, starts)
    favourite = favourites(types, offsets, inputs, order, starts, batch_types, arity, num_types)
    ordered, read = order.copy(), np.empty(n, np.int64)
    for i in range(n):
        read[i] = 2 * num_reads + i  # never read: last, by id
    scratch = np.full(2 * num_reads + n, -1, np.int64)
    keep = fixed.copy()  # types whose values may be read as views
    later, number = np.empty(num_types, np.int64), num_reads
    for b in range(len(batch_types) - 1, -1, -1):
        begin, end, reader = starts[b], starts[b + 1], batch_types[b]
        if not fixed[reader]:
            sort_by(read, ordered[begin:end], scratch)
        for t in range(num_types):
            later[t] = 0 if favourite[t] == reader else num_reads
        number -= reads[b]
        by_operand, reads_views = arity[b] >= 0, not only_sums[reader]
        at, step = number, end - begin if by_operand else 1
        for k in range(begin, end):
            before = -1
            if by_operand:
                at = number + k - begin
            for e in range(offsets[ordered[k]], offsets[ordered[k] + 1]):
                node = inputs[e]
                if node != before:  # cells with two states read each node twice
                    t = types[node]
                    read[node] = min(read[node], at + later[t])
                    if reads_views:
                        keep[t] = True
                at, before = at + step, node
    follow_operands(offsets, inputs, ordered, starts, batch_types, arity, keep)
    return ordered


@inner_loop
def follow_operands(
    offsets: Ints, inputs: Ints, order: Ints, starts: Ints, batch_types: Ints, arity: Ints, keep: Bools
) -> None:
    """Sort batches by where their first operand lies, but for those of types to `keep`; in place.

    Values of a type lie in the order of launch, and those of one type behind those of the one before.
    """
    row, end_of_type = np.empty(len(order), np.int64), np.zeros(len(keep) + 1, np.int64)
    for b in range(len(batch_types)):
        end_of_type[batch_types[b] + 1] += starts[b + 1] - starts[b]
    for t in range(len(keep)):
        end_of_type[t + 1] += end_of_type[t]
    nodes, end = np.empty(len(order), np.int64), np.zeros(len(order) + 1, np.int64)
    for b in range(len(batch_types)):
        begin, size = starts[b], starts[b + 1] - starts[b]
        if not keep[batch_types[b]] and arity[b] > 0:  # by counting
            low, high = len(order), 0
            for k in range(size):
                nodes[k] = order[begin + k]
                at = row[inputs[offsets[nodes[k]]]]
                end[at + 1] += 1
                low, high = min(low, at), max(high, at + 1)
            end[low] = begin
            for at in range(low, high):
                end[at + 1] += end[at]
            for k in range(size):
                at = row[inputs[offsets[nodes[k]]]]
                order[end[at]] = nodes[k]
                end[at] += 1
            end[low : high + 1] = 0
        first = end_of_type[batch_types[b]] - begin
        for k in range(begin, begin + size):
            row[order[k]] = first + k
        end_of_type[batch_types[b]] += size


@inner_loop
def arities(offsets: Ints, order: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """For each batch how many inputs all of its nodes have, -1 when they differ; and how many they have together."""
    arity, total = np.empty(len(starts) - 1, np.int64), np.empty(len(starts) - 1, np.int64)
    for b in range(len(arity)):
        first = offsets[order[starts[b]] + 1] - offsets[order[starts[b]]]
        differ, together = False, 0
        for k in range(starts[b], starts[b + 1]):
            count = offsets[order[k] + 1] - offsets[order[k]]
            differ |= count != first
            together += count
        arity[b], total[b] = -1 if differ else first, together
    return arity, total


@inner_loop
def favourites(
    types: Ints, offsets: Ints, inputs: Ints, order: Ints, starts: Ints, batch_types: Ints, arity: Ints, num_types: int
) -> Ints:
    """For each type its favourite reader, -1 for none; of equals the one that is launched first."""
    count, launched = np.zeros((num_types, num_types), np.int64), np.zeros(num_types, np.int64)
    for b in range(len(batch_types) - 1, -1, -1):
        launched[batch_types[b]] = b
        for j in range(arity[b]):
            t = types[inputs[offsets[order[starts[b]]] + j]]
            is_alone = True
            for k in range(starts[b] + 1, starts[b + 1]):
                if types[inputs[offsets[order[k]] + j]] != t:
                    is_alone = False
                    break
            if is_alone:
                count[t, batch_types[b]] += 1
    favourite = np.full(num_types, -1, np.int64)
    for t in range(num_types):
        most = 0
        if count[t, t] > 0:
            favourite[t], most = t, count[t, t] + 1  # a recurrence begins with values from elsewhere
        for reader in range(num_types):
            is_earlier = favourite[t] >= 0 and launched[reader] < launched[favourite[t]] and favourite[t] != t
            if count[t, reader] > most or (count[t, reader] == most and is_earlier):
                favourite[t], most = reader, count[t, reader]
    return favourite


@inner_loop
def sort_by(number: Ints, nodes: Ints, scratch: Ints) -> None:
    """Sort nodes by their numbers, all different, in place; `scratch` has a place for each number, all -1 before and
    after.
    """
    size = len(nodes)
    low = high = number[nodes[0]]
    is_sorted = True
    for k in range(1, size):
        key = number[nodes[k]]
        is_sorted &= key > high
        low, high = min(low, key), max(high, key)
    if is_sorted:
        return
    if high - low < 16 * size:  # dense numbers, as those of chains: no comparisons
        for k in range(size):
            scratch[number[nodes[k]]] = nodes[k]
        at = 0
        for key in range(low, high + 1):
            if scratch[key] >= 0:
                nodes[at], scratch[key] = scratch[key], -1
                at += 1
    else:
        sort_by_digits(number, nodes, low, high)


@inner_loop
def sort_by_digits(number: Ints, nodes: Ints, low: int, high: int) -> None:
    """Sort nodes by their numbers, which lie between `low` and `high`, in place: five bits after five bits.

    numba's own sort would do, but takes seconds to compile.
    """
    size, shift = len(nodes), 0
    other, ends = np.empty(size, np.int64), np.empty(33, np.int64)
    while (high - low) >> shift:
        for digit in range(33):
            ends[digit] = 0
        for k in range(size):
            ends[((number[nodes[k]] - low) >> shift & 31) + 1] += 1
        for digit in range(32):
            ends[digit + 1] += ends[digit]
        for k in range(size):
            digit = (number[nodes[k]] - low) >> shift & 31
            other[ends[digit]] = nodes[k]
            ends[digit] += 1
        for k in range(size):
            nodes[k] = other[k]
        shift += 5
