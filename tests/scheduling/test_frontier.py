from __future__ import annotations

import naive
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edbatch.scheduling import frontier
from edbatch.scheduling.graph import Graph
from strategies import Lists, graphs


@given(graphs())
def test_consumers_are_the_edges_seen_from_the_producers(lists: Lists) -> None:
    graph = Graph.from_lists(*lists)
    starts, consumers = frontier.consumers(graph.offsets, graph.inputs)
    for node in range(graph.num_nodes):
        expected = [i for i, producers in enumerate(lists[1]) for p in producers if p == node]
        assert consumers[starts[node] : starts[node + 1]].tolist() == expected


@given(graphs())
def test_heights_of_the_ready_nodes_give_the_bound(lists: Lists) -> None:
    graph = Graph.from_lists(*lists)
    heights = frontier.heights(graph.types, graph.offsets, graph.inputs, graph.num_types)
    sources = np.flatnonzero(np.diff(graph.offsets) == 0)
    assert sum(heights[sources].max(axis=0, initial=0)) == naive.bound(*lists, done=())


@given(graphs(), st.randoms(use_true_random=False))
def test_a_launch_lowers_the_bound_by_one_or_leaves_it(lists: Lists, random: object) -> None:
    """What lets bound greedy score a type by its own column, and the exact search use a deque."""
    types, inputs = lists
    done: frozenset[int] = frozenset()
    while len(done) < len(types):
        moves = [nodes for t in naive.type_order(types) if (nodes := naive.ready(types, inputs, done, t))]
        after = done | set(random.choice(moves))  # type: ignore[attr-defined]
        assert naive.bound(types, inputs, done) - naive.bound(types, inputs, after) in (0, 1)
        done = after
