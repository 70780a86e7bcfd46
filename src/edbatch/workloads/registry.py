"""The workloads by name: which model runs on which data, what the right answers are, and how large an example is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edbatch import models
from edbatch.datasets import corpora
from edbatch.datasets.corpora import Corpus
from edbatch.datasets.files import data_folder
from edbatch.errors import EdbatchError

GENERATED = "generated"  # for workloads without real data


class WorkloadError(EdbatchError, ValueError):
    """There is no workload of this name, or it lacks what was asked for."""


@dataclass(frozen=True)
class Workload:
    """A model for one example, and data for it.

    `model(dim=…, **corpus.sizes)` makes the model, whose `forward(example)` returns the loss and the guesses of an
    example; `labels(example)` are the right guesses; `num_steps(example)` is about how much work the example is.
    """

    name: str
    family: str
    description: str
    data: str  # the real data, in words
    model: Callable[..., nn.Module]
    corpus: Callable[[Path | None, int, int | None], Corpus]
    labels: Callable[[Any], Sequence[int]]
    num_steps: Callable[[Any], int]
    hidden: int = 128
    learning_rate: float = 1e-3
    epochs: int = 3

    def load(self, data: str | os.PathLike[str] | None = None, seed: int = 0, limit: int | None = None) -> Corpus:
        """The examples: real ones from the folder or EDBATCH_DATA, else generated ones; at most `limit` of them."""
        return self.corpus(data_folder(data), seed, limit)

    def make(self, corpus: Corpus, hidden: int | None = None, seed: int = 0) -> nn.Module:
        """The model for this corpus, with random weights from a seed."""
        with torch.random.fork_rng(devices=[]):  # draws nothing from the caller's generator
            torch.manual_seed(seed)
            return self.model(dim=hidden or self.hidden, **corpus.sizes)


def find(name: str) -> Workload:
    """The workload of this name.

    >>> find("tree-lstm").family
    'tree'

    Raises:
        WorkloadError: There is none; the message lists those that exist.
    """
    if name not in WORKLOADS:
        raise WorkloadError(f"no workload is called {name!r}; choose one of {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def _root(example: Any) -> Sequence[int]:
    return (example.label,)


def _tags(example: Any) -> Sequence[int]:
    return example.tags  # type: ignore[no-any-return]


def _next_words(pair: Any) -> Sequence[int]:
    return pair.target[1:]  # type: ignore[no-any-return]


def _num_tree_nodes(tree: Any) -> int:
    return sum(1 for _ in tree.nodes())


def _num_words(example: Any) -> int:
    return len(example.words)


def _num_pair_words(pair: Any) -> int:
    return len(pair.source) + len(pair.target)


def _num_arcs(lattice: Any) -> int:
    return sum(map(len, lattice.arcs))


def _num_chars(sentence: Any) -> int:
    return sum(4 if isinstance(word, int) else 4 + 2 * len(word) for word in sentence.words)


def _num_triangle_nodes(triangle: Any) -> int:
    return len(triangle.words) * (len(triangle.words) + 1) // 2


def _num_calls(question: Any) -> int:
    count, parts = 0, [question.program]
    while parts:
        part = parts.pop()
        count += 1
        parts += getattr(part, "arguments", ())
    return count


_TREES, _TAGS, _PAIRS, _LATTICES = "Stanford trees", "WikiNER", "IWSLT'15 en–vi", "lattices"

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "tree-lstm", "tree", "sentiment at every node of a tree, by a binary TreeLSTM", _TREES,
            models.TreeLSTM, corpora.trees, _root, _num_tree_nodes, learning_rate=4e-3,
        ),
        Workload(
            "tree-lstm-2type", "tree", "a TreeLSTM whose nodes use one of two cells, by a fair coin", _TREES,
            models.TwoTypeTreeLSTM, corpora.two_type_trees, _root, _num_tree_nodes,
        ),
        Workload(
            "tree-gru", "tree", "the same sentiment by gated recurrent units", _TREES,
            models.TreeGRU, corpora.trees, _root, _num_tree_nodes,
        ),
        Workload(
            "mv-rnn", "tree", "every word a vector and a matrix that changes its neighbour", _TREES,
            models.MVRNN, corpora.trees, _root, _num_tree_nodes, hidden=64,
        ),
        Workload(
            "perfect-tree", "tree", "a TreeLSTM on perfect binary trees of depth 5 to 7", GENERATED,
            models.TreeLSTM, corpora.perfect_trees, _root, _num_tree_nodes,
        ),
        Workload(
            "grid-tree", "tree", "a TreeLSTM on triangular grids, where neighbours share children", GENERATED,
            models.GridTree, corpora.triangles, _root, _num_triangle_nodes,
        ),
        Workload(
            "bilstm-tagger", "chain", "a tag for every word, by a two-layer bidirectional LSTM", _TAGS,
            models.BiLSTMTagger, corpora.tagged_sentences, _tags, _num_words, learning_rate=5e-3, epochs=6,
        ),
        Workload(
            "bilstm-tagger-char", "chain", "the same tagger, which spells rare words", _TAGS,
            models.BiLSTMCharTagger, corpora.spelled_sentences, _tags, _num_chars, learning_rate=5e-3, epochs=6,
        ),
        Workload(
            "lstm-nmt", "chain", "translation by an encoder and a decoder LSTM, the target given word by word", _PAIRS,
            models.LSTMTranslator, corpora.translations, _next_words, _num_pair_words,
        ),
        Workload(
            "attention-nmt", "chain", "the same translation with attention over the encoder's states", _PAIRS,
            models.AttentionTranslator, corpora.translations, _next_words, _num_pair_words,
        ),
        *(
            Workload(
                f"lstm-{dims}d", "chain" if dims == 1 else "lattice", f"an LSTM over {dims}-dimensional grids",
                GENERATED, partial(models.GridLSTM, dims=dims), partial(corpora.grids, dims=dims), _root, _num_words,
            )
            for dims in (1, 2, 3)
        ),
        Workload(
            "lattice-lstm", "lattice", "tags of characters from lattices of characters and words, by LSTMs", _LATTICES,
            models.LatticeLSTM, corpora.lattices, _tags, _num_arcs,
        ),
        Workload(
            "lattice-gru", "lattice", "the same lattices by gated recurrent units", _LATTICES,
            models.LatticeGRU, corpora.lattices, _tags, _num_arcs,
        ),
        Workload(
            "random-dag", "lattice", "200 states with four arcs each, of two kinds", GENERATED,
            models.RandomDag, corpora.dags, _tags, _num_arcs,
        ),
        Workload(
            "module-net", "tree", "a program of its own for every example, over 40 modules", GENERATED,
            models.ModuleNet, corpora.questions, _root, _num_calls,
        ),
    )
}  # fmt: skip
