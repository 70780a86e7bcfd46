"""The loops of the policies, and the simulation of launches that they share, compiled by numba.

In: a graph's flat arrays. Out: a schedule as (order, starts, batch_types). The *frontier* is the state of the
simulation: which nodes have been launched, which are ready because all their inputs have been, and which wait.

A policy is one loop: `open_frontier`; then, while nodes wait, choose a type that has ready nodes (`head[t] < tail[t]`)
and `launch` it; at last `close`. A launch appends newly ready nodes to their type's part of `queue`, so a policy that
remembers `tail[t]` finds the new ones behind it.

Compiled code is kept in the cache folder. Import this module inside functions only: numba takes 0.3 s to import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from edbatch.scheduling.graph import Ints
from edbatch.storage.loops import inner_loop, loop

Batches = tuple[Ints, Ints, Ints]
F = TypeVar("F", bound=Callable[..., Any])


class Frontier(NamedTuple):
    """Which nodes are launched, ready or waiting. Ready nodes of type t are `queue[head[t]:tail[t]]`, in any order."""

    types: Ints
    starts: Ints  # the consumers of node p are consumers[starts[p]:starts[p + 1]], one entry per edge
    consumers: Ints
    missing: Ints  # per node, how many of its inputs have not been launched
    queue: Ints
    head: Ints
    tail: Ints
    batch_of: Ints
    batch_types: Ints
    batch_starts: Ints  # how many nodes were launched before each batch


@loop
def consumers(offsets: Ints, inputs: Ints) -> tuple[Ints, Ints]:
    """The edges seen from the producers: consumers of node p are `consumers[starts[p]:starts[p + 1]]`, ascending."""
    n = len(offsets) - 1
    starts = np.zeros(n + 2, np.int64)
    for e in range(len(inputs)):
        starts[inputs[e] + 2] += 1
    for i in range(2, n + 2):
        starts[i] += starts[i - 1]
    found = np.empty(len(inputs), np.int32)
    for i in range(n):
        for e in range(offsets[i], offsets[i + 1]):
            p = inputs[e]
            found[starts[p + 1]] = i
            starts[p + 1] += 1
    return starts[: n + 1], found


@loop
def depths(offsets: Ints, inputs: Ints) -> Ints:
    """Per node, the number of edges on the longest path from a source."""
    n = len(offsets) - 1
    depth = np.zeros(n, np.int32)
    for i in range(n):
        for e in range(offsets[i], offsets[i + 1]):
            depth[i] = max(depth[i], depth[inputs[e]] + 1)
    return depth


@inner_loop
def heights_and_lengths(types: Ints, offsets: Ints, inputs: Ints, num_types: int) -> Ints:
    """`[i, a]`: the largest number of nodes of type a on a path from node i to a sink, i included.

    The last column counts nodes of any type: the length of the longest path.
    """
    n = len(types)
    height = np.zeros((n, num_types + 1), np.int32)
    for i in range(n - 1, -1, -1):
        height[i, types[i]] += 1
        height[i, num_types] += 1
        for e in range(offsets[i], offsets[i + 1]):
            p = inputs[e]
            for a in range(num_types + 1):
                height[p, a] = max(height[p, a], height[i, a])
    return height


@loop
def heights(types: Ints, offsets: Ints, inputs: Ints, num_types: int) -> Ints:
    """`heights[i, a]`: the largest number of nodes of type a on a path from node i to a sink, i included."""
    return heights_and_lengths(types, offsets, inputs, num_types)[:, :num_types].copy()


@inner_loop
def mixed(number: int) -> int:
    """A 64-bit hash of a number: the finalizer of splitmix64."""
    z = np.uint64(number) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))  # type: ignore[return-value]


@inner_loop
def open_frontier(types: Ints, offsets: Ints, inputs: Ints, num_types: int) -> Frontier:
    """The frontier before the first launch: nodes without inputs are ready."""
    n = len(types)
    starts, found = consumers(offsets, inputs)
    head = np.zeros(num_types, np.int64)
    for i in range(n):
        head[types[i]] += 1
    first = 0
    for t in range(num_types):
        first, head[t] = first + head[t], first
    tail = head.copy()
    missing = np.empty(n, np.int32)
    queue = np.empty(n, np.int32)
    for i in range(n):
        missing[i] = offsets[i + 1] - offsets[i]
        if missing[i] == 0:
            queue[tail[types[i]]] = i
            tail[types[i]] += 1
    return Frontier(
        types, starts, found, missing, queue, head, tail, np.empty(n, np.int32), np.empty(n, np.int32),
        np.zeros(n + 1, np.int64),
    )  # fmt: skip


@inner_loop
def launch(f: Frontier, t: int, batch: int) -> int:
    """Launch all ready nodes of type t as this batch, queue those that become ready, and return how many ran."""
    first, last = f.head[t], f.tail[t]
    f.head[t] = last
    f.batch_types[batch] = t
    f.batch_starts[batch + 1] = f.batch_starts[batch] + last - first
    for k in range(first, last):
        p = f.queue[k]
        f.batch_of[p] = batch
        for e in range(f.starts[p], f.starts[p + 1]):
            c = f.consumers[e]
            f.missing[c] -= 1
            if f.missing[c] == 0:
                s = f.types[c]
                f.queue[f.tail[s]] = c
                f.tail[s] += 1
    return last - first  # type: ignore[no-any-return]


@inner_loop
def close(f: Frontier, num_batches: int) -> Batches:
    """The launched batches, node ids ascending inside each."""
    starts = f.batch_starts[: num_batches + 1]
    order, at = np.empty(len(f.batch_of), np.int64), starts.copy()
    for i in range(len(order)):
        b = f.batch_of[i]
        order[at[b]] = i
        at[b] += 1
    return order, starts, f.batch_types[:num_batches].copy()


@loop
def run_agenda(types: Ints, offsets: Ints, inputs: Ints, num_types: int, remaining: bool) -> Batches:
    """Launch the ready type with the smallest mean depth, over all of its nodes or over those that remain."""
    f = open_frontier(types, offsets, inputs, num_types)
    depth = depths(offsets, inputs)
    total = np.zeros(num_types, np.int64)
    count = np.zeros(num_types, np.int64)
    for i in range(len(types)):
        total[types[i]] += depth[i]
        count[types[i]] += 1
    waiting, batch = len(types), 0
    while waiting:
        best, best_mean = -1, np.inf
        for t in range(num_types):
            if f.head[t] < f.tail[t] and total[t] / count[t] < best_mean:
                best, best_mean = t, total[t] / count[t]
        if remaining:
            for k in range(f.head[best], f.tail[best]):
                total[best] -= depth[f.queue[k]]
            count[best] -= f.tail[best] - f.head[best]
        waiting -= launch(f, best, batch)
        batch += 1
    return close(f, batch)


@inner_loop
def lowers(top: Ints, t: int) -> bool:
    """Whether launching t lowers the bound; `top[a, s]`: the largest `heights[i, a]` of the ready nodes i of type s."""
    for s in range(top.shape[1]):  # noqa: SIM110, numba knows no generator expressions
        if s != t and top[t, s] >= top[t, t]:
            return False
    return True


@inner_loop
def largest(numbers: Ints) -> int:
    best = numbers[0]
    for number in numbers:
        best = max(best, number)
    return best  # type: ignore[no-any-return]


@inner_loop
def bound_of(top: Ints) -> int:
    """The lower bound of the remaining nodes; `top` is as in `lowers`."""
    total = 0
    for a in range(len(top)):
        total += largest(top[a])
    return total


@loop
def run_bound_greedy(types: Ints, offsets: Ints, inputs: Ints, num_types: int) -> Batches:
    """Launch the type that leaves the smallest lower bound for what remains; among equals, that with most ready nodes.

    Call `heights[i, a]` the height_a of node i. The lower bound is the sum over all types a of the largest height_a of
    a ready node. Launching type t does not change the terms of other types: whatever comes after a launched node also
    comes after a newly ready node, or after a ready node that was not launched. Launching t lowers term t by one if no
    ready node of another type has an equal or larger height_t, because newly ready nodes have a smaller one; else term
    t stays, too. So one row of `top` is enough to judge a type.
    """
    f = open_frontier(types, offsets, inputs, num_types)
    height = heights_and_lengths(types, offsets, inputs, num_types)
    top = np.zeros((num_types, num_types), np.int32)  # top[a, s]: the largest height_a of the ready nodes of type s
    seen = f.head.copy()  # queue[seen[s]:tail[s]] is not in top yet
    waiting, batch = len(types), 0
    while waiting:
        best, best_size, best_lowers = -1, 0, False
        for s in range(num_types):
            for k in range(seen[s], f.tail[s]):
                for a in range(num_types):
                    top[a, s] = max(top[a, s], height[f.queue[k], a])
            seen[s] = f.tail[s]
        for t in range(num_types):
            size = f.tail[t] - f.head[t]
            if size:
                is_lower = lowers(top, t)
                if (is_lower and not best_lowers) or (is_lower == best_lowers and size > best_size):
                    best, best_size, best_lowers = t, size, is_lower
        waiting -= launch(f, best, batch)
        for a in range(num_types):
            top[a, best] = 0
        batch += 1
    return close(f, batch)


@loop
def run_ratio_greedy(types: Ints, offsets: Ints, inputs: Ints, num_types: int) -> Batches:
    """Launch the type with the largest ratio of ready nodes to free nodes; see `policies.RatioGreedy`."""
    f = open_frontier(types, offsets, inputs, num_types)
    blocks, free = block(types, offsets, inputs, num_types)
    stack = np.empty(len(types), np.int32)
    waiting, batch = len(types), 0
    while waiting:
        best, best_size = -1, 0
        for t in range(num_types):
            size = f.tail[t] - f.head[t]
            if size and (best < 0 or size * free[best] > best_size * free[t]):
                best, best_size = t, size
        free[best] += unblock(f, best, blocks, stack) - best_size
        waiting -= launch(f, best, batch)
        batch += 1
    return close(f, batch)


@inner_loop
def block(types: Ints, offsets: Ints, inputs: Ints, num_types: int) -> tuple[Ints, Ints]:
    """`blocks[i, a]`: how many inputs of node i are waiting nodes of type a or depend on one.

    `free[a]`: how many waiting nodes of type a depend on no other one.
    """
    n = len(types)
    blocks = np.zeros((n, num_types), np.int32)
    free = np.zeros(num_types, np.int64)
    for i in range(n):
        for e in range(offsets[i], offsets[i + 1]):
            p = inputs[e]
            for a in range(num_types):
                blocks[i, a] += blocks[p, a] > 0
            if blocks[p, types[p]] == 0:
                blocks[i, types[p]] += 1
        if blocks[i, types[i]] == 0:
            free[types[i]] += 1
    return blocks, free


@inner_loop
def unblock(f: Frontier, a: int, blocks: Ints, stack: Ints) -> int:
    """The ready nodes of type a are about to be launched: take them out of `blocks`; returns how many nodes that frees.

    Each edge is crossed at most once per type over a whole run.
    """
    freed, size = 0, 0
    for k in range(f.head[a], f.tail[a]):
        stack[size] = f.queue[k]
        size += 1
    while size:
        size -= 1
        p = stack[size]
        for e in range(f.starts[p], f.starts[p + 1]):
            c = f.consumers[e]
            blocks[c, a] -= 1
            if blocks[c, a] == 0:
                if f.types[c] == a:
                    freed += 1
                else:
                    stack[size] = c
                    size += 1
    return freed
