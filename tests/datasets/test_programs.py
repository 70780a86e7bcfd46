"""Generated programs are the same for the same seed, and are what their description says."""

from __future__ import annotations

from collections import Counter
from statistics import correlation, mean

import pytest
import torch

from edbatch.datasets import Call, Feature, random_programs, random_questions
from edbatch.datasets.programs import NUM_ANSWERS, NUM_FEATURES, NUM_MODULES, value_of


def parts(program: Call | Feature) -> list[Call | Feature]:
    """Every call and feature, arguments before their call."""
    below = [part for argument in getattr(program, "arguments", ()) for part in parts(argument)]
    return [*below, program]


def test_seed_decides():
    assert random_programs(20, seed=7) == random_programs(20, seed=7)
    assert random_programs(20, seed=7).programs == random_programs(30, seed=7).programs[:20]
    assert random_programs(20, seed=7).programs != random_programs(20, seed=8).programs


@pytest.mark.parametrize("num_modules", [1, 2, 40])
def test_modules_have_fixed_arities_and_leaves_are_features(num_modules):
    bank = random_programs(100, seed=0, num_modules=num_modules)
    assert len(bank.arities) == num_modules
    used = set()
    for program in bank.programs:
        calls = [part for part in parts(program) if isinstance(part, Call)]
        features = [part.index for part in parts(program) if isinstance(part, Feature)]
        assert 8 <= len(calls) <= 24
        assert features == list(range(len(features)))
        assert all(len(call.arguments) == bank.arities[call.module] for call in calls)
        used.update(call.module for call in calls)
    assert used == set(range(num_modules))


def test_sizes_and_arities_are_evenly_spread():
    calls = [[part for part in parts(p) if isinstance(part, Call)] for p in random_programs(500, seed=0).programs]
    assert mean(map(len, calls)) == pytest.approx(16, abs=0.7)
    assert {len(below) for below in calls} == set(range(8, 25))
    assert mean(len(call.arguments) for below in calls for call in below) == pytest.approx(1.5, abs=0.05)


def test_no_modules_are_refused():
    with pytest.raises(ValueError, match="num_modules must be at least 1, not 0"):
        random_programs(1, seed=0, num_modules=0)


def test_questions_depend_on_the_seed_alone():
    def plain(count: int, seed: int) -> list[tuple]:
        questions = random_questions(count, seed)
        return [(q.program, [feature.tolist() for feature in q.features], q.label) for q in questions]

    assert plain(20, seed=7) == plain(30, seed=7)[:20]
    assert plain(20, seed=7) != plain(20, seed=8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_questions_have_a_feature_of_the_default_dtype_for_each_leaf(dtype):
    torch.set_default_dtype(dtype)
    try:
        questions = random_questions(20, seed=0)
    finally:
        torch.set_default_dtype(torch.float32)
    for question in questions:
        calls = [part for part in parts(question.program) if isinstance(part, Call)]
        indices = [part.index for part in parts(question.program) if isinstance(part, Feature)]
        assert indices == list(range(len(question.features)))
        assert {(feature.dtype, feature.shape) for feature in question.features} == {(dtype, (NUM_FEATURES,))}
        assert all(call.module < NUM_MODULES and len(call.arguments) == 1 + call.module % 2 for call in calls)


def test_answers_follow_from_features_and_programs():
    questions = random_questions(500, seed=0)
    values = [value_of(q.program, [feature.tolist() for feature in q.features]) for q in questions]
    of_programs = [value_of(q.program, [[0.0]] * len(q.features)) for q in questions]
    assert [sum(value > threshold for threshold in (-0.7, 0, 0.7)) for value in values] == [q.label for q in questions]
    assert 0.8 < correlation(values, of_programs) < 0.95  # the features matter too
    counts = Counter(question.label for question in questions)
    assert all(0.18 < counts[answer] / len(questions) < 0.32 for answer in range(NUM_ANSWERS))
