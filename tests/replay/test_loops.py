"""Recordings cut into pieces and put together again, against examples that are laid out one after the other by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edbatch.layout.layout import REF, Slot
from edbatch.replay import loops

COUNTED = (Slot.LIST, Slot.SUM)
KINDS = (Slot.ONE, Slot.REPEAT, Slot.ROWS, Slot.SUM_ROWS, Slot.DATA, Slot.OFFSETS, *COUNTED)


@st.composite
def examples_of(draw, num_leaves):
    """The slots of each type, and examples: (nodes, number of inputs, leaves), all numbered from 0.

    A node is a type and, for each slot, the list of its references or numbers.
    """
    slots = draw(st.lists(st.lists(st.sampled_from(KINDS), max_size=3), min_size=1, max_size=4))
    examples = []
    for _ in range(draw(st.integers(1, 4))):
        num_inputs, nodes = draw(st.integers(1, 2)), []
        refs = st.integers(-num_inputs, -1)
        for n in range(draw(st.integers(0, 6))):
            t = draw(st.integers(0, len(slots) - 1))
            args = []
            for kind in slots[t]:
                if kind in COUNTED:
                    args.append(draw(st.lists(refs, min_size=1, max_size=3)))
                else:
                    one = st.integers(-9, 99) if kind == Slot.DATA else refs
                    args.append([] if kind == Slot.OFFSETS else [draw(one)])
            nodes.append((t, args))
            refs |= st.sampled_from([n, n + REF])
        examples.append((nodes, num_inputs, draw(st.lists(refs, min_size=num_leaves, max_size=num_leaves))))
    return slots, examples


def one_after_the_other(slots, examples, input_numbers=None):
    """Types, args, leaves, and the first nodes and inputs, of examples as if they were recorded together."""
    types, args, leaves, starts, input_starts = [], [], [], [0], [0]
    for nodes, num_inputs, refs in examples:

        def moved(ref, node=starts[-1], first=input_starts[-1]):
            number = first - 1 - ref
            return ref + node if ref >= 0 else -1 - (number if input_numbers is None else input_numbers[number])

        for t, slot_args in nodes:
            types.append(t)
            for kind, values in zip(slots[t], slot_args, strict=True):
                args += [len(values)] if kind in COUNTED else []
                args += values if kind == Slot.DATA else [moved(ref) for ref in values]
        leaves.append([moved(ref) for ref in refs])
        starts.append(len(types))
        input_starts.append(input_starts[-1] + num_inputs)
    return types, args, leaves, starts, input_starts


def ints(values):
    return np.array(values, dtype=np.int64)


def cut(slots, examples):
    types, args, _, starts, input_starts = one_after_the_other(slots, examples)
    local = [ref for _, _, refs in examples for ref in refs]
    leaf_starts = np.cumsum([0, *(len(refs) for _, _, refs in examples)])
    table = np.cumsum([0, *map(len, slots)]), ints([kind for kinds in slots for kind in kinds])
    return loops.cut(ints(types), ints(args), ints(starts), ints(input_starts), ints(local), leaf_starts, *table)


@given(examples_of(num_leaves=2), st.data())
def test_joined_as_if_recorded_one_after_the_other(given_examples, data):
    slots, examples = given_examples
    rows, flat, is_ref, used, used_starts, is_foreign = cut(slots, examples)
    assert not is_foreign.any()
    for e, (nodes, _, _) in enumerate(examples):
        assert used[used_starts[e] : used_starts[e + 1]].tolist() == list(dict.fromkeys(t for t, _ in nodes))
    order = data.draw(st.lists(st.integers(0, len(examples) - 1), min_size=1, max_size=6))
    num_inputs = sum(examples[e][1] for e in order)
    input_numbers = data.draw(st.lists(st.integers(0, 3), min_size=num_inputs, max_size=num_inputs))
    types, args, leaves, starts, input_starts = one_after_the_other(slots, [examples[e] for e in order], input_numbers)

    measured = loops.measure(rows, ints(order))
    assert [part.tolist() for part in measured[:2]] == [starts, input_starts]
    assert measured[2:] == (len(args), 0)
    joined = loops.join(rows, flat, is_ref, ints(order), len(slots), *measured[:2], ints(input_numbers), measured[2], 2)
    assert joined[3].tolist() == list(dict.fromkeys(types))
    assert joined[3][joined[0]].tolist() == types
    assert joined[1].tolist() == args
    assert joined[2].T.tolist() == leaves


@given(st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_one_structure_or_several(structures):
    rows = np.zeros((len(structures), loops.WIDTH), np.int64)
    rows[:, loops.STRUCTURE] = structures
    expected = structures[0] if len(set(structures)) == 1 else -1
    assert loops.measure(rows, np.arange(len(rows)))[3] == expected


@given(examples_of(num_leaves=1), st.data())
def test_copies_are_alike(given_examples, data):
    slots, examples = given_examples
    rows, flat, is_ref, *_ = cut(slots, examples)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    place = ints(data.draw(st.permutations(range(len(slots)))))
    copies, begin = rows[ints(chosen)], data.draw(st.integers(0, 3))
    into, into_is_ref = np.full(begin + 6 * len(flat), -77), np.full(begin + 6 * len(flat), 7, np.int8)
    uses = loops.uses_types(copies, flat, len(slots))
    assert set(np.flatnonzero(uses)) == {t for e in chosen for t, _ in examples[e][0]}

    end = loops.copy(copies, flat, is_ref, place, into, into_is_ref, begin)
    at = begin
    for e, copied in zip(chosen, copies, strict=True):
        first, num_nodes = rows[e, loops.FIRST], rows[e, loops.NODES]
        size = num_nodes + rows[e, loops.ARGS] + rows[e, loops.LEAVES]
        assert copied[loops.FIRST] == at
        assert copied[1:].tolist() == rows[e, 1:].tolist()
        assert into[at : at + num_nodes].tolist() == place[flat[first : first + num_nodes]].tolist()
        assert into[at + num_nodes : at + size].tolist() == flat[first + num_nodes : first + size].tolist()
        assert into_is_ref[at : at + size].tolist() == is_ref[first : first + size].tolist()
        at += size
    assert at == end
    assert set(into[:begin]) | set(into[end:]) <= {-77}


@pytest.mark.parametrize(
    ("second", "is_foreign"),
    [
        ((0, 0), True),  # reads node 0
        ((0, -1), True),  # reads input 0
        ((0, 1 + REF), False),  # its own
        ((0, -2), False),
        ((1, 0), False),  # a number
    ],
)
def test_values_of_another_example_are_found(second, is_foreign):
    (t, arg), starts = second, ints([0, 1, 2])
    slots = ints([0, 1, 2]), ints([Slot.ONE, Slot.DATA])
    found = loops.cut(ints([0, t]), ints([-1, arg]), starts, starts, ints([]), ints([0, 0, 0]), *slots)[-1]
    assert found.tolist() == [False, is_foreign]
