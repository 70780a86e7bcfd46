"""Generated triangles and grids of words: a number and a seed come in, `Triangle` or `Grid` objects go out.

Every place has a word, every word votes for one class, and the label is the class with most votes, so that a model can
learn it. Words with small ids are frequent (Zipf's law); there is no unknown word.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

from edbatch.datasets.synthetic.zipf import zipf_weights

NUM_WORDS, NUM_CLASSES = 1_000, 5

_MIN_LEAVES, _MAX_LEAVES = 10, 14
_SIDES_OF_DIMS = {1: ((10, 49),), 2: ((3, 4), (20, 24)), 3: ((2, 3), (2, 3), (10, 14))}
_WORDS_PER_CLASS = NUM_WORDS // NUM_CLASSES
_RANK_WEIGHTS = zipf_weights(_WORDS_PER_CLASS, offset=3)
_LEANING = 0.4  # the share of words that vote for one class; the others vote for any


@dataclass(frozen=True, slots=True)
class Triangle:
    """Word ids of leaves and a class. Row 0 is the leaves, and node j of a row reads j and j + 1 of the row before."""

    words: tuple[int, ...]
    label: int


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of any number of dimensions, a word id for each place in row-major order, and a class."""

    shape: tuple[int, ...]
    words: tuple[int, ...]
    label: int


def random_triangles(count: int, seed: int) -> list[Triangle]:
    """`count` triangles of 10 to 14 leaves.

    >>> random_triangles(2, seed=0) == random_triangles(3, seed=0)[:2]
    True
    """
    rng = random.Random(seed)
    return [Triangle(*_words_and_label(rng.randint(_MIN_LEAVES, _MAX_LEAVES), rng)) for _ in range(count)]


def random_grids(count: int, seed: int, dims: int) -> list[Grid]:
    """`count` grids of 10 to 49 places (1 dimension), 3–4 by 20–24 (2) or 2–3 by 2–3 by 10–14 (3).

    >>> [grid.shape for grid in random_grids(3, seed=0, dims=3)]
    [(3, 3, 10), (2, 3, 13), (3, 3, 10)]
    """
    if dims not in _SIDES_OF_DIMS:
        raise ValueError(f"dims must be 1, 2 or 3, not {dims}")
    rng = random.Random(seed)
    grids = []
    for _ in range(count):
        shape = tuple(rng.randint(shortest, longest) for shortest, longest in _SIDES_OF_DIMS[dims])
        grids.append(Grid(shape, *_words_and_label(prod(shape), rng)))
    return grids


def _words_and_label(num_words: int, rng: random.Random) -> tuple[tuple[int, ...], int]:
    leaning = rng.randrange(NUM_CLASSES)
    classes = [leaning if rng.random() < _LEANING else rng.randrange(NUM_CLASSES) for _ in range(num_words)]
    ranks = rng.choices(range(_WORDS_PER_CLASS), cum_weights=_RANK_WEIGHTS, k=num_words)
    words = tuple(rank * NUM_CLASSES + class_ for rank, class_ in zip(ranks, classes, strict=True))
    return words, max(range(NUM_CLASSES), key=classes.count)  # the smallest of equally frequent classes
