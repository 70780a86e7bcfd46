from __future__ import annotations

from collections.abc import Callable

import naive
import pytest
from hypothesis import example, given

from edbatch.errors import PolicyError
from edbatch.scheduling import policies
from edbatch.scheduling.graph import Graph
from strategies import Lists, graphs

NAMES = [
    "depth",
    "agenda",
    "agenda-remaining",
    "ratio-greedy",
    "ratio-greedy-backward",
    "bound-greedy",
    "learned",
    "exact",
]
ORACLES = [naive.depth, naive.agenda, naive.agenda_remaining, naive.ratio_greedy, naive.bound_greedy]


@pytest.mark.parametrize("name", NAMES[:-1])
@given(lists=graphs())
@example(lists=([], []))
@example(lists=(["a"], [[]]))
@example(lists=(["a", "a"], [[], [0, 0, 0]]))
def test_schedules_are_legal_deterministic_and_ascending(name: str, lists: Lists) -> None:
    graph = Graph.from_lists(*lists)
    schedule = policies.from_name(name).run(graph)
    schedule.check(graph)
    assert schedule.num_batches >= graph.lower_bound()
    assert all(nodes == sorted(nodes) for _, nodes in schedule.batches)
    assert policies.from_name(name).run(graph).batches == schedule.batches


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
@given(lists=graphs())
def test_schedules_are_the_definitions(oracle: Callable[..., naive.Batches], lists: Lists) -> None:
    assert list(policies.from_name(oracle.__name__).run(Graph.from_lists(*lists)).batches) == oracle(*lists)


@given(graphs())
def test_backward_is_forward_on_the_reversed_graph(lists: Lists) -> None:
    graph = Graph.from_lists(*lists)
    last = graph.num_nodes - 1
    turned = policies.RatioGreedy().run(graph.reversed()).batches
    expected = tuple((t, sorted(last - i for i in nodes)) for t, nodes in reversed(turned))
    assert policies.RatioGreedy(backward=True).run(graph).batches == expected


def test_the_two_agendas_differ() -> None:
    # Mean depths: b 1, a 1/2, so a runs first. Of a then remains the node at depth 1: a tie, and b has the smaller id.
    graph = Graph.from_lists("baab", [[], [], [1], [2]])
    assert policies.Agenda().run(graph).batches == (("a", [1]), ("a", [2]), ("b", [0, 3]))
    assert policies.AgendaRemaining().run(graph).batches == (("a", [1]), ("b", [0]), ("a", [2]), ("b", [3]))


def test_names_come_back() -> None:
    assert [policies.from_name(name).name for name in NAMES] == NAMES
    assert policies.from_name("agenda_remaining") == policies.AgendaRemaining()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(PolicyError, match=r"no policy is called 'deep'; choose one of learned, depth, agenda, .*exact"):
        policies.from_name("deep")
