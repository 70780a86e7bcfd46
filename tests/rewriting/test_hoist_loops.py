"""Recurrent slots and split nodes, against slow and obvious ones on random recordings."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edbatch.layout.layout import REF, Slot
from edbatch.rewriting import hoist_loops

COUNTED = (Slot.LIST, Slot.SUM)


@st.composite
def recordings(draw):
    """The slots of each type, and the nodes: (type, for each slot the list of its references or numbers)."""
    kinds = st.sampled_from([Slot.ONE, Slot.DATA, Slot.OFFSETS, *COUNTED])
    slots = draw(st.lists(st.lists(kinds, max_size=3), min_size=1, max_size=5))
    nodes = []
    for n in range(draw(st.integers(0, 25))):
        t = draw(st.integers(0, len(slots) - 1))
        refs = st.integers(-3, -1)
        if n:
            refs |= st.tuples(st.integers(0, n - 1), st.integers(0, 2)).map(lambda ref: ref[0] + ref[1] * REF)
        args = []
        for kind in slots[t]:
            if kind in COUNTED:
                args.append(draw(st.lists(refs, max_size=3)))
            else:
                args.append([] if kind == Slot.OFFSETS else [draw(refs if kind == Slot.ONE else st.integers(-9, 99))])
        nodes.append((t, args))
    return slots, nodes


def flat(slots, nodes):
    """The arrays that kernels read."""
    args = []
    for t, node_args in nodes:
        for kind, values in zip(slots[t], node_args, strict=True):
            args += [len(values), *values] if kind in COUNTED else values
    arrays = [t for t, _ in nodes], args, np.cumsum([0, *map(len, slots)]), [kind for s in slots for kind in s]
    return tuple(np.array(array, dtype=np.int64) for array in arrays)


def producers(kind, values):
    return [] if kind == Slot.DATA else [v & (REF - 1) for v in values if v >= 0]


@given(recordings())
def test_recurrent_slots(recording):
    slots, nodes = recording
    reads = {
        (a, nodes[p][0])
        for a, args in nodes
        for kind, v in zip(slots[a], args, strict=True)
        for p in producers(kind, v)
    }
    reaches = set(reads)
    while more := {(a, d) for a, b in reaches for c, d in reads if b == c} - reaches:
        reaches |= more
    expected = [[False] * len(s) for s in slots]
    for t, args in nodes:
        for s, (kind, values) in enumerate(zip(slots[t], args, strict=True)):
            expected[t][s] |= any((nodes[p][0], t) in reaches for p in producers(kind, values))
    assert hoist_loops.recurrent_slots(*flat(slots, nodes)).tolist() == [r for row in expected for r in row]


@given(recordings(), st.data())
def test_split_nodes(recording, data):
    slots, nodes = recording
    is_split = [data.draw(st.booleans()) for _ in slots]
    in_ahead, in_main = ([[data.draw(st.booleans()) for _ in s] for s in slots] for _ in range(2))
    in_main = [m if split else [True] * len(m) for m, split in zip(in_main, is_split, strict=True)]
    num_results = [data.draw(st.integers(1, 2)) for _ in slots]
    main = np.arange(len(slots)) + np.cumsum(is_split)
    ahead = np.where(is_split, main - 1, -1)
    expected, place = [], []
    for t, args in nodes:
        moved = [
            [v if kind == Slot.DATA or v < 0 else place[v & (REF - 1)] + (v >> 32) * REF for v in values]
            for kind, values in zip(slots[t], args, strict=True)
        ]
        if is_split[t]:
            first = (ahead[t], [(k, v) for k, v, i in zip(slots[t], moved, in_ahead[t], strict=True) if i])
            if first not in expected:
                expected.append(first)
        kept = [(k, v) for k, v, i in zip(slots[t], moved, in_main[t], strict=True) if i]
        if is_split[t]:
            kept += [(Slot.ONE, [expected.index(first) + k * REF]) for k in range(num_results[t])]
        place.append(len(expected))
        expected.append((main[t], kept))
    args = [a for _, kept in expected for k, v in kept for a in ([len(v), *v] if k in COUNTED else v)]
    found = hoist_loops.split_nodes(
        *flat(slots, nodes), ahead, main, np.array([i for s in in_ahead for i in s], np.bool_),
        np.array([i for s in in_main for i in s], np.bool_), np.array(num_results),
    )  # fmt: skip
    assert [f.tolist() for f in found] == [[t for t, _ in expected], args, place]
