"""BiLSTM tagger that spells rare words: as `bilstm_tagger`, but only frequent words have an embedding.

The vector of a rare word is the last states of two LSTMs over its characters, one from either end. Whether a word is
rare depends on the data; an ordinary `if` decides. Sentences with and without rare words run in the same batches.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.bilstm_tagger import BiLSTMTagger
from edbatch.models.cells.token_lstm import TokenLSTM


class Spelling(nn.Module):
    """An LSTM from a learned initial state along characters; gives its last state."""

    def __init__(self, chars: int, dim: int) -> None:
        super().__init__()
        self.step = edbatch.cell(TokenLSTM(chars, dim))
        self.h0, self.c0 = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))

    def forward(self, chars: Iterable[int]) -> Tensor:
        state = self.h0, self.c0
        for char in chars:
            state = self.step(char, state)
        return state[0]


class BiLSTMCharTagger(BiLSTMTagger):
    """A sentence has `words`, each an int or the tuple of its characters' ids, and `tags`, an int for each word."""

    def __init__(self, *, words: int, chars: int, tags: int, dim: int) -> None:
        super().__init__(words=words, tags=tags, dim=dim)
        self.left = Spelling(chars, dim // 2)
        self.right = Spelling(chars, dim - dim // 2)

    def vector(self, word: int | tuple[int, ...]) -> Tensor:
        if isinstance(word, tuple):
            return torch.cat((self.left(word), self.right(reversed(word))))
        return super().vector(word)
