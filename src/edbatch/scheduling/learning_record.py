"""How a machine is learned, and the record of how it was: values that are kept in the machine's file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from edbatch.errors import PolicyError


@dataclass(frozen=True)
class QLearning:
    """How to learn. The defaults are the paper's, but for `stop` (1.01 there) and the last three, which are ours."""

    alpha: float = 1.0  # reward of a launch: -1 + alpha * ready nodes of the type / those that could be
    learning_rate: float = 0.4
    discount: float = 1.0
    steps: int = 10  # rewards in a return
    explore: float = 0.5  # how often a random type is tried in the first episode
    explore_decay: float = 0.9  # per episode
    explore_floor: float = 0.05
    episodes: int = 1000
    evaluate_every: int = 50
    stop: float = 1.0  # at so many times the lower bound
    crowds: tuple[float, ...] = (0.0, 0.5, 1.0)  # rules to choose from; see `machine`
    demonstrate: bool = True  # signs: the rule plays every graph once, and stays if nothing better is learned
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
    """How good a machine was while it was learned: batches, over all graphs."""

    episode: int
    batches: int
    held_out_batches: int
    num_states: int


@dataclass(frozen=True)
class Training:
    """How a machine came about."""

    seed: int = 0
    settings: QLearning = QLearning()
    num_graphs: int = 0
    num_nodes: int = 0
    lower_bound: int = 0
    held_out_lower_bound: int = 0
    episodes: int = 0
    chosen: int = 0  # the machine is that of this evaluation
    curve: tuple[Evaluation, ...] = ()  # the first one is of the rule alone
