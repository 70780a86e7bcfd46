from __future__ import annotations

import naive
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edbatch.errors import PolicyError
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.policies import BoundGreedy, Exact
from strategies import Lists, graphs, words


@given(lists=graphs(), width=st.sampled_from([2, 3, 8]))
@example(lists=([], []), width=4)
@example(lists=(["a", "a"], [[], [0, 0, 0]]), width=2)
def test_schedules_are_legal_and_as_long_as_the_definition_says(lists: Lists, width: int) -> None:
    graph = Graph.from_lists(*lists)
    schedule = BoundGreedy(beam=width).run(graph)
    schedule.check(graph)
    assert all(nodes == sorted(nodes) for _, nodes in schedule.batches)
    assert schedule.num_batches == naive.beam(*lists, width)


@given(graphs())
def test_a_wide_beam_finds_a_shortest_schedule(lists: Lists) -> None:
    graph = Graph.from_lists(*lists)
    assert BoundGreedy(beam=2000).run(graph).num_batches == Exact().run(graph).num_batches


@given(graphs())
def test_a_beam_of_one_is_bound_greedy(lists: Lists) -> None:
    assert naive.beam(*lists, 1) == BoundGreedy().run(Graph.from_lists(*lists)).num_batches


def test_looking_ahead_pays_where_greed_does_not() -> None:
    types, inputs = words("baa", "aab", "aa")
    graph = Graph.from_lists(types, inputs)
    assert BoundGreedy().run(graph).num_batches == 5
    assert BoundGreedy(beam=8).run(graph).num_batches == naive.shortest_length(types, inputs) == 4


def test_many_steps_and_slots_that_disagree_for_long() -> None:
    graph = Graph.from_lists(*words(*(word * 40 for word in ("ab", "abb", "ba", "bba"))))
    for width in (2, 7, 64):
        schedule = BoundGreedy(beam=width).run(graph)
        schedule.check(graph)
        assert graph.lower_bound() <= schedule.num_batches <= BoundGreedy().run(graph).num_batches


def test_ready_nodes_that_are_found_again_and_again() -> None:
    # While a chain of c runs, launching t early makes the same thousand m ready at every step of some slot.
    types, inputs = words("c" * 1000 + "tm")
    types += ["t"] + ["m"] * 1000
    inputs += [[], *([1002] for _ in range(1000))]
    graph = Graph.from_lists(types, inputs)
    for width in (2, 5):
        schedule = BoundGreedy(beam=width).run(graph)
        schedule.check(graph)
        assert schedule.num_batches == graph.lower_bound() == 1002


def test_a_beam_wider_than_the_log() -> None:
    graph = Graph.from_lists(range(12), [[] for _ in range(12)])
    schedule = BoundGreedy(beam=3000).run(graph)
    schedule.check(graph)
    assert schedule.num_batches == 12


@pytest.mark.parametrize("beam", [0, -1, 1.5])
def test_a_beam_holds_something(beam: int) -> None:
    with pytest.raises(PolicyError, match="a beam holds at least one schedule"):
        BoundGreedy(beam=beam)


def test_the_name_says_how_wide() -> None:
    assert [BoundGreedy().name, BoundGreedy(beam=4).name] == ["bound-greedy", "bound-greedy-4"]
