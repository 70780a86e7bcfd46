"""Runs the finite state machine of `fsm` over a graph, and learns its table of what each launch is worth (numba).

In: a graph's arrays, a table, and how to explore and learn. Out: a schedule; learning changes the table in place.

A *state* is what the machine sees of the frontier (the nodes that are ready): a list of symbols, each a ready type with
a mark. The *encoding* says which types are listed and how they are marked:

* base: all ready types, without marks. max: the same, with the type that has most ready nodes marked. sort: all ready
  types, those with most ready nodes first. These three are from the ED-Batch paper.
* signs: only types that there is a reason to launch, marked with the reason. LOWERS: launching the type lowers the
  lower bound of the remaining nodes. LONGEST: the longest path of the remaining graph begins at one of its ready nodes.

In a state that is not in the table, the *rule* decides. It launches the type with the largest sum of three terms: 1 if
launching the type lowers the bound; the longest path from its ready nodes, divided by the longest path of all; and
`crowd` times the logarithm of the longest paths from each of its ready nodes, added up. With `crowd` 0 the third term
is left out, which is best for few types; large graphs of many types need it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edbatch.scheduling.frontier import (
    Batches,
    Frontier,
    block,
    bound_of,
    close,
    heights_and_lengths,
    largest,
    launch,
    lowers,
    mixed,
    open_frontier,
    unblock,
)  # fmt: skip
from edbatch.scheduling.fsm import ENCODINGS, MARKS
from edbatch.scheduling.graph import Floats, Ints
from edbatch.storage.loops import inner_loop, loop

BASE, MAX, SORT, SIGNS = range(len(ENCODINGS))
LOWERS, LONGEST = 1, 2  # marks of the encoding signs; a type with both has their sum
MOST = 1  # mark of the encoding max
_NONE = -1


class Table(NamedTuple):
    """What launching each type (a column) was worth in each state (a row); a hash table finds the row of a state."""

    slots: Ints  # hash table of row numbers, _NONE where it is empty; its length is a power of two
    keys: Ints  # per row, the state as one number
    symbols: Ints  # per row, the state's symbols
    lengths: Ints  # per row, how many symbols
    values: Floats
    counts: Ints  # how often a value was updated; 0: never launched here
    size: Ints  # its only entry says how many rows are used


class Signs(NamedTuple):
    """What states and the rule are made of, for every type; kept up to date while types are launched."""

    height: Ints  # from `heights_and_lengths`
    seen: Ints  # queue[seen[t]:tail[t]] has not been looked at yet
    size: Ints  # ready nodes per type
    tops: Ints  # tops[a, s]: the largest height[i, a] of the ready nodes i of type s; last row: their longest paths
    top: Ints  # tops without its last row
    longest: Ints  # the last row of tops
    way: Ints  # per type, the longest paths from each of its ready nodes, added up


def empty_table(num_types: int, max_states: int) -> Table:
    """A table without states, with room for `max_states`."""
    slots = np.full(1 << (2 * max_states).bit_length(), _NONE, np.int32)
    return Table(
        slots, np.zeros(max_states, np.uint64), np.zeros((max_states, num_types), np.int32),
        np.zeros(max_states, np.int32), np.zeros((max_states, num_types)), np.zeros((max_states, num_types), np.int32),
        np.zeros(1, np.int64),
    )  # fmt: skip


@inner_loop
def key_of(symbols: Ints, first: int, count: int) -> int:
    key = mixed(count)
    for k in range(first, first + count):
        key = mixed(key ^ np.uint64(symbols[k]))  # type: ignore[arg-type]
    return key


@inner_loop
def find(table: Table, key: int) -> int:
    """The place of a state in the hash table: it holds the state's row, or _NONE if the state is not in the table."""
    mask = len(table.slots) - 1
    slot = np.int64(key & np.uint64(mask))
    while table.slots[slot] != _NONE and table.keys[table.slots[slot]] != key:
        slot = (slot + 1) & mask
    return slot  # type: ignore[return-value]


@inner_loop
def insert(table: Table, key: int, symbols: Ints, first: int, count: int) -> int:
    """Adds a state that is not in the table yet; returns its row, or _NONE if the table is full."""
    row = table.size[0]
    if row == len(table.keys):
        return _NONE
    table.slots[find(table, key)] = row
    table.keys[row] = key
    table.lengths[row] = count
    for k in range(count):
        table.symbols[row, k] = symbols[first + k]
    table.size[0] += 1
    return row  # type: ignore[no-any-return]


@loop
def insert_all(table: Table, symbols: Ints, starts: Ints) -> None:
    """Adds states; state i has the symbols from `starts[i]` to `starts[i + 1]`."""
    for i in range(len(starts) - 1):
        count = starts[i + 1] - starts[i]
        insert(table, key_of(symbols, starts[i], count), symbols, starts[i], count)


@inner_loop
def look(f: Frontier, signs: Signs) -> None:
    """Update the signs for the nodes that became ready."""
    num_types = len(signs.size)
    for s in range(num_types):
        first, last = signs.seen[s], f.tail[s]
        signs.seen[s], signs.size[s] = last, last - f.head[s]
        if first == last:
            continue
        for a in range(num_types + 1):
            top = signs.tops[a, s]
            for k in range(first, last):
                top = max(top, signs.height[f.queue[k], a])
            signs.tops[a, s] = top
        for k in range(first, last):
            signs.way[s] += signs.height[f.queue[k], num_types]


@inner_loop
def rule_type(signs: Signs, crowd: float) -> int:
    """The type that the rule launches; among equals, the one with most ready nodes."""
    best, best_score, longest = _NONE, 0.0, largest(signs.longest)
    for t in range(len(signs.size)):
        if signs.size[t]:
            score = lowers(signs.top, t) + signs.longest[t] / longest
            if crowd:
                score += crowd * np.log(signs.way[t])
            if best == _NONE or score > best_score or (score == best_score and signs.size[t] > signs.size[best]):
                best, best_score = t, score
    return best


@inner_loop
def encode(encoding: int, signs: Signs, symbols: Ints) -> int:
    """Writes the symbols of the present state and returns how many there are."""
    count, most, longest = 0, 0, largest(signs.longest)
    for t in range(len(signs.size)):
        if signs.size[t] > signs.size[most]:
            most = t
    for t in range(len(signs.size)):
        if not signs.size[t]:
            continue
        mark, at = 0, count
        if encoding == MAX:
            mark = MOST * (t == most)
        elif encoding == SIGNS:
            mark = LOWERS * lowers(signs.top, t) + LONGEST * (signs.longest[t] == longest)
            if mark == 0:
                continue
        elif encoding == SORT:
            while at and signs.size[symbols[at - 1] // MARKS] < signs.size[t]:
                symbols[at] = symbols[at - 1]
                at -= 1
        symbols[at] = MARKS * t + mark
        count += 1
    return count


@inner_loop
def sees(symbols: Ints, count: int, t: int) -> bool:
    """Whether a type is in a state."""
    found = False
    for k in range(count):
        found = found or symbols[k] // MARKS == t
    return found


@inner_loop
def best_known(table: Table, row: int) -> int:
    """The type that was worth most in this state, among those that were tried there; _NONE if none was."""
    best = _NONE
    for t in range(table.counts.shape[1]):
        if table.counts[row, t] and (best == _NONE or table.values[row, t] > table.values[row, best]):
            best = t
    return best


@inner_loop
def uniform(random: Ints) -> float:
    """A random number from 0 to 1; `random` is the counter that it is computed from, which is advanced."""
    random[0] += np.uint64(1)
    return (mixed(mixed(random[0])) >> np.uint64(11)) / 9007199254740992.0


@inner_loop
def learn_return(table: Table, row: int, t: int, rewards: Floats, value: float, discount: float, rate: float) -> None:
    """Moves what launching t in a state is worth towards its return: the rewards that followed, then `value`."""
    if row == _NONE:  # the launch is not learned from
        return
    for k in range(len(rewards) - 1, -1, -1):
        value = rewards[k] + discount * value
    share = rate if table.counts[row, t] else 1.0
    table.values[row, t] += share * (value - table.values[row, t])
    table.counts[row, t] += 1


@loop
def play(
    types: Ints, offsets: Ints, inputs: Ints, num_types: int, encoding: int, crowd: float, table: Table, random: Ints,
    explore: float, alpha: float, discount: float, rate: float, steps: int,
) -> tuple[Batches, int, int]:  # fmt: skip
    """Schedules one graph. Returns the batches, how many states were not in the table, and the graph's lower bound.

    With a `rate` above 0 it also learns. New states are added to the table. A launch is judged by its return: the next
    `steps` rewards, and then what the best known launch is worth in the state reached; if that state is not in the
    table, rewards are added up until one is. With probability `explore` a random type of the state is launched, but in
    a new state the rule decides, so that the rule's choice is always the first to be tried. A launch of a type that is
    not in its state is not learned from.
    """
    n = len(types)
    f = open_frontier(types, offsets, inputs, num_types)
    tops = np.zeros((num_types + 1, num_types), np.int32)
    signs = Signs(
        heights_and_lengths(types, offsets, inputs, num_types), f.head.copy(), np.zeros(num_types, np.int64),
        tops, tops[:num_types], tops[num_types], np.zeros(num_types, np.int64),
    )  # fmt: skip
    learns = n if rate else 0
    blocks, free = block(types[:learns], offsets, inputs, num_types)
    stack, rows, rewards = np.empty(learns, np.int32), np.empty(learns, np.int64), np.empty(learns)
    symbols = np.empty(num_types, np.int32)
    waiting, batch, due, unknown, bound = n, 0, 0, 0, 0
    while waiting:
        look(f, signs)
        if batch == 0:
            bound = bound_of(signs.top)
        count = encode(encoding, signs, symbols)
        key = key_of(symbols, 0, count)
        row = table.slots[find(table, key)]
        chosen = best_known(table, row) if row != _NONE else _NONE
        if chosen == _NONE or not signs.size[chosen]:  # not ready: another state has the same key
            unknown += 1
            chosen = rule_type(signs, crowd)
            if not sees(symbols, count, chosen):
                row = _NONE
            elif rate and row == _NONE:
                row = insert(table, key, symbols, 0, count)
        else:
            while rate and due + steps <= batch:
                value, past = table.values[row, chosen], rewards[due:batch]
                learn_return(table, rows[due], f.batch_types[due], past, value, discount, rate)
                due += 1
            if explore and uniform(random) < explore:
                chosen = symbols[int(uniform(random) * count)] // MARKS
        if rate:
            size = signs.size[chosen]
            rows[batch], rewards[batch] = row, alpha * size / free[chosen] - 1
            free[chosen] += unblock(f, chosen, blocks, stack) - size
        for a in range(num_types + 1):
            tops[a, chosen] = 0
        signs.way[chosen] = 0
        waiting -= launch(f, chosen, batch)
        batch += 1
    while rate and due < batch:
        learn_return(table, rows[due], f.batch_types[due], rewards[due:batch], 0.0, discount, rate)
        due += 1
    return close(f, batch), unknown, bound
