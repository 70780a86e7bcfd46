"""LSTM over grids of one, two or three dimensions: each place reads its word and the place before it along every axis.

All places call the same cell. At the border, where no place is before, it gets a learned initial state: a parameter of
the model, which costs less than a new tensor for each example.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss


class PlaceLSTM(nn.Module):
    """A word id and the states h1, c1, h2, c2, … of the places before become a state; each place has a forget gate."""

    def __init__(self, words: int, dims: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dim)
        self.gates = nn.Linear((1 + dims) * dim, (3 + dims) * dim)
        self.dims = dims

    def forward(self, word: Tensor, *states: Tensor) -> tuple[Tensor, Tensor]:
        hs, cs = states[::2], states[1::2]
        i, o, u, *fs = self.gates(torch.cat((self.embedding(word), *hs))).chunk(3 + self.dims)
        c = i.sigmoid() * u.tanh()
        for f, before in zip(fs, cs, strict=True):
            c = c + f.sigmoid() * before
        return o.sigmoid() * c.tanh(), c


class GridLSTM(nn.Module):
    """A grid has a `shape`, `dims` ints, `words`, the word ids of its places in row-major order, and a `label`, an int.

    The last place of the grid is classified.
    """

    def __init__(self, *, words: int, classes: int, dims: int, dim: int) -> None:
        super().__init__()
        self.h0, self.c0 = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))
        self.place = edbatch.cell(PlaceLSTM(words, dims, dim))
        self.out = edbatch.cell(LabelLoss(dim, classes))

    def forward(self, grid: Any) -> tuple[Tensor, Tensor]:
        h, border = self.h0, (self.h0, self.c0)
        state_of: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        for place, word in zip(product(*map(range, grid.shape)), grid.words, strict=True):
            befores = ((*place[:k], place[k] - 1, *place[k + 1 :]) for k in range(len(place)))
            states = [state_of.get(before, border) for before in befores]
            h, _ = state_of[place] = self.place(word, *(part for state in states for part in state))
        loss, guess = self.out(h, grid.label)
        return loss, guess
