"""Finds out what every node reads, for checks: slowly, in plain Python and numpy, without the compiled loops.

In: the arrays of a recording (types and args, see `layout.py`). Out: its `Reads`, and how many rows each node has. The
checks of recordings, layouts and plans compare with them, so that a mistake in the loops is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from edbatch.layout.layout import Ints, Slot, SlotTable

LISTS = (Slot.LIST, Slot.SUM)  # slots that begin with a length
OF_ROWS = (Slot.ROWS, Slot.SUM_ROWS)  # slots that read all rows of a value


def require(is_right: Any, text: Callable[[int], str]) -> None:
    """Raise an AssertionError if an entry is not true; `text` makes the message from the number of the first one."""
    wrong = np.flatnonzero(~np.asarray(is_right))
    if len(wrong):
        raise AssertionError(text(int(wrong[0])))


def require_same(what: str, found: Any, expected: Any) -> None:
    """Raise an AssertionError unless two arrays are the same."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        raise AssertionError(f"{what}: the shape is {found.shape}, not {expected.shape}")
    flat, wanted = found.reshape(-1), expected.reshape(-1)
    require(flat == wanted, lambda i: f"{what}: number {i} is {flat[i]}, not {wanted[i]}")


class Reads(NamedTuple):
    """What nodes read, entry by entry of `args`: which node, through which slot (numbered through all types), how the
    slot is read, and the entry itself, a reference or a number."""

    node: Ints
    slot: Ints
    kind: Ints
    value: Ints

    def refs(self) -> Reads:
        """Only the entries that are references."""
        is_ref = self.kind != Slot.DATA
        return Reads(self.node[is_ref], self.slot[is_ref], self.kind[is_ref], self.value[is_ref])


def parse(types: Any, args: Ints, table: SlotTable) -> Reads:
    """Takes the args of all nodes apart: first where those of each node begin, then slot by slot."""
    begins, found = _begins(types, args, table), [np.empty((4, 0), np.int64)]
    for t, (first, end) in enumerate(pairwise(table.starts.tolist())):
        nodes = np.flatnonzero(types == t)
        at = begins[nodes]
        for slot in range(first, end):
            kind = table.kinds[slot]
            count = np.full(len(nodes), int(kind != Slot.OFFSETS))
            if kind in LISTS:
                count, at = args[at], at + 1
            total = int(count.sum())
            columns = np.repeat(nodes, count), np.full(total, slot), np.full(total, kind), ranges(at, count)
            found.append(np.stack(columns))
            at = at + count
    node, slots, kinds, places = np.concatenate(found, axis=1)
    order = np.argsort(places)
    return Reads(node[order], slots[order], kinds[order], args[places[order]])


def _begins(types: Any, args: Ints, table: SlotTable) -> Ints:
    """Where the args of each node begin."""
    kinds = [table.kinds[a:b].tolist() for a, b in pairwise(table.starts)]
    plain = [None if set(k).intersection(LISTS) else len(k) - k.count(Slot.OFFSETS) for k in kinds]
    flat, begins, at = args.tolist(), [], 0
    for node, t in enumerate(types.tolist()):
        begins.append(at)
        num_args = plain[t]
        if num_args is None:
            num_args = 0
            for kind in kinds[t]:
                if kind in LISTS:
                    count = flat[at + num_args] if at + num_args < len(flat) else 0
                    if count < 1:
                        raise AssertionError(f"node {node} lists {count} values; a list has at least one")
                    num_args += count
                num_args += kind != Slot.OFFSETS
        at += num_args
        if at > len(flat):
            raise AssertionError(f"the args of node {node} end at {at}, but there are {len(flat)}")
    if at != len(flat):
        raise AssertionError(f"the args of all nodes end at {at}, but there are {len(flat)}")
    return np.array(begins, np.int64)


def lengths(num_nodes: int, reads: Reads) -> Ints:
    """How many rows each node has: as many as it lists values, or as a ragged value has that it reads; else one."""
    rows, known = [1] * num_nodes, set()
    is_long = (reads.kind == Slot.LIST) | (reads.kind == Slot.ROWS)
    entries = zip(*[column[is_long].tolist() for column in reads], strict=True)
    for (node, slot), of_slot in groupby(entries, itemgetter(0, 1)):
        (_, _, kind, value), *others = of_slot
        count = 1 + len(others) if kind == Slot.LIST else rows[value & 0xFFFFFFFF]
        if node in known and rows[node] != count:
            raise AssertionError(f"node {node} reads {count} rows through slot {slot}, but {rows[node]} before")
        rows[node] = count
        known.add(node)
    return np.array(rows, np.int64)


def ranges(first: Ints, counts: Ints) -> Ints:
    """The numbers of several ranges, one range after the other; range i has `counts[i]` numbers from `first[i]` on."""
    offset = np.cumsum(counts) - counts
    return np.repeat(first - offset, counts) + np.arange(counts.sum())
