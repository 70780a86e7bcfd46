"""Layouts of cells: the verifier against memory that is really laid out, and plans that are never worse than none."""

from __future__ import annotations

from itertools import chain, permutations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edbatch.errors import GraphError
from edbatch.pq import cell_layout
from edbatch.pq.cell_layout import (
    Access,
    CellGraph,
    CellOp,
    Parameter,
    Reading,
    Run,
    find_batches,
    in_plain_order,
    lay_out_cell,
    verify,
)
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.policies import BoundGreedy, Exact


class Body:
    """A graph under construction; every value takes 8 bytes."""

    def __init__(self) -> None:
        self.ops: list[CellOp] = []
        self.num_values = 0
        self.outside: set[int] = set()

    def input(self) -> int:
        self.outside.add(self.value())
        return self.num_values - 1

    def value(self) -> int:
        self.num_values += 1
        return self.num_values - 1

    def op(self, signature: str, *operands: int | Run | Parameter, is_wide: bool = False) -> int:
        runs = tuple((operand,) if isinstance(operand, int) else operand for operand in operands)
        result = self.value()
        self.ops.append(CellOp(signature, runs, (result,), is_wide))
        return result

    def graph(self, *outputs: int, placed: bool = False) -> CellGraph:
        outside = set() if placed else self.outside
        return CellGraph((8,) * self.num_values, tuple(self.ops), frozenset(outside | set(outputs)))


def lstm() -> tuple[Body, list[int]]:
    """Gate after gate, as one writes it down."""
    body = Body()
    x, c = body.input(), body.input()
    products = {}
    gates = {}
    for gate in "iufo":
        products[gate] = body.op("product", x, Parameter(gate), is_wide=True)
        gates[gate] = body.op("tanh" if gate == "u" else "sigmoid", products[gate])
    kept, added = body.op("mul", gates["f"], c), body.op("mul", gates["i"], gates["u"])
    after = body.op("add", kept, added)
    return body, [body.op("mul", gates["o"], body.op("tanh", after)), after]


def kinds(layout, batch: int) -> list[Reading]:
    return [access.kind for access in layout.accesses if access.batch == batch]


def test_gates_are_one_product_and_three_sigmoids_a_batch():
    body, outputs = lstm()
    graph = body.graph(*outputs)
    plain, planned = in_plain_order(graph), lay_out_cell(graph)
    assert sorted(map(len, planned.batches)) == [1, 1, 1, 1, 1, 1, 3, 4]
    product = next(b for b, members in enumerate(planned.batches) if len(members) == 4)
    assert kinds(planned, product) == [Reading.VIEW, Reading.BROADCAST, Reading.STACKED]
    assert planned.num_copies == 0  # but c is in a tensor of its own, so the products of states are two calls
    assert plain.num_copies > planned.num_copies
    placed = lay_out_cell(body.graph(*outputs, placed=True))
    assert sorted(map(len, placed.batches)) == [1, 1, 1, 1, 2, 3, 4]
    assert placed.num_copies == 0


def test_operands_that_want_the_same_share_a_copy():
    body = Body()
    x, y = body.input(), body.input()
    for signature in ("sin", "cos"):
        for value in (x, y):
            body.op(signature, value)
    layout = lay_out_cell(body.graph())
    assert [access.copied for access in layout.accesses if access.slot == 0] == [(x, y), (x, y)]
    assert (layout.copies, layout.bytes_copied) == (((x, y),), 16)


def test_what_is_read_as_one_lies_in_its_order():
    body = Body()
    a, b, c = (body.op(name) for name in "abc")
    body.op("read", (c, a))
    body.op("read", (a, b))
    layout = lay_out_cell(body.graph())
    assert layout.num_copies == 0
    assert [v for v in layout.order if v in (a, b, c)] == [c, a, b]


def test_wide_products_need_their_results_side_by_side():
    graph = CellGraph((8,) * 4, tuple(CellOp("p", ((0,), Parameter(v)), (v,), True) for v in (1, 2, 3)), frozenset([0]))
    assert verify(graph, [(0, 1, 2)], (1, 2, 3)).num_copies == 0
    loose = CellGraph((8,) * 5, graph.ops, frozenset([0]))
    assert verify(loose, [(0, 1, 2)], (1, 2, 4, 3)).num_copies == 3  # each result by itself
    two = CellGraph((8,) * 4, graph.ops[:2], frozenset([0]))
    assert verify(two, [(0, 1)], (1, 3, 2)).num_copies == 2
    elementwise = CellGraph((8,) * 4, tuple(CellOp("e", ((0,),), (v,)) for v in (1, 2)), frozenset([0]))
    assert verify(elementwise, [(0, 1)], (1, 3, 2)).num_copies == 0  # every other value is a strided view


def test_contradicting_orders_cost_a_copy_and_no_plan():
    body = Body()
    a = [body.op("make") for _ in range(3)]
    for first, second in zip(a, (a[1], a[2], a[0]), strict=True):
        body.op("mul", first, second)
    without, layout = in_plain_order(body.graph()), lay_out_cell(body.graph())
    assert (len(without.batches), without.num_copies) == (2, 1)
    assert layout.num_copies == 0  # two batches instead of one with a copy: as many calls, and no copy
    assert sorted(map(len, layout.batches)) == [1, 2, 3]
    assert layout.num_calls == without.num_calls


def test_aligned_when_reversed():
    """The second batch is listed backward in the body; one of the two lists is turned round."""
    body = Body()
    a = [body.op("make a", Parameter(i)) for i in range(4)]
    b = [body.op("make b", Parameter(i)) for i in range(4)]
    for first, second in zip(a, reversed(b), strict=True):
        body.op("mul", first, second)
    assert in_plain_order(body.graph()).num_copies == 1
    assert lay_out_cell(body.graph()).num_copies == 0


def test_repeated_values_are_broadcast_in_groups():
    body = Body()
    x, y = body.op("make"), body.op("make")
    for value in (x, y, x, y):
        body.op("mul", value, Parameter(len(body.ops)))
    layout = lay_out_cell(body.graph())
    assert layout.num_copies == 0
    assert Reading.BROADCAST in kinds(layout, 1)
    irregular = Body()
    x, y = irregular.op("make"), irregular.op("make")
    for value in (x, x, y):
        irregular.op("mul", value)
    assert [access.copied for access in in_plain_order(irregular.graph()).accesses][-1] == (x, x, y)
    assert lay_out_cell(irregular.graph()).num_copies == 0


def test_impossible_operands_are_copied():
    body = Body()
    a, b, c = (body.op(name) for name in "abc")
    body.op("twice", (a, a))
    body.op("both", (a, b))
    body.op("both", (a, c))
    assert lay_out_cell(body.graph()).copies == ((a, a), (a, b, a, c))


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([CellOp("a", ((1,),), (0,)), CellOp("b", (), (1,))], "op 0 reads value 1, which is made later"),
        ([CellOp("a", (), (0,)), CellOp("b", (), (0,))], "op 0 makes .* made twice"),
        ([CellOp("a", ((2,),), (0,)), CellOp("a", ((3,),), (1,))], "op 1 has operands or results of other sizes"),
        ([CellOp("a", ((2,),), (0,)), CellOp("a", (Parameter(0),), (1,))], "op 1 has operands or results of other"),
    ],
)
def test_bad_graphs_are_refused(ops, message):
    with pytest.raises(GraphError, match=message):
        lay_out_cell(CellGraph((8, 8, 8, 16), tuple(ops)))


def test_large_bodies_are_batched_greedily(monkeypatch):
    body, outputs = lstm()
    graph = body.graph(*outputs)
    monkeypatch.setattr(cell_layout, "MAX_STATES", 0)
    made_by = graph.made_by
    inputs = [[made_by[v] for o in op.operands if isinstance(o, tuple) for v in o if v in made_by] for op in graph.ops]
    expected = BoundGreedy().run(Graph.from_lists([op.signature for op in graph.ops], inputs))
    assert find_batches(graph) == tuple(tuple(members) for _, members in expected.batches)


def test_huge_bodies_stay_in_plain_order(monkeypatch):
    body, outputs = lstm()
    graph = body.graph(*outputs)
    monkeypatch.setattr(cell_layout, "MAX_VALUES", 3)
    assert lay_out_cell(graph) == in_plain_order(graph)


@st.composite
def graphs(draw, max_groups: int = 5) -> CellGraph:
    """Groups of ops of one signature; some operands are several values or parameters, some values are outside."""
    sizes = draw(st.sampled_from([[1], [1, 1], [1, 1, 2]]))
    num_inputs = len(sizes)
    ops: list[CellOp] = []
    for signature in range(draw(st.integers(1, max_groups))):
        slots = draw(st.lists(st.sampled_from([(1,), (1,), (1,), (2,), (1, 1), ()]), max_size=2))
        parts = draw(st.sampled_from([(1,), (1,), (1,), (2,), (1, 1)]))
        wide = draw(st.booleans())
        known = {size: [v for v, known in enumerate(sizes) if known == size] for size in (1, 2)}
        for _ in range(draw(st.integers(1, 4))):
            operands = tuple(
                tuple(draw(st.sampled_from(known[size] or [0])) for size in slot) or Parameter(draw(st.integers(0, 1)))
                for slot in slots
            )
            form = [sum(sizes[v] for v in o) if isinstance(o, tuple) else -1 for o in operands]
            ops.append(CellOp((signature, *form), operands, tuple(range(len(sizes), len(sizes) + len(parts))), wide))
            sizes = [*sizes, *parts]
    outside = draw(st.sets(st.integers(0, len(sizes) - 1), max_size=2))
    inputs = draw(st.sampled_from([set(), set(range(num_inputs))]))
    return CellGraph(tuple(sizes), tuple(ops), frozenset(outside | inputs))


class Memory:
    """Really laid out: every unit of every value has a number of its own, values outside are arrays of their own."""

    def __init__(self, graph: CellGraph, order) -> None:
        self.content = [100 * value + np.arange(size) for value, size in enumerate(graph.sizes)]
        inside = [self.content[value] for value in order]
        self.arrays = [np.concatenate(inside)] if inside else []
        self.arrays += [self.content[value] for value in graph.outside]

    def wanted(self, runs) -> np.ndarray:
        return np.stack([np.concatenate([self.content[value] for value in run]) for run in runs])

    def views(self, count: int, width: int):
        """Every strided view of so many parts."""
        for array in self.arrays:
            for begin in range(len(array) - width + 1):
                for step in range(1, len(array)) if count > 1 else [1]:
                    if begin + (count - 1) * step + width <= len(array):
                        strides = step * array.itemsize, array.itemsize
                        yield step, np.lib.stride_tricks.as_strided(array[begin:], (count, width), strides)

    def classify(self, runs, side_by_side: bool) -> Reading:
        wanted = self.wanted(runs)
        for count in range(1, len(runs) + 1):
            if len(runs) % count:
                continue
            times = len(runs) // count
            for step, view in self.views(count, wanted.shape[1]):
                if side_by_side and count > 1 and step != wanted.shape[1]:
                    continue
                for expanded in (np.repeat(view, times, 0), np.tile(view, (times, 1))):
                    if np.array_equal(expanded, wanted):
                        return Reading.VIEW if times == 1 else Reading.BROADCAST
        return Reading.COPY


@given(graphs(), st.randoms(use_true_random=False))
def test_verifier_says_what_memory_shows(graph, random):
    order = [value for value in range(len(graph.sizes)) if value not in graph.outside]
    random.shuffle(order)
    layout = verify(graph, find_batches(graph), order)
    memory = Memory(graph, order)
    for access in layout.accesses:
        ops = [graph.ops[i] for i in layout.batches[access.batch]]
        runs = [op.results if access.slot < 0 else op.operands[access.slot] for op in ops]
        if isinstance(runs[0], Parameter):
            assert access == Access(access.batch, access.slot, access.kind)
            assert access.kind == (Reading.STACKED if len(set(runs)) > 1 else Reading.BROADCAST)
            continue
        assert access.kind == memory.classify(runs, access.slot < 0 and ops[0].is_wide)
        assert bool(access.copied) == (access.kind is Reading.COPY)
        assert not access.copied or set(access.copied) == set(chain.from_iterable(runs))


@given(graphs())
def test_plans_are_whole_and_never_worse_than_none(graph):
    plain, planned = in_plain_order(graph), lay_out_cell(graph)
    assert sorted(plain.order) == graph.inside
    assert sorted(planned.order) == planned.graph.inside
    assert planned.num_calls <= plain.num_calls
    assert verify(planned.graph, planned.batches, planned.order) == planned
    assert lay_out_cell(graph) == planned


@given(graphs())
def test_batches_are_a_shortest_schedule(graph):
    batches = find_batches(graph)
    made_by, done = graph.made_by, set()
    for members in batches:
        assert len({graph.ops[i].signature for i in members}) == 1
        for operand in chain.from_iterable(graph.ops[i].operands for i in members):
            assert isinstance(operand, Parameter) or all(made_by.get(v, -1) in {*done, -1} for v in operand)
        done.update(members)
    assert done == set(range(len(graph.ops)))
    inputs = [[made_by[v] for o in op.operands if isinstance(o, tuple) for v in o if v in made_by] for op in graph.ops]
    assert len(batches) == Exact().run(Graph.from_lists([op.signature for op in graph.ops], inputs)).num_batches


@settings(max_examples=60, derandomize=True)
@given(graphs(max_groups=3))
def test_an_order_without_copies_is_found(graph):
    """Whenever there is one among all orders of a small cell, in these examples: planning is no search."""
    planned = lay_out_cell(graph)
    assume(len(planned.order) <= 6)
    if planned.num_copies:
        assert all(verify(graph, planned.batches, order).num_copies for order in permutations(planned.order))
