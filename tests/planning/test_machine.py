"""Machines at work: what they see, what they launch, and what they learn, against the definitions in `naive`."""

from __future__ import annotations

import naive
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edbatch.planning import machine
from edbatch.planning.fsm import ENCODINGS, MARK_NAMES, MARKS
from edbatch.planning.graph import Graph
from edbatch.planning.learning import learn_policy
from edbatch.planning.policies import Exact
from edbatch.planning.training import QLearning
from strategies import Lists, dags, graphs, trees, words

State = tuple[tuple[str, str], ...]
RULE = QLearning(episodes=0, crowds=(0.0,), demonstrate=False)
CROWDS = QLearning(episodes=0, crowds=(0.5,), demonstrate=False)


def kernel(graph: Graph, encoding: str, table: machine.Table, settings: QLearning) -> int:
    """An episode without exploration; returns the lower bound."""
    return machine.play(
        graph.types, graph.offsets, graph.inputs, graph.num_types, ENCODINGS.index(encoding), settings.crowds[0], table,
        np.zeros(1, np.uint64), 0.0, settings.alpha, settings.discount, settings.learning_rate, settings.steps,
    )[2]  # fmt: skip


def first_state(lists: Lists, encoding: str) -> State:
    """What a machine sees when nothing has run."""
    graph = Graph.from_lists(*lists)
    table = machine.empty_table(graph.num_types, 64)
    kernel(graph, encoding, table, RULE)
    symbols = table.symbols[0, : table.lengths[0]].tolist()
    return tuple((graph.type_names[s // MARKS], MARK_NAMES[encoding][s % MARKS]) for s in symbols)  # type: ignore[misc]


# Sources a, a and b, and an a that waits for the b. What is ready: two of the three a that no other a blocks, the b.
FRONTIER: Lists = (["a", "a", "b", "a"], [[], [], [], [2]])
# Nothing is sure: an a waits for a b and a b for an a, both chains are equally long, and c comes last.
CROSSED: Lists = words("ab", "bac")


@pytest.mark.parametrize(
    ("lists", "encoding", "expected"),
    [
        (FRONTIER, "base", (("a", ""), ("b", ""))),
        (FRONTIER, "max", (("a", "most"), ("b", ""))),
        (FRONTIER, "sort", (("a", ""), ("b", ""))),
        (words("b", "a", "a"), "sort", (("a", ""), ("b", ""))),
        (words("b", "a"), "sort", (("b", ""), ("a", ""))),  # a tie: by type id, that is by appearance
        (words("b", "a"), "max", (("b", "most"), ("a", ""))),
        (FRONTIER, "signs", (("b", "lowers longest"),)),
        (CROSSED, "base", (("a", ""), ("b", ""))),
        (CROSSED, "signs", (("b", "longest"),)),
        (words("aba", "bab"), "signs", (("a", "lowers longest"), ("b", "lowers longest"))),
        (words("abaa", "bab"), "signs", (("a", "lowers longest"), ("b", "lowers"))),
    ],
)
def test_states_of_frontiers_made_by_hand(lists: Lists, encoding: str, expected: State) -> None:
    assert first_state(lists, encoding) == expected


def play(types: list[str], inputs: list[list[int]], encoding: str, crowd: float) -> tuple[naive.Batches, list[State]]:
    """The rule's schedule, and the states on the way."""
    done: frozenset[int] = frozenset()
    batches: naive.Batches = []
    states = []
    while len(done) < len(types):
        seen = naive.Frontier(types, inputs, done)
        states.append(seen.state(encoding))
        chosen = seen.rule(crowd)
        batches.append((chosen, seen.ready[chosen]))
        done |= set(batches[-1][1])
    return batches, states


@pytest.mark.parametrize("settings", [RULE, CROWDS], ids=["rule", "crowds"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@given(lists=graphs())
@example(lists=(["a"], [[]]))
def test_the_rule_and_the_states_are_the_definitions(encoding: str, settings: QLearning, lists: Lists) -> None:
    graph = Graph.from_lists(*lists)
    if not graph.num_nodes:
        return
    batches, states = play(*lists, encoding, settings.crowds[0])
    schedule = learn_policy([graph], encoding=encoding, settings=settings).run(graph)
    schedule.check(graph)
    assert list(schedule.batches) == batches
    table = machine.empty_table(graph.num_types, 64)
    kernel(graph, encoding, table, settings)
    told = {state for state, (launched, _) in zip(states, batches, strict=True) if launched in dict(state)}
    assert table.size[0] == len(told)


@given(st.one_of(dags(max_nodes=8, max_types=3), trees(max_trees=2, max_leaves=3, internal=("node", "other"))))
def test_some_shortest_schedule_starts_with_a_sure_type(lists: Lists) -> None:
    if not lists[0]:
        return
    frontier = naive.Frontier(*lists, frozenset())
    best = naive.shortest_length(*lists)
    assert best == Exact().run(Graph.from_lists(*lists)).num_batches >= naive.bound(*lists, ())
    for t in frontier.sure:
        assert naive.shortest_length(*lists, frozenset(frontier.ready[t])) == best - 1


class NaiveLearner:
    """Q-learning with n-step returns as the books have it, over the naive frontier."""

    def __init__(self, encoding: str, settings: QLearning) -> None:
        self.encoding, self.settings = encoding, settings
        self.values: dict[State, dict[str, float]] = {}

    def episode(self, types: list[str], inputs: list[list[int]]) -> None:
        """Without exploration: launch the best known type, or the rule's where none is known."""
        s = self.settings
        steps: list[tuple[State, str, float]] = []
        done: frozenset[int] = frozenset()
        updated = 0
        while len(done) < len(types):
            seen = naive.Frontier(types, inputs, done)
            state = seen.state(self.encoding)
            tried = {t: v for t, v in self.values.get(state, {}).items() if t in seen.ready}
            chosen = max(tried, key=lambda t: (tried[t], -types.index(t))) if tried else seen.rule(s.crowds[0])
            if tried:
                while updated + s.steps <= len(steps):
                    self.update(steps[updated:], tried[chosen])
                    tried[chosen] = self.values[state][chosen]
                    updated += 1
            if chosen in dict(state):
                self.values.setdefault(state, {})
            reward = s.alpha * len(seen.ready[chosen]) / len(seen.free[chosen]) - 1
            steps.append((state, chosen, reward))
            done |= set(seen.ready[chosen])
        for first in range(updated, len(steps)):
            self.update(steps[first:], 0.0)

    def update(self, steps: list[tuple[State, str, float]], after: float) -> None:
        (state, t, _), value = steps[0], after
        if t not in dict(state):
            return
        for _, _, reward in reversed(steps):
            value = reward + self.settings.discount * value
        old = self.values[state].get(t)
        self.values[state][t] = value if old is None else old + self.settings.learning_rate * (value - old)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(lists=graphs(), steps=st.sampled_from([1, 3, 10]), discount=st.sampled_from([1.0, 0.9]))
def test_values_are_those_of_n_step_returns(encoding: str, lists: Lists, steps: int, discount: float) -> None:
    graph = Graph.from_lists(*lists)
    if not graph.num_nodes:
        return
    settings = QLearning(steps=steps, discount=discount)
    naively = NaiveLearner(encoding, settings)
    table = machine.empty_table(graph.num_types, 64)
    for _ in range(4):
        naively.episode(*lists)
        assert kernel(graph, encoding, table, settings) == graph.lower_bound()
    assert table.size[0] == len(naively.values)
    found = np.sort(table.values[table.counts > 0])
    expected = np.sort([v for values in naively.values.values() for v in values.values()])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_full_table_leaves_the_rest_to_the_rule() -> None:
    graph = Graph.from_lists(*words("abcab", "bcacb", "cabbc"))
    policy = learn_policy([graph], encoding="sort", settings=QLearning(episodes=50, max_states=2, stop=0.0))
    schedule = policy.run(graph)
    schedule.check(graph)
    assert policy.num_states == 2
    assert 0 < schedule.unseen_states < schedule.num_batches
