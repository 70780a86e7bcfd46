"""Generated graphs of states: a number and a seed come in, `Dag` objects go out.

Every arc of a state votes for one tag, by its token and kind, and the state's tag is the one with most votes, so that a
model can learn it. Tokens with small ids are frequent (Zipf's law); there is no unknown token.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from edbatch.datasets.synthetic.zipf import zipf_weights

NUM_TOKENS, NUM_TAGS = 1_000, 8
NUM_STATES, NUM_SOURCES, MAX_REACH = 200, 4, 30

_SECOND_KIND_CHANCE = 0.1
_TOKEN_WEIGHTS = zipf_weights(NUM_TOKENS, offset=20)


@dataclass(frozen=True, slots=True)
class Dag:
    """State `i` has the tag `tags[i]` and the arcs `arcs[i]`: an earlier state, the kind of the arc (0, 1), a token."""

    tags: tuple[int, ...]
    arcs: tuple[tuple[tuple[int, int, int], ...], ...]


def random_dags(count: int, seed: int) -> list[Dag]:
    """`count` graphs of 200 states, each but the first with arcs from four of the 30 states before (or all there are).

    >>> [len(arcs) for arcs in random_dags(1, seed=0)[0].arcs[:7]]
    [0, 1, 2, 3, 4, 4, 4]
    """
    rng = random.Random(seed)
    return [_random_dag(rng) for _ in range(count)]


def tag_of(arcs: tuple[tuple[int, int, int], ...]) -> int:
    """The tag of a state with these arcs: the one with most votes; the smallest of equals.

    >>> tag_of(((0, 0, 3), (1, 0, 5), (2, 1, 4)))
    5
    """
    votes = [0] * NUM_TAGS
    for _, kind, token in arcs:
        votes[(token + kind) % NUM_TAGS] += 1
    return votes.index(max(votes))


def _random_dag(rng: random.Random) -> Dag:
    tokens = iter(rng.choices(range(NUM_TOKENS), cum_weights=_TOKEN_WEIGHTS, k=NUM_STATES * NUM_SOURCES))
    arcs = []
    for state in range(NUM_STATES):
        sources = rng.sample(range(max(state - MAX_REACH, 0), state), min(NUM_SOURCES, state))
        arcs.append(tuple((source, int(rng.random() < _SECOND_KIND_CHANCE), next(tokens)) for source in sources))
    return Dag(tuple(map(tag_of, arcs)), tuple(arcs))
