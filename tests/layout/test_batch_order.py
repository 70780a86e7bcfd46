"""The order inside batches: only that changes, and chains read nothing but views."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from test_layout import table_of

from edbatch.layout import layout
from edbatch.layout.batch_order import order_batches, sort_by_digits
from edbatch.layout.layout import Slot
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.schedule import schedule
from strategies import graphs

POLICIES = ["depth", "agenda", "bound-greedy"]


def free(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """No batch keeps its order; which types only sum values."""
    return np.zeros(graph.num_types, dtype=np.bool_), np.array([t == "sum" for t in graph.type_names], dtype=np.bool_)


@given(graphs(), st.sampled_from(POLICIES))
def test_the_same_batches_in_another_order(lists, policy):
    graph = Graph.from_lists(*lists)
    before = schedule(graph, policy)
    after = order_batches(graph, before, *free(graph))
    after.check(graph)
    assert [(t, sorted(nodes)) for t, nodes in after.batches] == [(t, sorted(nodes)) for t, nodes in before.batches]
    assert np.array_equal(after.order, order_batches(graph, before, *free(graph)).order)


@given(graphs(), st.sampled_from(POLICIES))
def test_fixed_types_keep_their_order(lists, policy):
    graph = Graph.from_lists(*lists)
    before = schedule(graph, policy)
    fixed = np.arange(graph.num_types) % 2 == 0
    after = order_batches(graph, before, fixed, ~fixed)
    for old, new, t in zip(before.batches, after.batches, before.batch_types, strict=True):
        assert old == new or not fixed[t]


def growing() -> tuple[list[str], list[list[int]], Callable[..., int]]:
    """The types and inputs of no nodes, and `add(type, *producers)`, which adds a node and gives its number."""
    types, inputs = [], []

    def add(type_: str, *producers: int) -> int:
        types.append(type_)
        inputs.append(list(producers))
        return len(types) - 1

    return types, inputs, add


def two_way_chains(lengths: list[int]) -> tuple[list[str], list[list[int]]]:
    """Words, computed at once; a chain forwards and one backwards over them; an output at every word."""
    types, inputs, add = growing()
    for length in lengths:
        words = [add("word") for _ in range(length)]
        forwards, backwards = [add("start f", words[0])], [add("start b", words[-1])]
        for i in range(1, length):
            forwards.append(add("forwards", forwards[-1], words[i]))
            backwards.append(add("backwards", backwards[-1], words[length - 1 - i]))
        for pair in zip(forwards, reversed(backwards), strict=True):
            add("out", *pair)
    return types, inputs


@given(st.lists(st.integers(2, 9), min_size=1, max_size=8), st.sampled_from(POLICIES))
def test_chains_read_views(lengths, policy):
    """Every state that a chain reads is a view, and so are the words that one of the two chains reads."""
    graph = Graph.from_lists(*two_way_chains(lengths))
    arity = {"word": 0, "start f": 1, "start b": 1}
    table = table_of([((Slot.ONE,) * arity.get(t, 2), [(0, False)]) for t in graph.type_names])
    order = order_batches(graph, schedule(graph, policy), *free(graph))
    planned = layout.lay_out(graph, graph.inputs, table, order, np.zeros(1, np.int64), np.empty(0, np.int64))
    gathers = {t: np.zeros(2, int) for t in graph.type_names}
    for b, t in enumerate(order.batch_types):
        name = graph.type_names[t]
        gathers[name][: arity.get(name, 2)] += planned.slot_first[b, : arity.get(name, 2)] == -1
    assert gathers["forwards"][0] == gathers["backwards"][0] == 0
    assert min(gathers["forwards"][1], gathers["backwards"][1]) == 0


def trees_with_outputs(shapes: list[list[int]]) -> tuple[list[str], list[list[int]]]:
    """Trees, and of every state in them an output, recorded right behind it; at the end of a tree all are summed.

    shapes: of each tree how the top of a stack of states grows: 0 pushes a leaf, 1 joins the two topmost states.
    """
    types, inputs, add = growing()
    for shape in shapes:
        stack, outputs = [], []
        for join in shape:
            two = [stack.pop(), stack.pop()] if join and len(stack) > 1 else []
            stack.append(add("node" if two else "leaf", *two))
            outputs.append(add("out", stack[-1]))
        add("sum", *outputs)
    return types, inputs


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=6))
def test_outputs_read_all_states_where_they_lie(shapes):
    graph = Graph.from_lists(*trees_with_outputs(shapes))
    slots = {"leaf": (), "node": (Slot.ONE, Slot.ONE), "out": (Slot.ONE,), "sum": (Slot.SUM,)}
    arena = {"leaf": 0, "node": 0, "out": 1, "sum": 1}
    table = table_of([(slots[t], [(arena[t], False), (arena[t], False)]) for t in graph.type_names])
    order = order_batches(graph, schedule(graph, "bound-greedy"), *free(graph))
    args = [[len(node), *node] if t == "sum" else node for t, node in zip(*trees_with_outputs(shapes), strict=True)]
    flat = np.array([number for node in args for number in node], dtype=np.int64)
    planned = layout.lay_out(graph, flat, table, order, np.zeros(2, np.int64), np.empty(0, np.int64))
    (batch,) = np.flatnonzero(order.batch_types == graph.type_names.index("out"))
    assert planned.slot_first[batch, 0] >= 0


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=40, unique=True))
def test_sorting_by_digits(numbers):
    nodes = np.arange(len(numbers))
    sort_by_digits.py_func(np.array(numbers), nodes, min(numbers), max(numbers))
    assert [numbers[i] for i in nodes] == sorted(numbers)
