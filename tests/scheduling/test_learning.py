from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from edbatch.errors import PolicyError
from edbatch.scheduling.fsm import ENCODINGS, Fsm
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.learning import learn_policy
from edbatch.scheduling.learning_record import Evaluation, QLearning
from edbatch.scheduling.policies import BoundGreedy, Exact, Learned
from strategies import Lists, graphs, words

# After b the three words read a together, twice; the rule begins with a and needs a batch more.
PROBLEM = Graph.from_lists(*words("baa", "aab", "aa"))
SHORT = QLearning(episodes=60, evaluate_every=20)


def test_the_best_machine_of_a_known_problem_is_learned() -> None:
    rule = learn_policy([PROBLEM], encoding="base", settings=QLearning(episodes=0, demonstrate=False))
    learned = learn_policy([PROBLEM], encoding="base", settings=QLearning(demonstrate=False))
    assert rule.run(PROBLEM).num_batches == 5
    assert learned.run(PROBLEM).num_batches == Exact().run(PROBLEM).num_batches == 4
    launches = {frozenset(name for name, _ in state.ready): state.launch for state in learned.states()}
    assert launches == {frozenset("ab"): "b", frozenset("a"): "a", frozenset("b"): "b"}


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(max_examples=25)
@given(lists=graphs())
def test_a_seed_makes_the_machine(encoding: str, lists: Lists) -> None:
    graph = Graph.from_lists(*lists)
    if not graph.num_nodes:
        return
    first, second = (learn_policy([graph], encoding=encoding, seed=3, settings=SHORT) for _ in range(2))
    for name in ("symbols", "starts", "actions", "visits"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert (first.types, first.training) == (second.types, second.training)
    first.run(graph).check(graph)


def test_seeds_differ() -> None:
    graph = Graph.from_lists(*words("abcabca", "bcacbab", "cabbcac", "ccabacb"))
    alone = QLearning(demonstrate=False)
    visits = [learn_policy([graph], seed=seed, settings=alone).visits.tolist() for seed in (0, 1, -1)]
    assert visits[0] != visits[1] != visits[2] != visits[0]


def test_several_graphs_share_types_by_name() -> None:
    graphs = [Graph.from_lists(*words(*texts)) for texts in (("ab", "ba"), ("bc", "cb"), ("ca", "ac"))]
    policy = learn_policy(graphs)
    assert policy.types == ("a", "b", "c")
    assert policy.training.num_graphs == 3
    assert policy.training.num_nodes == 12
    for graph in graphs:
        schedule = policy.run(graph)
        schedule.check(graph)
        assert schedule.unseen_states == 0


def test_type_ids_of_a_graph_do_not_matter() -> None:
    machine = learn_policy([PROBLEM], encoding="base", settings=QLearning(demonstrate=False))
    names = PROBLEM.type_names
    turned = replace(PROBLEM, types=len(names) - 1 - PROBLEM.types, type_names=names[::-1])
    more = replace(turned, types=turned.types + 1, type_names=("unused", *turned.type_names))
    for graph, policy in ((turned, machine), (more, machine.with_types(["unused"]))):
        schedule = policy.run(graph)
        schedule.check(graph)
        assert schedule.batches == machine.run(PROBLEM).batches


def test_learning_stops_at_the_lower_bound() -> None:
    policy = learn_policy([Graph.from_lists(*words("aaab", "aab"))])
    assert policy.training.episodes == 0
    rule, demonstrated = policy.training.curve
    assert rule == Evaluation(0, batches=4, held_out_batches=0, num_states=0)
    assert demonstrated == Evaluation(0, batches=4, held_out_batches=0, num_states=2)
    assert policy.training.chosen == 1  # as good as the rule, and it says what it does
    stubborn = learn_policy([Graph.from_lists(*words("aaab", "aab"))], settings=replace(SHORT, stop=0.0))
    assert stubborn.training.episodes == 60
    assert [evaluation.episode for evaluation in stubborn.training.curve] == [0, 0, 20, 40, 60]


def test_the_best_evaluation_stays() -> None:
    graph = Graph.from_lists(*words("abcabca", "bcacbab", "cabbcac", "ccabacb"))
    for seed in range(5):
        policy = learn_policy([graph], encoding="max", seed=seed, settings=SHORT)
        batches = [evaluation.batches for evaluation in policy.training.curve[1:]]  # all but the rule alone
        assert policy.training.chosen == 1 + batches.index(min(batches))
        assert policy.run(graph).num_batches == min(batches)


def test_held_out_graphs_choose_and_are_not_learned_from() -> None:
    graph = Graph.from_lists(*words("abcabca", "bcacbab", "cabbcac", "ccabacb"))
    held_out = Graph.from_lists(*words("acbacb", "bacbac", "cbabca"))
    policy = learn_policy([graph], held_out=[held_out], encoding="sort", settings=replace(SHORT, stop=0.0))
    curve = policy.training.curve
    assert curve[policy.training.chosen].held_out_batches == min(evaluation.held_out_batches for evaluation in curve)
    assert policy.run(held_out).num_batches == curve[policy.training.chosen].held_out_batches
    assert policy.training.held_out_lower_bound == held_out.lower_bound()
    alone = learn_policy([graph], encoding="sort", settings=replace(SHORT, stop=0.0))
    assert [e.batches for e in curve] == [e.batches for e in alone.training.curve]


def test_progress_is_told() -> None:
    told: list[Evaluation] = []
    policy = learn_policy([PROBLEM], settings=replace(SHORT, stop=0.0), progress=told.append)
    assert tuple(told) == policy.training.curve[1:]


@pytest.mark.parametrize(
    "wrong",
    [
        {"episodes": -1}, {"steps": 0}, {"evaluate_every": 0}, {"max_states": 0}, {"learning_rate": 0.0},
        {"learning_rate": 1.5}, {"discount": 2.0}, {"explore": -0.1}, {"alpha": -1.0}, {"crowds": ()},
        {"crowds": (float("nan"),)}, {"crowds": (float("inf"),)}, {"crowds": (-1.0,)},
    ],
)  # fmt: skip
def test_settings_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match=f"cannot learn with {next(iter(wrong))}="):
        QLearning(**wrong)  # type: ignore[arg-type]


def test_any_int_is_a_seed_and_nothing_else() -> None:
    for seed in (-1, 2**70, -(2**70)):
        learn_policy([PROBLEM], seed=seed, settings=SHORT).run(PROBLEM).check(PROBLEM)
    with pytest.raises(PolicyError, match=r"a seed is an int, not 0\.5"):
        learn_policy([PROBLEM], seed=0.5)  # type: ignore[arg-type]


def test_nothing_to_learn_from() -> None:
    with pytest.raises(PolicyError, match="nothing to learn from: give at least one graph"):
        learn_policy([])
    with pytest.raises(PolicyError, match="nothing to learn from"):
        learn_policy([Graph.from_lists([], [])])
    with pytest.raises(PolicyError, match=r"give \[graph\] instead of a graph"):
        learn_policy(PROBLEM)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="no encoding is called 'best'; choose one of base, max, sort, signs"):
        learn_policy([PROBLEM], encoding="best")


def test_a_machine_for_other_types_says_so() -> None:
    policy = learn_policy([PROBLEM])
    with pytest.raises(PolicyError, match=r"learned for other types: it does not know 'c'; .*Learned\(policy\)"):
        policy.run(Graph.from_lists("abc", [[], [0], [1]]))
    with pytest.raises(PolicyError, match=r"does not know 'c', 'd', 'e' and 1 more"):
        policy.run(Graph.from_lists("cdef", [[], [0], [1], [2]]))
    fewer = Graph.from_lists("bb", [[], [0]])  # some of the types are enough
    assert policy.run(fewer).batches == (("b", [0]), ("b", [1]))


def test_types_may_be_anything_hashable() -> None:
    graph = Graph.from_lists([("cell", 1), None, ("cell", 1)], [[], [0], [1]])
    assert learn_policy([graph]).run(graph).batches == ((("cell", 1), [0]), (None, [1]), (("cell", 1), [2]))


def test_machines_pickle() -> None:
    policy = learn_policy([PROBLEM], encoding="base")
    policy.run(PROBLEM)
    copy: Fsm = pickle.loads(pickle.dumps(policy))
    assert copy.run(PROBLEM).batches == policy.run(PROBLEM).batches


class TestLearned:
    @given(graphs())
    def test_never_longer_than_bound_greedy_or_the_machine(self, lists: Lists) -> None:
        graph = Graph.from_lists(*lists)
        policy = Learned()
        schedule = policy.run(graph)
        schedule.check(graph)
        machines = [] if policy.machine is None else [policy.machine.run(graph).num_batches]
        assert schedule.num_batches == min([BoundGreedy().run(graph).num_batches, *machines])

    def test_learns_once_and_again_for_new_types(self) -> None:
        policy = Learned()
        policy.run(PROBLEM)
        first = policy.machine
        policy.run(Graph.from_lists(*words("ab", "ba")))
        assert policy.machine is first
        policy.run(Graph.from_lists(*words("abc", "cba")))
        assert policy.machine is not first
        assert len(policy.lessons) == 2
        assert policy.machine is not None
        assert set(policy.machine.types) == set("abc")

    def test_a_model_with_ever_new_types_does_not_learn_for_ever(self) -> None:
        policy = Learned()
        for k in range(10):
            graph = Graph.from_lists([f"a{k}", "b", f"a{k}"], [[], [], [1]])
            policy.run(graph).check(graph)
        assert len(policy.lessons) == Learned.max_lessons
        assert policy.machine is not None
        assert len(policy.machine.types) == Learned.max_lessons + 1  # what comes later is not kept

    def test_starts_from_a_machine(self) -> None:
        machine = learn_policy([PROBLEM], encoding="base")
        policy = Learned(machine)
        assert policy.run(PROBLEM).num_batches == 4
        assert policy.machine is machine
        assert not policy.lessons

    def test_states_of_earlier_machines_stay(self) -> None:
        machine = learn_policy([PROBLEM])
        policy = Learned(machine)
        new = Graph.from_lists(*words("ca", "ac"))
        policy.run(new)
        assert len(policy.lessons) == 1
        assert policy.machine is not None
        before, after = ({frozenset(s.ready): s.launch for s in m.states()} for m in (machine, policy.machine))
        assert before.keys() < after.keys()
        assert after[frozenset({("a", "longest"), ("b", "longest")})] == "b"
        assert policy.run(PROBLEM).unseen_states == 0
        assert len(policy.lessons) == 1

    @pytest.mark.parametrize(("num_words", "episodes"), [(1, 1000), (40, 185), (400, 0)])
    def test_what_a_large_graph_costs_is_bounded(self, num_words: int, episodes: int) -> None:
        graph = Graph.from_lists(*words(*["abcabcabc" * 25, "bcacbacba" * 25, "ccabacbab" * 25] * num_words))
        policy = Learned()
        policy.run(graph)
        assert policy.machine is not None
        assert policy.machine.training.settings.episodes == episodes
        many_types = Graph.from_lists([i % 500 for i in range(5000)], [[] for _ in range(5000)])
        policy = Learned()
        policy.run(many_types)
        assert policy.machine is not None
        assert policy.machine.training.settings.episodes == 0

    def test_an_interrupted_lesson_leaves_no_trace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        policy = Learned()
        with monkeypatch.context() as patch:
            patch.setattr("edbatch.scheduling.policies.learn_policy", interrupt)
            with pytest.raises(KeyboardInterrupt):
                policy.run(PROBLEM)
        assert policy == Learned()
        assert policy.run(PROBLEM).num_batches == 4

    def test_threads_may_share_it(self) -> None:
        graphs = [Graph.from_lists(*words(f"{a}b{a}", f"b{a}b")) for a in "acdefg"]
        for _ in range(10):
            policy = Learned()
            with ThreadPoolExecutor(len(graphs)) as pool:
                for graph, schedule in zip(graphs, pool.map(policy.run, graphs), strict=True):
                    schedule.check(graph)

    def test_nothing_to_save_yet(self, tmp_path: object) -> None:
        with pytest.raises(PolicyError, match="nothing has been learned yet; call the batched function first"):
            Learned().save(f"{tmp_path}/policy.json")
