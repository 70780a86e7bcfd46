"""Generated word lattices: a number and a seed come in, a `LatticeBank` goes out.

Lengths, the share of word arcs and how far they reach are roughly those of the real lattices, and a node's tag follows
from its character, so a model can learn it; for demos, tests and machines without the real data.
"""

from __future__ import annotations

import random
from itertools import accumulate

from edbatch.datasets.lattices import Lattice, LatticeBank
from edbatch.datasets.synthetic.zipf import zipf_weights

NUM_TAGS, NUM_CHARS, NUM_WORDS = 18, 3_000, 20_000

_CHAR_WEIGHTS = zipf_weights(NUM_CHARS, offset=1, exponent=0.6, fade=700)
_WORD_WEIGHTS = zipf_weights(NUM_WORDS, offset=5, exponent=0.8)
_WORD_CHANCE = (0.57, 0.41)  # that a word ends at a node, when none or one ended at the node before
_WEIGHT_OF_REACHES = {  # lengths, in characters, of the words that end at one node; per mille
    (2,): 859, (3,): 26, (4,): 4, (2, 3): 88, (2, 4): 9, (2, 5): 2, (3, 4): 1, (2, 3, 4): 8, (2, 3, 5): 2, (2, 3, 6): 1,
}  # fmt: skip
_REACHES, _REACHES_WEIGHTS = list(_WEIGHT_OF_REACHES), list(accumulate(_WEIGHT_OF_REACHES.values()))
_START_TAG, _USUAL_TAG = 0, 3
_UNUSUAL_EVERY = 6  # one in so many characters has another tag than the usual one


def random_lattices(count: int, seed: int) -> LatticeBank:
    """`count` lattices of 3 to 211 nodes: a character arc to every node but the first, and word arcs to half of them.

    >>> bank = random_lattices(2, seed=0)
    >>> bank.lattices == random_lattices(2, seed=0).lattices
    True
    """
    rng = random.Random(seed)
    return LatticeBank([_random_lattice(rng) for _ in range(count)], f"generated lattices, seed {seed}")


def _random_lattice(rng: random.Random) -> Lattice:
    num_nodes = min(max(round(rng.gammavariate(2.5, 17.6)), 3), 211)
    chars = rng.choices(range(NUM_CHARS), cum_weights=_CHAR_WEIGHTS, k=num_nodes - 1)
    arcs: list[tuple[tuple[int, int], ...]] = [()]
    for node, char in enumerate(chars, start=1):
        pairs = [(node - 1, char)]
        if rng.random() < _WORD_CHANCE[len(arcs[-1]) > 1]:
            (reaches,) = rng.choices(_REACHES, cum_weights=_REACHES_WEIGHTS)
            words = rng.choices(range(NUM_WORDS), cum_weights=_WORD_WEIGHTS, k=len(reaches))
            pairs += [(node - reach, word) for reach, word in zip(reaches, words, strict=True) if reach <= node]
        arcs.append(tuple(pairs))
    return Lattice((_START_TAG, *map(_tag_of, chars)), tuple(arcs))


def _tag_of(char: int) -> int:
    return _USUAL_TAG if char % _UNUSUAL_EVERY else 1 + char // _UNUSUAL_EVERY % (NUM_TAGS - 1)
