"""A triangle of states over a sentence: each node reads two neighbours of the row below, and the top is classified.

The two cells are those of `tree_lstm`. A node's state is used twice, so the graph is no tree. The model need not say
so: results of cells can be used as often as one likes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss
from edbatch.models.tree_lstm import BinaryTreeLSTM, LeafLSTM


class GridTree(nn.Module):
    """A triangle has `words`, the word ids of its leaves, and a `label`, an int."""

    def __init__(self, *, words: int, classes: int, dim: int) -> None:
        super().__init__()
        self.leaf = edbatch.cell(LeafLSTM(words, dim))
        self.node = edbatch.cell(BinaryTreeLSTM(dim))
        self.out = edbatch.cell(LabelLoss(dim, classes))

    def forward(self, triangle: Any) -> tuple[Tensor, Tensor]:
        row = [self.leaf(word) for word in triangle.words]
        while len(row) > 1:
            row = [self.node(*left, *right) for left, right in pairwise(row)]
        loss, guess = self.out(row[0][0], triangle.label)
        return loss, guess
