"""Generated programs, as a neural module network runs them: a number and a seed come in, trees of `Call`s go out.

Every example has a program of its own over a fixed set of modules with one or two arguments each; the leaves of the
program are the example's features. Many types of which few are ready at a time: hard to batch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count as numbers
from typing import NamedTuple

MIN_CALLS, MAX_CALLS = 8, 24


@dataclass(frozen=True, slots=True)
class Feature:
    """A leaf: the feature of the example with this index, counted from 0 and from left to right."""

    index: int


@dataclass(frozen=True, slots=True)
class Call:
    """A module applied to features and results of other calls."""

    module: int
    arguments: tuple[Call | Feature, ...]


class ProgramBank(NamedTuple):
    """The root calls of programs, how many arguments each module takes, and where they are from, in words."""

    programs: list[Call]
    arities: tuple[int, ...]
    source: str


def random_programs(count: int, seed: int, num_modules: int = 40) -> ProgramBank:
    """`count` programs of 8 to 24 calls of random modules; modules 0, 2, … take one argument, 1, 3, … take two.

    >>> bank = random_programs(1, seed=0, num_modules=2)
    >>> bank.arities, bank.programs == random_programs(1, seed=0, num_modules=2).programs
    ((1, 2), True)
    """
    if num_modules < 1:
        raise ValueError(f"num_modules must be at least 1, not {num_modules}")
    rng = random.Random(seed)
    arities = tuple(1 + module % 2 for module in range(num_modules))
    programs = []
    for _ in range(count):
        program = _random_program(rng.randint(MIN_CALLS, MAX_CALLS), arities, numbers(), rng)
        assert isinstance(program, Call)  # it has at least MIN_CALLS calls
        programs.append(program)
    return ProgramBank(programs, arities, f"generated programs, seed {seed}")


def _random_program(
    num_calls: int, arities: tuple[int, ...], indices: numbers[int], rng: random.Random
) -> Call | Feature:
    """A program of so many calls, which also bounds its depth, so recursion is safe."""
    if num_calls == 0:
        return Feature(next(indices))
    module = rng.randrange(len(arities))
    num_left = rng.randint(0, num_calls - 1) if arities[module] == 2 else num_calls - 1
    nums = (num_left, num_calls - 1 - num_left)[: arities[module]]
    return Call(module, tuple(_random_program(num, arities, indices, rng) for num in nums))
