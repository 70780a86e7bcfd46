"""The order by PQ trees: only the order inside batches changes, and operands that fit together are read as views."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import edbatch
import zoo
from edbatch.batched import Batched
from edbatch.bench.kernels.pq_order import order_by_pq_trees
from edbatch.bench.order import Facts, InPqOrder
from edbatch.runtime.plan import make_plan
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.schedule import Schedule, schedule
from edbatch.stats import Stopwatch
from strategies import graphs
from test_equal import assert_equal, gradients, tensors

CASES = {case.name: case for case in zoo.CASES}


def ordered(graph: Graph, before: Schedule, fixed: tuple[str, ...] = (), sums: tuple[str, ...] = ()) -> Schedule:
    is_fixed, only_sums = (np.array([t in names for t in graph.type_names], np.bool_) for names in (fixed, sums))
    return order_by_pq_trees(graph, before, is_fixed, only_sums, np.zeros(graph.num_types, np.int64))


def lanes_that_are_views(graph: Graph, schedule: Schedule) -> dict[str, int]:
    """For each type, how many operands of batches read consecutive nodes; found out from the order alone."""
    row, found = {}, dict.fromkeys(map(str, graph.type_names), 0)
    for t in range(graph.num_types):
        for batch, nodes in zip(schedule.batch_types, schedule.batches, strict=True):
            if batch == t:
                row |= {node: len(row) + i for i, node in enumerate(nodes[1])}
    for name, nodes in schedule.batches:
        operands = [graph.inputs[graph.offsets[n] : graph.offsets[n + 1]].tolist() for n in nodes]
        for lane in zip(*operands, strict=True):
            rows = [row[producer] for producer in lane]
            found[str(name)] += rows == list(range(rows[0], rows[0] + len(rows)))
    return found


@given(graphs(), st.sampled_from(["depth", "agenda", "bound-greedy"]))
def test_the_same_batches_in_another_order(lists, policy):
    graph = Graph.from_lists(*lists)
    before = schedule(graph, policy)
    after = ordered(graph, before)
    after.check(graph)
    assert [(t, sorted(nodes)) for t, nodes in after.batches] == [(t, sorted(nodes)) for t, nodes in before.batches]
    assert np.array_equal(after.order, ordered(graph, before).order)


@given(graphs(), st.sampled_from(["depth", "agenda", "bound-greedy"]))
def test_fixed_types_keep_their_order(lists, policy):
    graph = Graph.from_lists(*lists)
    before = schedule(graph, policy)
    fixed = graph.type_names[::2]
    for old, new in zip(before.batches, ordered(graph, before, fixed=fixed).batches, strict=True):
        assert old == new or new[0] not in fixed


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_chains_read_views(lengths):
    types, inputs = [], []
    for length in lengths:
        for i in range(length):
            inputs.append([len(types) - 1] if i else [])
            types.append("step" if i else "start")
    graph = Graph.from_lists(types, inputs)
    after = ordered(graph, schedule(graph, "depth"))
    assert lanes_that_are_views(graph, after).get("step", 0) == max(lengths) - 1


@given(st.permutations(range(8)), st.permutations(range(4)))
def test_both_operands_of_a_batch_agree(values, readers):
    """Each node reads one of four values and one of four others, in any order: an order exists, and is found."""
    pairs = [[values[i], values[j + 4]] for i, j in enumerate(readers)]
    graph = Graph.from_lists(["value"] * 8 + ["join"] * 4, [[] for _ in range(8)] + pairs)
    assert lanes_that_are_views(graph, ordered(graph, schedule(graph, "depth")))["join"] == 2


def test_an_operand_in_two_batches_reads_the_end_of_one_and_the_beginning_of_the_next():
    """Values 0–2 are the first batch of a type and 3–5 the second; as one operand, a node reads 1 and another 3."""
    types = ["a", "a", "a", "a", "a", "a", "out", "out"]
    graph = Graph.from_lists(types, [[], [], [], [0], [1], [2], [1], [3]])
    two_batches = Schedule(np.arange(8), np.array([0, 3, 6, 8]), np.array([0, 0, 1]), graph.type_names)
    assert lanes_that_are_views(graph, ordered(graph, two_batches))["out"] == 1


def test_sums_are_never_views_and_lead_nobody():
    graph = Graph.from_lists("aaabbcc", [[], [], [], [0], [2], [2], [1]])
    after = ordered(graph, schedule(graph, "depth"), sums=("b",))
    assert lanes_that_are_views(graph, after)["c"] == 1


@pytest.mark.parametrize("name", ["binary TreeLSTM", "lattice", "tagger", "attention"])
def test_results_and_gradients_are_those_of_one_by_one(name, compilation):
    model, columns = zoo.make(CASES[name])
    on = edbatch.batch(model, stack=CASES[name].stack)
    execution, _ = on.pipeline.prepare(columns, {}, on.policy, Stopwatch())
    policy = InPqOrder(on.policy, Facts.of(execution.plan))
    off = Batched(model, policy, on.stack, replace(on.switches, order_batches=False))
    ours, theirs = tensors(off(*columns)), tensors(off.one_by_one(*columns))
    assert_equal(ours, theirs, 1e-9)
    assert_equal(gradients(ours, off.fn), gradients(theirs, off.fn), 1e-9)
    with torch.no_grad():
        assert_equal(tensors(off(*columns)), theirs, 1e-9)
    plan = execution.plan
    make_plan(plan.recording, policy.run(plan.graph), off.switches).check()
