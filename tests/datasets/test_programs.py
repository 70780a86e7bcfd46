"""Generated programs are the same for the same seed, and are what their description says."""

from __future__ import annotations

from statistics import mean

import pytest

from edbatch.datasets import Call, Feature, random_programs


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
