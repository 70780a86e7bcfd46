"""Lattice LSTM: a lattice of characters and words comes in, the loss and the guess of the tag of every node go out.

Every arc is a step of an LSTM (there is one for characters and one for words), and a node's state is the sum over its
arcs. edbatch runs Python's `sum` as one operation, and sums of different numbers of arcs run in one batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss
from edbatch.models.cells.token_lstm import TokenLSTM


class LatticeLSTM(nn.Module):
    """A lattice has `tags`, an int for each node, and `arcs`: for each node pairs of an earlier node and a token id.

    An arc from the node just before reads a character, any other arc a word. A node without arcs, such as the first
    one, has the learned initial state.
    """

    def __init__(self, *, chars: int, words: int, tags: int, dim: int) -> None:
        super().__init__()
        self.h0, self.c0 = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))
        self.char = edbatch.cell(TokenLSTM(chars, dim))
        self.word = edbatch.cell(TokenLSTM(words, dim))
        self.out = edbatch.cell(LabelLoss(dim, tags))

    def forward(self, lattice: Any) -> tuple[Tensor, Tensor]:
        states: list[tuple[Tensor, Tensor]] = []
        for node, arcs in enumerate(lattice.arcs):
            steps = [(self.char if j == node - 1 else self.word)(token, states[j]) for j, token in arcs]
            states.append(self.join(steps) if steps else (self.h0, self.c0))
        outputs = [self.out(h, tag) for (h, _), tag in zip(states, lattice.tags, strict=True)]
        return torch.stack([loss for loss, _ in outputs]).sum(), torch.stack([guess for _, guess in outputs])

    def join(self, steps: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The state of a node from the states that its arcs give."""
        hs, cs = zip(*steps, strict=True)
        return sum(hs), sum(cs)
