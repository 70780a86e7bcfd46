"""Layouts: every value has a row of its own, and every batch reads exactly the rows of what it consumes."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edbatch.layout import layout
from edbatch.layout.layout import REF, Slot, SlotTable
from edbatch.scheduling import policies
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.schedule import schedule
from strategies import graphs

NONE = np.zeros(0, dtype=np.int64)


def table_of(types):
    """A table from [(slots, outputs)] per type, an output being (arena, per row)."""
    starts = lambda counts: np.cumsum([0, *counts], dtype=np.int64)  # noqa: E731
    outputs = [output for _, outs in types for output in outs]
    return SlotTable(
        starts([len(slots) for slots, _ in types]),
        np.array([s for slots, _ in types for s in slots], dtype=np.int64),
        starts([len(outs) for _, outs in types]),
        np.array([arena for arena, _ in outputs], dtype=np.int64),
        np.array([row for _, row in outputs], dtype=np.int64),
    )


def plan(types, args, table, outside=(0, 0), outside_row=(), policy="bound-greedy"):
    inputs, offsets = layout.edges(types, args, table)
    graph = Graph(types=types, inputs=inputs, offsets=offsets, type_names=tuple(range(len(table.starts) - 1)))
    graph.check()
    order = schedule(graph, policies.from_name(policy))
    order.check(graph)
    of = graph, args, table, order, np.array(outside, dtype=np.int64), np.array(outside_row, dtype=np.int64)
    found = layout.lay_out(*of)
    found.check(*of)
    return graph, order, found


@given(graphs(), st.sampled_from(["depth", "agenda", "bound-greedy"]))
def test_random_graphs(lists, policy):
    """Types with a fixed number of operands: all that a batch reads and writes is re-derived from the graph."""
    graph = Graph.from_lists(*lists)
    arity = np.diff(graph.offsets).tolist()
    kinds = {}  # a type of the graph and a number of operands make a type here
    types = [kinds.setdefault(kind, len(kinds)) for kind in zip(graph.types.tolist(), arity, strict=True)]
    types = np.array(types, dtype=np.int64)
    table = table_of([((Slot.ONE,) * arity, [(0, False), (1, False)]) for _, arity in kinds])
    second = np.arange(len(graph.inputs)) % 2
    result, order, plan_ = plan(types, graph.inputs + second * REF, table, policy=policy)
    assert np.array_equal(result.inputs, graph.inputs)
    nodes = np.arange(graph.num_nodes)
    rows = [plan_.rows_of(nodes + k * REF, types, table, NONE) for k in (0, 1)]
    for k in (0, 1):
        assert sorted(rows[k].tolist()) == list(range(graph.num_nodes))
    assert plan_.arena_rows.tolist() == [graph.num_nodes] * 2
    for b in range(order.num_batches):
        members = order.order[order.starts[b] : order.starts[b + 1]]
        written = rows[0][members]
        assert np.array_equal(written, np.arange(written[0], written[0] + len(written)))  # one range of rows
        for slot in range(table.starts[types[members[0]] + 1] - table.starts[types[members[0]]]):
            edges = result.offsets[members] + slot
            expected = np.where(second[edges] == 0, rows[0][result.inputs[edges]], rows[1][result.inputs[edges]])
            begin, size = plan_.slot_begin[b, slot], plan_.slot_size[b, slot]
            assert np.array_equal(plan_.index[begin : begin + size], expected)
            consecutive = bool((np.diff(expected) == 1).all())
            assert plan_.slot_first[b, slot] == (expected[0] if consecutive else -1)


LEAF, STACK, ROWWISE, REDUCE, TOTAL, SUM_ROWS = range(6)


def every_kind():
    """Two leaves from outside, stacks of 1 and 2 values, a row-wise type, a reduction, sums of values and of rows."""
    table = table_of(
        [
            ((Slot.ONE, Slot.DATA), [(0, False)]),
            ((Slot.LIST,), [(0, True)]),
            ((Slot.ROWS, Slot.REPEAT), [(0, True)]),
            ((Slot.ROWS, Slot.OFFSETS), [(0, False)]),
            ((Slot.SUM,), [(0, False)]),
            ((Slot.SUM_ROWS,), [(0, False)]),
        ]
    )
    types = [LEAF, LEAF, STACK, STACK, ROWWISE, ROWWISE, REDUCE, REDUCE, TOTAL, SUM_ROWS]
    args = np.array(
        [-1, 7, -2, 9, 1, 0, 2, 0, 1, 2, 0, 3, 1, 4, 5, 3, 0, 1, 0, 5], dtype=np.int64
    )  # fmt: skip
    return np.array(types, dtype=np.int64), args, table


def test_slots_of_every_kind():
    leaf, stack, rowwise, reduce, total, sum_rows = range(6)
    types, args, table = every_kind()
    _, order, plan_ = plan(types, args, table, outside=(2,), outside_row=(0, 1))
    read = {}
    for b in range(order.num_batches):
        t = order.batch_types[b]
        for slot in range(table.starts[t + 1] - table.starts[t]):
            begin, size = plan_.slot_begin[b, slot], plan_.slot_size[b, slot]
            nodes = order.starts[b + 1] - order.starts[b]
            extra = nodes + 1 if table.kinds[table.starts[t] + slot] in (Slot.SUM, Slot.SUM_ROWS, Slot.OFFSETS) else 0
            read[int(t), slot] = (
                plan_.index[begin : begin + size].tolist(),
                plan_.index[begin + size :][:extra].tolist(),
            )
    assert read[leaf, 0] == ([0, 1], [])  # outside
    assert read[leaf, 1] == ([7, 9], [])
    a, b = 2, 3  # rows of the two leaves
    assert read[stack, 0] == ([a, a, b], [])
    assert read[rowwise, 0] == ([4, 5, 6], [])  # the three stacked rows
    assert read[rowwise, 1] == ([a, b, b], [])
    assert read[reduce, 0] == ([7, 8, 9], [])
    assert read[reduce, 1] == ([], [0, 1, 3])
    assert read[total, 0] == ([a, b, a], [0, 3])
    assert read[sum_rows, 0] == ([8, 9], [0, 2])
    assert plan_.num_rows.tolist() == [2, 3, 3, 3, 1, 1]
    assert plan_.type_sizes.tolist() == [2, 3, 3, 2, 1, 1]  # all rows where a type writes them, else its nodes
    assert plan_.rows_of(np.array([-2, 1, 3]), types, table, np.array([0, 1])).tolist() == [1, b, 5]
    begin = dict.fromkeys(range(6), 0)
    for i, t in enumerate(order.batch_types.tolist()):
        assert plan_.own[i] == begin[t]
        assert plan_.sizes[i] <= plan_.largest[t]
        begin[t] += plan_.sizes[i]
    assert list(begin.values()) == plan_.type_sizes.tolist()
    assert all(plan_.largest[t] in plan_.sizes[order.batch_types == t] for t in range(6))
    assert "10" not in repr(plan_)
    assert "views" in repr(plan_)


def test_plain_slots_before_between_and_after_sums():
    """Sums of different lengths in between do not shift what slots of one entry read."""
    leaf, mixed = range(2)
    table = table_of(
        [((Slot.DATA,), [(0, False)]), ((Slot.ONE, Slot.SUM, Slot.DATA, Slot.SUM, Slot.ONE), [(0, False)])]
    )
    types = np.array([leaf, leaf, leaf, mixed, mixed], dtype=np.int64)
    first, second = [2, 2, 0, 1, 50, 1, 2, 0], [0, 1, 1, 60, 3, 2, 1, 0, 1]
    _, order, plan_ = plan(types, np.array([7, 8, 9, *first, *second]), table, outside=(0,))
    assert order.batch_types.tolist() == [leaf, mixed]
    slots = zip(plan_.slot_begin[1], plan_.slot_size[1], strict=True)
    read = [plan_.index[begin : begin + size].tolist() for begin, size in slots]
    assert read == [[2, 0], [0, 1, 1], [50, 60], [2, 2, 1, 0], [0, 1]]
    assert plan_.slot_first[1].tolist() == [-1, -1, -2, -1, 0]


def laid_out(types, args, table, outside=(0,), outside_row=()):
    """A layout, and all that it is a layout of."""
    graph, order, found = plan(types, args, table, outside, outside_row)
    return found, (graph, args, table, order, np.array(outside), np.array(outside_row, dtype=np.int64))


FAULTS = [
    ("num_rows", 0, 3, "num_rows, by batch: number 0 is 3, not 2"),
    ("node_begin", 1, 1, "node_begin, by batch: number 1 is 1, not 0"),
    ("row_begin", 1, 1, "row_begin, by batch: number 1 is 1, not 0"),
    ("sizes", 0, 3, "sizes, by batch: number 0 is 3, not 2"),
    ("own", 0, 1, "own, by batch: number 0 is 1, not 0"),
    ("type_sizes", STACK, 2, "type_sizes: number 1 is 2, not 3"),
    ("largest", STACK, 2, "largest, by type: number 1 is 2, not 3"),
    ("position", 0, 1, "position, in launch order: number 0 is 1, not 0"),
    ("row_position", 0, 1, "row_position, in launch order: number 0 is 1, not 0"),
    ("base", STACK, 3, "2 values lie in row 3 of arena 0"),
    ("base", SUM_ROWS, 14, "a value lies in row 14 of arena 0, which has 14"),
    ("arena_rows", 0, 15, "0 values lie in row 14 of arena 0"),
    ("slot_size", (0, 0), 1, "slot_size, by batch and slot: number 0 is 1, not 2"),
    ("slot_begin", (0, 0), 900, "batch 0, slot 0 is read at 900 of an index of"),
    ("slot_begin", (0, 0), -1, "batch 0, slot 0 is read at -1 of an index of"),
    ("index", 0, 1, "batch 0, slot 0 reads 1 at 0, but should read 0"),
    ("slot_first", (0, 0), -1, "slot_first of values, by batch and slot: number 0 is -1, not 0"),
    ("slot_first", (0, 1), 7, "slot_first of slots that read no values: number 0 is 7, not -2"),
    ("slot_first", (1, 1), -1, "slot_first of slots that do not exist: number 0 is -1, not -2"),
    ("slot_begin", slice(1), None, r"slot_begin: the shape is .*, not \(6, 2\)"),
]


@pytest.mark.parametrize(("name", "at", "value", "match"), FAULTS)
def test_the_first_fault_is_named(name, at, value, match):
    found, of = laid_out(*every_kind(), outside=(2,), outside_row=(0, 1))
    array = getattr(found, name).copy()
    if value is None:
        array = array[at]
    else:
        array[at] = value
    with pytest.raises(AssertionError, match=match):
        replace(found, **{name: array}).check(*of)


@pytest.mark.parametrize(("t", "slot"), [(REDUCE, 1), (TOTAL, 0), (SUM_ROWS, 0)])
def test_bounds_are_checked(t, slot):
    found, of = laid_out(*every_kind(), outside=(2,), outside_row=(0, 1))
    batch = of[3].batch_types.tolist().index(t)
    index = found.index.copy()
    index[found.slot_begin[batch, slot] + found.slot_size[batch, slot] + 1] += 1
    with pytest.raises(AssertionError, match=f"bounds of batch {batch}, slot {slot}: number 1 is"):
        replace(found, index=index).check(*of)


def two_slots():
    """A chain of three nodes that read the one before twice: three batches, two of one type."""
    table = table_of([((Slot.DATA,), [(0, False)]), ((Slot.ONE, Slot.ONE), [(0, False)])])
    return laid_out(np.array([0, 1, 1]), np.array([5, 0, 0, 1, 1]), table)


def test_slots_must_not_overlap():
    """Even where they read the same."""
    found, of = two_slots()
    begin = found.slot_begin.copy()
    begin[:, 1] = np.where(begin[:, 1] < 0, begin[:, 1], begin[:, 0])
    with pytest.raises(AssertionError, match=f"slots overlap at {begin[1, 0]} of the index"):
        replace(found, slot_begin=begin).check(*of)


def test_slots_of_a_type_lie_side_by_side():
    """The rows that all batches of a type read are taken as one range at the end of backward."""
    found, of = two_slots()
    begin, size = found.slot_begin.copy(), len(found.index)
    begin[2, 1] = size
    index = np.append(found.index, found.index[found.slot_begin[2, 1]])
    with pytest.raises(AssertionError, match=f"slot_begin of type 1: number 1 is {size}, not"):
        replace(found, slot_begin=begin, index=index).check(*of)


def test_addresses_are_those_of_the_arrays():
    found, of = two_slots()
    for name, match in (("sizes", "the address of sizes"), ("rows", "the address of rows")):
        addresses = found.addresses._replace(**{name: 8})
        with pytest.raises(AssertionError, match=match):
            replace(found, addresses=addresses).check(*of)


def test_layouts_are_frozen():
    with pytest.raises(FrozenInstanceError):
        two_slots()[0].index = NONE
