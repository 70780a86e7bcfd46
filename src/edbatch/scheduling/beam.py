"""Bound greedy with a beam: the best few partial schedules are extended side by side, instead of one (numba).

In: a graph's arrays, its consumers and heights from `frontier`. Out: the batch of each node and the type of each batch.

All schedules in the beam have launched the same number of batches. Each has a *slot*: its index in the arrays here.
Slots share what they have in common, so that the cost of a step depends on what it launches and not on the size of the
graph:

* ready nodes are linked lists, whose elements (`cells`) never change; a copied slot shares them;
* `missing[i]`, the number of inputs that node i waits for, has an entry per slot. Slots may disagree only about the
  nodes in `contested`, and only those entries are copied.

Slots that have launched the same nodes are merged: every node has a random number, and sets of nodes are compared by
the sums of these numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edbatch.scheduling.frontier import bound_of, lowers, mixed
from edbatch.scheduling.graph import Ints
from edbatch.storage.loops import inner_loop, loop

_NOTHING = -1


class Slots(NamedTuple):
    """One row per slot. The ready nodes of type t are the linked list that begins at `first[slot, t]`."""

    first: Ints
    size: Ints  # ready nodes per type
    top: Ints  # top[slot, a, s]: the largest height_a of the ready nodes of type s
    ready_key: Ints  # per type, the sum of the keys of its ready nodes
    done_key: Ints  # the sum of the keys of the launched nodes
    bound: Ints  # the lower bound of the remaining nodes
    waiting: Ints  # how many nodes remain
    last: Ints  # the last launch, an index into the log


@inner_loop
def add_ready(slots: Slots, slot: int, node: int, t: int, height: Ints, cells: Ints, num_cells: int) -> int:
    """Note that a node of type t is ready in this slot; returns the new number of list elements."""
    cells[num_cells, 0] = node
    cells[num_cells, 1] = slots.first[slot, t]
    slots.first[slot, t] = num_cells
    slots.size[slot, t] += 1
    slots.ready_key[slot, t] += mixed(node)
    for a in range(height.shape[1]):
        slots.top[slot, a, t] = max(slots.top[slot, a, t], height[node, a])
    return num_cells + 1


@inner_loop
def best_moves(slots: Slots, live: Ints, num_live: int, moves: Ints, keys: Ints) -> int:
    """Fills `moves` with rows (bound after, nodes waiting after, slot, type), best first, and returns how many.

    Ties go to the slot that was better before, then to the smaller type. Of moves after which the same nodes are
    launched only one is kept: that with the smallest batch.
    """
    width, num_types = slots.size.shape
    found = 0
    for rank in range(num_live):
        slot = live[rank]
        for t in range(num_types):
            if slots.size[slot, t] == 0:
                continue
            bound = slots.bound[slot] - lowers(slots.top[slot], t)
            waiting = slots.waiting[slot] - slots.size[slot, t]
            key = slots.done_key[slot] + slots.ready_key[slot, t]
            at = found
            while at > 0 and (moves[at - 1, 0] > bound or (moves[at - 1, 0] == bound and moves[at - 1, 1] > waiting)):
                at -= 1
            same = at - 1  # equal outcomes have equal scores
            while same >= 0 and moves[same, 0] == bound and moves[same, 1] == waiting and keys[same] != key:
                same -= 1
            if same >= 0 and keys[same] == key:
                if slots.size[slot, t] < slots.size[moves[same, 2], moves[same, 3]]:  # the same outcome for less work
                    moves[same, 2], moves[same, 3] = slot, t
                continue
            if at == width:
                continue
            for k in range(min(found, width - 1), at, -1):
                keys[k] = keys[k - 1]
                for column in range(4):
                    moves[k, column] = moves[k - 1, column]
            moves[at, 0], moves[at, 1], moves[at, 2], moves[at, 3] = bound, waiting, slot, t
            keys[at] = key
            found = min(found + 1, width)
    return found


@inner_loop
def copy_slot(slots: Slots, source: int, target: int) -> None:
    for t in range(slots.size.shape[1]):
        slots.first[target, t] = slots.first[source, t]
        slots.size[target, t] = slots.size[source, t]
        slots.ready_key[target, t] = slots.ready_key[source, t]
        for a in range(slots.size.shape[1]):
            slots.top[target, a, t] = slots.top[source, a, t]
    slots.done_key[target] = slots.done_key[source]
    slots.bound[target] = slots.bound[source]
    slots.waiting[target] = slots.waiting[source]
    slots.last[target] = slots.last[source]


@inner_loop
def spread(slots: Slots, moves: Ints, num_moves: int, missing: Ints, contested: Ints) -> None:
    """Give every move a slot of its own: one of the moves from a slot keeps it, the others get copies of it."""
    users = np.zeros(len(slots.bound), np.int64)
    for k in range(num_moves):
        users[moves[k, 2]] += 1
    free = 0
    for k in range(num_moves - 1, -1, -1):
        slot = moves[k, 2]
        if users[slot] > 1:
            while users[free]:
                free += 1
            copy_slot(slots, slot, free)
            for node in contested:
                missing[node, free] = missing[node, slot]
            users[slot] -= 1
            users[free] = 1
            moves[k, 2] = free


@inner_loop
def grown(rows: Ints, used: int, needed: int) -> Ints:
    """The array, or a larger copy of its used rows if `needed` rows do not fit."""
    if needed <= len(rows):
        return rows
    larger = np.empty((max(needed, 2 * len(rows)), rows.shape[1]), np.int32)
    for row in range(used):
        for column in range(rows.shape[1]):
            larger[row, column] = rows[row, column]
    return larger


@inner_loop
def settle(missing: Ints, live: Ints, num_live: int, contested: Ints, is_contested: Ints) -> int:
    """Drops the contested nodes about which all live slots agree and tells the other slots; returns how many stay."""
    kept = 0
    for node in contested:
        agreed = missing[node, live[0]]
        for rank in range(1, num_live):
            if missing[node, live[rank]] != agreed:
                contested[kept] = node
                kept += 1
                break
        else:
            for slot in range(missing.shape[1]):
                missing[node, slot] = agreed
            is_contested[node] = False
    return kept


@loop
def run_beam(types: Ints, offsets: Ints, starts: Ints, consumers: Ints, height: Ints, width: int) -> tuple[Ints, Ints]:
    """The batch of each node and the type of each batch."""
    n, num_types = height.shape
    slots = Slots(
        np.full((width, num_types), _NOTHING, np.int64), np.zeros((width, num_types), np.int64),
        np.zeros((width, num_types, num_types), np.int32), np.zeros((width, num_types), np.uint64),
        np.zeros(width, np.uint64), np.zeros(width, np.int64), np.full(width, n, np.int64),
        np.full(width, _NOTHING, np.int64),
    )  # fmt: skip
    missing = np.empty((n, width), np.int32)
    cells: Ints = np.empty((2 * n, 2), np.int32)  # node, next cell
    num_cells = 0
    for i in range(n):
        for slot in range(width):
            missing[i, slot] = offsets[i + 1] - offsets[i]
        if offsets[i + 1] == offsets[i]:
            num_cells = add_ready(slots, 0, i, types[i], height, cells, num_cells)
    slots.bound[0] = bound_of(slots.top[0])
    log: Ints = np.empty((1024, 3), np.int32)  # the launch before, type, first cell
    num_log = 0
    contested, num_contested, limit = np.empty(n, np.int32), 0, width
    is_contested = np.zeros(n, np.int8)
    moves, keys = np.empty((width, 4), np.int64), np.empty(width, np.uint64)
    live, num_live, batches = np.zeros(width, np.int64), 1, 0
    while slots.waiting[live[0]]:
        num_live = best_moves(slots, live, num_live, moves, keys)
        spread(slots, moves, num_live, missing, contested[:num_contested])
        log = grown(log, num_log, num_log + num_live)
        for rank in range(num_live):
            slot, t = moves[rank, 2], moves[rank, 3]
            live[rank] = slot
            cell = slots.first[slot, t]
            log[num_log, 0], log[num_log, 1], log[num_log, 2] = slots.last[slot], t, cell
            slots.last[slot] = num_log
            num_log += 1
            slots.bound[slot], slots.waiting[slot] = moves[rank, 0], moves[rank, 1]
            cells = grown(cells, num_cells, num_cells + slots.waiting[slot])
            slots.done_key[slot] = keys[rank]
            slots.first[slot, t], slots.size[slot, t], slots.ready_key[slot, t] = _NOTHING, 0, 0
            for a in range(num_types):
                slots.top[slot, a, t] = 0
            while cell != _NOTHING:
                for e in range(starts[cells[cell, 0]], starts[cells[cell, 0] + 1]):
                    c = consumers[e]
                    missing[c, slot] -= 1
                    if not is_contested[c]:
                        is_contested[c] = True
                        contested[num_contested] = c
                        num_contested += 1
                    if missing[c, slot] == 0:
                        num_cells = add_ready(slots, slot, c, types[c], height, cells, num_cells)
                cell = cells[cell, 1]
        if num_contested > limit:
            num_contested = settle(missing, live, num_live, contested[:num_contested], is_contested)
            limit = 2 * num_contested + width
        batches += 1
        for rank in range(1, num_live):  # a finished schedule is best: all have launched equally many batches
            if slots.waiting[live[rank]] == 0:
                live[0] = live[rank]
    batch_of, batch_types = np.empty(n, np.int32), np.empty(batches, np.int32)
    entry = slots.last[live[0]]
    for batch in range(batches - 1, -1, -1):
        batch_types[batch] = log[entry, 1]
        cell = log[entry, 2]
        while cell != _NOTHING:
            batch_of[cells[cell, 0]] = batch
            cell = cells[cell, 1]
        entry = log[entry, 0]
    return batch_of, batch_types
