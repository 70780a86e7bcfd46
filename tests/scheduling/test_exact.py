from __future__ import annotations

import naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edbatch.errors import PolicyError
from edbatch.scheduling import policies
from edbatch.scheduling.graph import Graph
from strategies import Lists, dags, graphs


@given(dags(max_nodes=8, max_types=3))
def test_no_schedule_is_shorter(lists: Lists) -> None:
    assert policies.Exact().run(Graph.from_lists(*lists)).num_batches == naive.shortest_length(*lists)


@given(dags(max_nodes=8, max_types=3), st.randoms(use_true_random=False))
def test_the_sufficient_condition(lists: Lists, random: object) -> None:
    """Whatever has been launched so far: if a type's ratio is 1, launching it keeps a shortest schedule possible."""
    types, inputs = lists
    done: frozenset[int] = frozenset()
    while len(done) < len(types):
        moves = {t: nodes for t in naive.type_order(types) if (nodes := naive.ready(types, inputs, done, t))}
        for type_, nodes in moves.items():
            if len(nodes) == len(naive.free(types, inputs, done, type_)):
                after = naive.shortest_length(types, inputs, done | set(nodes))
                assert 1 + after == naive.shortest_length(types, inputs, done)
        done |= set(random.choice(list(moves.values())))  # type: ignore[attr-defined]


@settings(max_examples=50)
@given(graphs())
def test_between_the_lower_bound_and_every_policy(lists: Lists) -> None:
    graph = Graph.from_lists(*lists)
    schedule = policies.Exact().run(graph)
    schedule.check(graph)
    assert all(nodes == sorted(nodes) for _, nodes in schedule.batches)
    assert policies.Exact().run(graph).batches == schedule.batches
    assert graph.lower_bound() <= schedule.num_batches
    for name in ("depth", "agenda", "agenda-remaining", "ratio-greedy", "ratio-greedy-backward", "bound-greedy"):
        assert schedule.num_batches <= policies.from_name(name).run(graph).num_batches


def test_limits_are_named() -> None:
    graph = Graph.from_lists("abba", [[], [], [0], [1]])
    with pytest.raises(PolicyError, match=r"at most 3 nodes and this one has 4; raise max_nodes or use bound-greedy"):
        policies.Exact(max_nodes=3).run(graph)
    with pytest.raises(PolicyError, match=r"looked at 1 states of a graph of 4 nodes .* raise max_states"):
        policies.Exact(max_states=1).run(graph)
