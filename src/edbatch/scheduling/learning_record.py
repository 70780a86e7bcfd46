"""The settings of learning, and the record of how a machine was learned.

These are plain values, saved in the file of the machine (the finite state machine of `fsm`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from edbatch.errors import PolicyError


@dataclass(frozen=True)
class QLearning:
    """Settings. Defaults are the ED-Batch paper's, except `stop` (1.01 there) and the last three, which are ours."""

    alpha: float = 1.0  # reward of a launch: -1 + alpha * ready nodes / free nodes of the type (see `RatioGreedy`)
    learning_rate: float = 0.4
    discount: float = 1.0
    steps: int = 10  # how many rewards are added up to judge a launch
    explore: float = 0.5  # how often a random type is tried in the first episode
    explore_decay: float = 0.9  # per episode
    explore_floor: float = 0.05
    episodes: int = 1000
    evaluate_every: int = 50
    stop: float = 1.0  # learning ends when there are at most so many times the lower bound of batches
    crowds: tuple[float, ...] = (0.0, 0.5, 1.0)  # values of `crowd`, from which the best is chosen; see `machine`
    demonstrate: bool = True  # for signs: the rule plays every graph once, and is kept if nothing as good is learned
    max_states: int = 4096

    def __post_init__(self) -> None:
        wrong = [name for name in ("episodes", "alpha") if getattr(self, name) < 0]
        wrong += [name for name in ("steps", "evaluate_every", "max_states") if getattr(self, name) < 1]
        shares = ("learning_rate", "discount", "explore", "explore_decay", "explore_floor")
        wrong += [name for name in shares if not 0 <= getattr(self, name) <= 1]
        if self.learning_rate == 0:
            wrong.append("learning_rate")
        if not self.crowds or not all(0 <= crowd < math.inf for crowd in self.crowds):
            wrong.append("crowds")
        if wrong:
            raise PolicyError(
                f"cannot learn with {', '.join(f'{name}={getattr(self, name)}' for name in wrong)}; counts are 1 or "
                "more, rates and shares are from 0 to 1, and the learning rate is above 0"
            )


class Evaluation(NamedTuple):
    """How good a machine was at one point of learning: its batches, summed over all graphs."""

    episode: int
    batches: int
    held_out_batches: int
    num_states: int


@dataclass(frozen=True)
class Training:
    """How a machine was learned."""

    seed: int = 0
    settings: QLearning = QLearning()
    num_graphs: int = 0
    num_nodes: int = 0
    lower_bound: int = 0
    held_out_lower_bound: int = 0
    episodes: int = 0
    chosen: int = 0  # which entry of `curve` is the machine that was returned
    curve: tuple[Evaluation, ...] = ()  # the first entry is of the rule without a table
