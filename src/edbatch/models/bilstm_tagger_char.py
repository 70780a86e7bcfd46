"""BiLSTM tagger that spells rare words: as `bilstm_tagger`, but only frequent words have an embedding.

The vector of a rare word is the last states of two LSTMs over its characters, one from either end. Which words are rare
is a matter of the data, so an ordinary `if` decides; sentences with and without rare words run in the same batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.bilstm_tagger import Chain, TagLoss
from edbatch.models.token_lstm import TokenLSTM


class Spelling(nn.Module):
    """The last state of an LSTM from a learned initial state along characters."""

    def __init__(self, chars: int, dim: int) -> None:
        super().__init__()
        self.step = edbatch.cell(TokenLSTM(chars, dim))
        self.h0, self.c0 = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))

    def forward(self, chars: Iterable[int]) -> Tensor:
        state = self.h0, self.c0
        for char in chars:
            state = self.step(char, state)
        return state[0]


class BiLSTMCharTagger(nn.Module):
    """A sentence has `words`, each an int or the tuple of its characters' ids, and as many `tags`, ints."""

    def __init__(self, *, words: int, chars: int, tags: int, dim: int) -> None:
        super().__init__()
        self.embedding = edbatch.cell(nn.Embedding(words, dim))
        self.left = Spelling(chars, dim // 2)
        self.right = Spelling(chars, dim - dim // 2)
        self.forwards = nn.ModuleList([Chain(dim, dim), Chain(2 * dim, dim)])  # a chain for each layer
        self.backwards = nn.ModuleList([Chain(dim, dim), Chain(2 * dim, dim)])
        self.out = edbatch.cell(TagLoss(dim, tags))

    def forward(self, sentence: Any) -> tuple[Tensor, Tensor]:
        layer: list[tuple[Tensor, ...]] = [(self.vector(word),) for word in sentence.words]
        for forward, backward in zip(self.forwards, self.backwards, strict=True):
            layer = list(zip(forward(layer), reversed(backward(reversed(layer))), strict=True))
        outputs = [self.out(f, b, tag) for (f, b), tag in zip(layer, sentence.tags, strict=True)]
        return torch.stack([loss for loss, _ in outputs]).sum(), torch.stack([guess for _, guess in outputs])

    def vector(self, word: int | tuple[int, ...]) -> Tensor:
        if isinstance(word, tuple):
            return torch.cat((self.left(word), self.right(reversed(word))))
        vector: Tensor = self.embedding(word)
        return vector
