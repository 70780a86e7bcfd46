"""Every model with small sizes, and random examples of different shapes that have only what the model reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import prod
from types import SimpleNamespace as Example
from typing import Any

import torch
from torch import nn

from edbatch import models

DIM, WORDS, CHARS, CLASSES, FEATURES, MODULES = 4, 11, 7, 3, 5, 6


@dataclass(frozen=True)
class Case:
    """A model and its examples: `example(rng, size)` is one whose shape is random and grows with the size.

    num_types: how many node types a mini-batch has, however large and different its examples are.
    num_ahead: how many of them run ahead of a recurrence.
    """

    name: str
    model: Callable[[], nn.Module]
    example: Callable[[random.Random, int], Any]
    num_types: int
    num_ahead: int = 0

    def make(self) -> nn.Module:
        """The model in float64, every parameter random, so that no initial zero or identity hides a mistake."""
        torch.manual_seed(0)
        model = self.model().double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.5)
        return model

    def examples(self, number: int = 5, size: int = 4, seed: int = 0) -> list[Any]:
        rng = random.Random(seed)
        return [self.example(rng, size) for _ in range(number)]


def tree(rng: random.Random, size: int) -> Any:
    return _tree(rng, rng.randint(1, 2 * size))


def _tree(rng: random.Random, leaves: int) -> Any:
    if leaves == 1:
        return Example(is_leaf=True, label=rng.randrange(CLASSES), word=rng.randrange(WORDS))
    left = rng.randint(1, leaves - 1)
    children = {"left": _tree(rng, left), "right": _tree(rng, leaves - left)}
    return Example(is_leaf=False, label=rng.randrange(CLASSES), kind=rng.randrange(2), **children)


def ids(rng: random.Random, number: int, below: int = WORDS) -> tuple[int, ...]:
    return tuple(rng.randrange(below) for _ in range(number))


def sentence(rng: random.Random, size: int) -> Any:
    words = ids(rng, rng.randint(1, 2 * size))
    return Example(words=words, tags=ids(rng, len(words), CLASSES))


def spelled_sentence(rng: random.Random, size: int) -> Any:
    words = [rng.choice([word, ids(rng, rng.randint(1, 2 * size), CHARS)]) for word in sentence(rng, size).words]
    return Example(words=tuple(words), tags=ids(rng, len(words), CLASSES))


def pair(rng: random.Random, size: int) -> Any:
    return Example(source=ids(rng, rng.randint(1, 2 * size)), target=ids(rng, rng.randint(2, 2 * size), CHARS))


def lattice(rng: random.Random, size: int) -> Any:
    """Node i has an arc from the node before it and up to `size` others, none of them if there is only one before."""
    arcs: list[tuple[tuple[int, int], ...]] = [()]
    for node in range(1, rng.randint(2, 2 * size)):
        others = rng.sample(range(node - 1), rng.randint(0, min(size, node - 1)))
        arcs.append(((node - 1, rng.randrange(CHARS)), *((source, rng.randrange(WORDS)) for source in others)))
    return Example(tags=ids(rng, len(arcs), CLASSES), arcs=tuple(arcs))


def triangle(rng: random.Random, size: int) -> Any:
    return Example(words=ids(rng, rng.randint(1, 2 * size)), label=rng.randrange(CLASSES))


def grid(rng: random.Random, size: int, dims: int) -> Any:
    shape = tuple(rng.randint(1, size) for _ in range(dims))
    return Example(shape=shape, words=ids(rng, prod(shape)), label=rng.randrange(CLASSES))


def dag(rng: random.Random, size: int) -> Any:
    """State i has arcs from up to `size` different earlier ones."""
    arcs: list[tuple[tuple[int, int, int], ...]] = [()]
    for state in range(1, rng.randint(2, 3 * size)):
        sources = rng.sample(range(state), rng.randint(1, min(size, state)))
        arcs.append(tuple((source, rng.randrange(2), rng.randrange(WORDS)) for source in sources))
    return Example(tags=ids(rng, len(arcs), CLASSES), arcs=tuple(arcs))


def question(rng: random.Random, size: int) -> Any:
    """A program that calls every module, so that all types are there, on its way to some features."""
    calls = list(range(MODULES)) + [rng.randrange(MODULES) for _ in range(rng.randint(0, size))]
    rng.shuffle(calls)
    indices = count()
    program = _program(rng, calls, indices)
    features = tuple(torch.randn(FEATURES, dtype=torch.float64) for _ in range(next(indices)))
    return Example(program=program, features=features, label=rng.randrange(CLASSES))


def _program(rng: random.Random, calls: list[int], indices: Any) -> Any:
    if not calls:
        return Example(index=next(indices))
    module, *rest = calls
    cut = rng.randint(0, len(rest))
    parts = (rest[:cut], rest[cut:]) if module % 2 else (rest,)
    return Example(module=module, arguments=tuple(_program(rng, part, indices) for part in parts))


def _grid_case(dims: int) -> Case:
    model = partial(models.GridLSTM, words=WORDS, classes=CLASSES, dims=dims, dim=DIM)
    return Case(f"lstm-{dims}d", model, partial(grid, dims=dims), num_types=2)


_of_words = {"words": WORDS, "classes": CLASSES, "dim": DIM}
_of_languages = {"source_words": WORDS, "target_words": CHARS, "dim": DIM}
_of_lattice = {"chars": CHARS, "words": WORDS, "tags": CLASSES, "dim": DIM}
_of_modules = {"modules": MODULES, "features": FEATURES, "classes": CLASSES, "dim": DIM}

CASES = [
    Case("tree-lstm", partial(models.TreeLSTM, **_of_words), tree, 4),
    Case("tree-lstm-2type", partial(models.TwoTypeTreeLSTM, **_of_words), tree, 5),
    Case("tree-gru", partial(models.TreeGRU, **_of_words), tree, 4),
    Case("mv-rnn", partial(models.MVRNN, **_of_words), tree, 4),
    Case("bilstm-tagger", partial(models.BiLSTMTagger, words=WORDS, tags=CLASSES, dim=DIM), sentence, 11, 4),
    Case("bilstm-tagger-char", partial(models.BiLSTMCharTagger, **_of_lattice), spelled_sentence, 16, 6),
    Case("lstm-nmt", partial(models.LSTMTranslator, **_of_languages), pair, 6, 2),
    Case("attention-nmt", partial(models.AttentionTranslator, **_of_languages), pair, 11, 2),
    Case("lattice-lstm", partial(models.LatticeLSTM, **_of_lattice), lattice, 7, 2),
    Case("lattice-gru", partial(models.LatticeGRU, **_of_lattice), lattice, 7, 2),
    Case("grid-tree", partial(models.GridTree, **_of_words), triangle, 3),
    *map(_grid_case, (1, 2, 3)),
    Case("random-dag", partial(models.RandomDag, tokens=WORDS, tags=CLASSES, dim=DIM), dag, 7, 2),
    Case("module-net", partial(models.ModuleNet, **_of_modules), question, MODULES + 2),
]
CASE_OF = {case.name: case for case in CASES}
