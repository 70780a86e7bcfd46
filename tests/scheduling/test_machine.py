"""Machines at work: what they see, what they launch, and what they learn, against the definitions in `naive`."""

from __future__ import annotations

from hashlib import sha256

import naive
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edbatch.scheduling import machine
from edbatch.scheduling.fsm import ENCODINGS, MARK_NAMES, MARKS
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.learning import learn_policy
from edbatch.scheduling.learning_record import QLearning
from edbatch.scheduling.policies import Exact
from strategies import Lists, dags, graphs, trees, words

State = tuple[tuple[str, str], ...]
RULE = QLearning(episodes=0, crowds=(0.0,), demonstrate=False)
CROWDS = QLearning(episodes=0, crowds=(0.5,), demonstrate=False)


def kernel(
    graph: Graph, encoding: str, table: machine.Table, settings: QLearning, explore: float = 0.0, random: int = 0
) -> int:
    """An episode; returns the lower bound."""
    return machine.play(
        graph.types, graph.offsets, graph.inputs, graph.num_types, ENCODINGS.index(encoding), settings.crowds[0], table,
        np.array([random], np.uint64), explore, settings.alpha, settings.discount, settings.learning_rate,
        settings.steps,
    )[2]  # fmt: skip


def values_of(table: machine.Table, names: tuple[str, ...], encoding: str) -> dict[State, dict[str, float]]:
    """What a table knows, by state and type."""
    found = {}
    for row in range(table.size[0]):
        symbols = table.symbols[row, : table.lengths[row]].tolist()
        state = tuple((names[s // MARKS], MARK_NAMES[encoding][s % MARKS]) for s in symbols)
        found[state] = {names[t]: float(table.values[row, t]) for t in np.flatnonzero(table.counts[row])}
    return found


def first_state(lists: Lists, encoding: str) -> State:
    """What a machine sees when nothing has run."""
    graph = Graph.from_lists(*lists)
    table = machine.empty_table(graph.num_types, 64)
    kernel(graph, encoding, table, RULE)
    return next(iter(values_of(table, graph.type_names, encoding)))  # type: ignore[arg-type]


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
    assert values_of(table, graph.type_names, encoding).keys() == told  # type: ignore[arg-type]


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

    def __init__(self, encoding: str, settings: QLearning, random: int = 0) -> None:
        self.encoding, self.settings, self.random = encoding, settings, random
        self.values: dict[State, dict[str, float]] = {}

    def uniform(self) -> float:
        """The next number of the counter: splitmix64 twice, its upper 53 bits."""
        self.random = (self.random + 1) % 2**64
        number = self.random
        for _ in range(2):
            number = (number + 0x9E3779B97F4A7C15) % 2**64
            number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
            number ^= number >> 31
        return (number >> 11) / 2**53

    def episode(self, types: list[str], inputs: list[list[int]], explore: float) -> None:
        """Launch the best known type or, to explore, another of the state; the rule's where none is known."""
        s = self.settings
        steps: list[tuple[State, str, float]] = []
        done: frozenset[int] = frozenset()
        updated = 0
        while len(done) < len(types):
            seen = naive.Frontier(types, inputs, done)
            state = seen.state(self.encoding)
            tried = self.values.get(state, {})
            if tried:
                chosen = max(tried, key=lambda t: (tried[t], -types.index(t)))
                while updated + s.steps <= len(steps):
                    self.update(steps[updated:], tried[chosen])
                    updated += 1
                if explore and self.uniform() < explore:
                    chosen = state[int(self.uniform() * len(state))][0]
            else:
                chosen = seen.rule(s.crowds[0])
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


def assert_close(found: dict[State, dict[str, float]], expected: dict[State, dict[str, float]]) -> None:
    assert found.keys() == expected.keys()
    for state, values in expected.items():
        assert found[state] == pytest.approx(values, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(
    lists=graphs(), steps=st.sampled_from([1, 3, 10]), discount=st.sampled_from([1.0, 0.9]),
    explore=st.sampled_from([0.0, 0.5]), random=st.integers(0, 2**64 - 1),
)  # fmt: skip
def test_values_are_those_of_n_step_returns(
    encoding: str, lists: Lists, steps: int, discount: float, explore: float, random: int
) -> None:
    graph = Graph.from_lists(*lists)
    if not graph.num_nodes:
        return
    settings = QLearning(steps=steps, discount=discount)
    naively = NaiveLearner(encoding, settings)
    table = machine.empty_table(graph.num_types, 256)
    for _ in range(4):
        naively.random = random
        naively.episode(*lists, explore)
        assert kernel(graph, encoding, table, settings, explore, random) == graph.lower_bound()
    assert_close(values_of(table, graph.type_names, encoding), naively.values)  # type: ignore[arg-type]


def test_learning_takes_graphs_in_turns_and_explores_less_and_less() -> None:
    lists = [words("abcab", "bcacb", "cabbc"), words("abca", "bacc", "cbab")]
    settings = QLearning(episodes=25, evaluate_every=25, explore_floor=0.2, stop=0.0, crowds=(0.0,))
    policy = learn_policy([Graph.from_lists(*each) for each in lists], encoding="max", seed=7, settings=settings)
    naively = NaiveLearner("max", settings, int.from_bytes(sha256(b"7").digest()[:8], "little"))
    for episode in range(25):
        naively.episode(*lists[episode % 2], explore=max(0.2, 0.5 * 0.9**episode))
    expected = {state: max(values, key=lambda t: (values[t], -ord(t))) for state, values in naively.values.items()}
    assert {state.ready: state.launch for state in policy.states()} == expected


def test_a_full_table_leaves_the_rest_to_the_rule() -> None:
    graph = Graph.from_lists(*words("abcab", "bcacb", "cabbc"))
    policy = learn_policy([graph], encoding="sort", settings=QLearning(episodes=50, max_states=2, stop=0.0))
    schedule = policy.run(graph)
    schedule.check(graph)
    assert policy.num_states == 2
    assert 0 < schedule.unseen_states < schedule.num_batches
