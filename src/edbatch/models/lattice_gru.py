"""Lattice GRU: as `lattice_lstm`, with GRU cells, whose state is one vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss


class TokenGRU(nn.Module):
    """A token id and the state before it become the state after it, in one cell call per token."""

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, dim)
        self.gru = nn.GRUCell(dim, dim)
        nn.init.constant_(self.gru.bias_ih[dim : 2 * dim], -3.0)  # keep little, or sums would grow along a lattice

    def forward(self, token: Tensor, h: Tensor) -> Tensor:
        after: Tensor = self.gru(self.embedding(token), h)
        return after


class LatticeGRU(nn.Module):
    """A lattice has `tags`, an int for each node, and `arcs`: for each node pairs of an earlier node and a token id.

    An arc from the node just before reads a character, any other arc a word. A node without arcs, such as the first
    one, has the learned initial state.
    """

    def __init__(self, *, chars: int, words: int, tags: int, dim: int) -> None:
        super().__init__()
        self.h0 = nn.Parameter(torch.randn(dim))
        self.char = edbatch.cell(TokenGRU(chars, dim))
        self.word = edbatch.cell(TokenGRU(words, dim))
        self.out = edbatch.cell(LabelLoss(dim, tags))

    def forward(self, lattice: Any) -> tuple[Tensor, Tensor]:
        states: list[Tensor] = []
        for node, arcs in enumerate(lattice.arcs):
            steps = [(self.char if j == node - 1 else self.word)(token, states[j]) for j, token in arcs]
            states.append(sum(steps) if steps else self.h0)
        outputs = [self.out(h, tag) for h, tag in zip(states, lattice.tags, strict=True)]
        return torch.stack([loss for loss, _ in outputs]).sum(), torch.stack([guess for _, guess in outputs])
