"""Generated programs, as a neural module network runs them: a number and a seed come in, trees of `Call`s go out.

Every example has its own program, made of calls of a fixed set of modules with one or two arguments; the leaves of the
program are the example's features. Such programs are hard to batch: there are many modules, and few calls of each are
ready at a time. A `Question` is a program with values for its features, and an answer that follows from both, so that a
model can learn it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count as numbers
from typing import NamedTuple

import torch
from torch import Tensor

MIN_CALLS, MAX_CALLS = 8, 24
NUM_MODULES, NUM_FEATURES, NUM_ANSWERS = 40, 16, 4

_THRESHOLDS = (-0.7, 0.0, 0.7)  # where one answer ends and the next begins
_FADING = 0.7  # the share of its arguments' mean that a call passes on, so that calls near the root decide


@dataclass(frozen=True, slots=True)
class Feature:
    """A leaf: the feature of the example with this index, counted from 0 and from left to right."""

    index: int


@dataclass(frozen=True, slots=True)
class Call:
    """A module applied to features and results of other calls."""

    module: int
    arguments: tuple[Call | Feature, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A program, the features [NUM_FEATURES] that its leaves name by index, and the answer, an int."""

    program: Call
    features: tuple[Tensor, ...]
    label: int


class ProgramBank(NamedTuple):
    """The root calls of programs, how many arguments each module takes, and, in words, where the programs are from."""

    programs: list[Call]
    arities: tuple[int, ...]
    source: str


def random_programs(count: int, seed: int, num_modules: int = NUM_MODULES) -> ProgramBank:
    """`count` programs of 8 to 24 calls of random modules; modules 0, 2, … take one argument, 1, 3, … take two.

    >>> bank = random_programs(1, seed=0, num_modules=2)
    >>> bank.arities, bank.programs == random_programs(1, seed=0, num_modules=2).programs
    ((1, 2), True)
    """
    if num_modules < 1:
        raise ValueError(f"num_modules must be at least 1, not {num_modules}")
    rng = random.Random(seed)
    arities = _arities(num_modules)
    programs = [_random_program(arities, rng) for _ in range(count)]
    return ProgramBank(programs, arities, f"generated programs, seed {seed}")


def random_questions(count: int, seed: int) -> list[Question]:
    """`count` questions: programs like those of `random_programs`, with features of the default dtype and an answer.

    >>> question = random_questions(1, seed=0)[0]
    >>> question.features[0].shape, question.label in range(NUM_ANSWERS)
    (torch.Size([16]), True)
    """
    rng = random.Random(seed)
    questions = []
    for _ in range(count):
        program = _random_program(_arities(NUM_MODULES), rng)
        features = [[rng.gauss(0, 1) for _ in range(NUM_FEATURES)] for _ in range(_num_features(program))]
        answer = sum(value_of(program, features) > threshold for threshold in _THRESHOLDS)
        tensors = tuple(torch.tensor(numbers, dtype=torch.get_default_dtype()) for numbers in features)
        questions.append(Question(program, tensors, answer))
    return questions


def value_of(part: Call | Feature, features: Sequence[Sequence[float]]) -> float:
    """The hidden number that decides the answer. That of a feature is its scaled sum; a call takes the mean of its
    arguments, scales it down and adds a constant of its module.

    >>> round(value_of(Call(4, (Feature(0),)), [[1.0, 0.5]]), 6)
    1.7
    """
    if isinstance(part, Feature):
        return sum(features[part.index]) / 1.5
    values = [value_of(argument, features) for argument in part.arguments]
    return _FADING * sum(values) / len(values) + (part.module % 5 - 2) / 2


def _num_features(part: Call | Feature) -> int:
    return 1 if isinstance(part, Feature) else sum(map(_num_features, part.arguments))


def _arities(num_modules: int) -> tuple[int, ...]:
    return tuple(1 + module % 2 for module in range(num_modules))


def _random_program(arities: tuple[int, ...], rng: random.Random) -> Call:
    program = _random_part(rng.randint(MIN_CALLS, MAX_CALLS), arities, numbers(), rng)
    assert isinstance(program, Call)  # it has at least MIN_CALLS calls
    return program


def _random_part(num_calls: int, arities: tuple[int, ...], indices: numbers[int], rng: random.Random) -> Call | Feature:
    """A random program of so many calls. It is not deeper than that, so recursion is safe."""
    if num_calls == 0:
        return Feature(next(indices))
    module = rng.randrange(len(arities))
    num_left = rng.randint(0, num_calls - 1) if arities[module] == 2 else num_calls - 1
    nums = (num_left, num_calls - 1 - num_left)[: arities[module]]
    return Call(module, tuple(_random_part(num, arities, indices, rng) for num in nums))
