"""Translation with attention: as `lstm_nmt`, but at each target word the decoder looks at all of the source again.

`torch.stack` of the encoder's states gives as many rows as the source has words. Products with these, softmax over them
and sums of them run in one batch whatever the number of rows, so that sources of all lengths run together, without
padding and masks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss
from edbatch.models.cells.token_lstm import TokenLSTM


class ContextLoss(nn.Module):
    """The loss and the guess of a target word, from the decoder's state and the attended source."""

    def __init__(self, dim: int, words: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * dim, dim)
        self.loss = LabelLoss(dim, words)

    def forward(self, h: Tensor, context: Tensor, word: Tensor) -> tuple[Tensor, Tensor]:
        loss, guess = self.loss(self.hidden(torch.cat((h, context))).tanh(), word)
        return loss, guess


class AttentionTranslator(nn.Module):
    """A pair has `source`, word ids, and `target`, word ids that begin with <s> and end with </s>."""

    def __init__(self, *, source_words: int, target_words: int, dim: int) -> None:
        super().__init__()
        self.h0, self.c0 = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))
        self.encoder = edbatch.cell(TokenLSTM(source_words, dim))
        self.decoder = edbatch.cell(TokenLSTM(target_words, dim))
        self.out = edbatch.cell(ContextLoss(dim, target_words))

    def forward(self, pair: Any) -> tuple[Tensor, Tensor]:
        state, encoded = (self.h0, self.c0), []
        for word in pair.source:
            state = self.encoder(word, state)
            encoded.append(state[0])
        rows = torch.stack(encoded)
        losses, guesses = [], []
        for word, next_word in pairwise(pair.target):
            state = h, _ = self.decoder(word, state)
            weights = torch.softmax(rows @ h, dim=0)
            loss, guess = self.out(h, weights @ rows, next_word)
            losses.append(loss)
            guesses.append(guess)
        return torch.stack(losses).sum(), torch.stack(guesses)
