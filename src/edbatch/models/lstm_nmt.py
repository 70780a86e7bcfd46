"""Translation by two LSTMs: a pair of sentences comes in, the loss and the guess of each target word go out.

The encoder reads the source; its last state is all that the decoder knows of it. In training the decoder is told the
right word before each guess (teacher forcing), so the shape of the computation is known from the lengths alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss
from edbatch.models.cells.token_lstm import TokenLSTM


class LSTMTranslator(nn.Module):
    """A pair has `source`, word ids, and `target`, word ids that begin with <s> and end with </s>."""

    def __init__(self, *, source_words: int, target_words: int, dim: int) -> None:
        super().__init__()
        self.h0, self.c0 = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))
        self.encoder = edbatch.cell(TokenLSTM(source_words, dim))
        self.decoder = edbatch.cell(TokenLSTM(target_words, dim))
        self.out = edbatch.cell(LabelLoss(dim, target_words))

    def forward(self, pair: Any) -> tuple[Tensor, Tensor]:
        state = self.h0, self.c0
        for word in pair.source:
            state = self.encoder(word, state)
        losses, guesses = [], []
        for word, next_word in pairwise(pair.target):
            state = self.decoder(word, state)
            loss, guess = self.out(state[0], next_word)
            losses.append(loss)
            guesses.append(guess)
        return torch.stack(losses).sum(), torch.stack(guesses)
