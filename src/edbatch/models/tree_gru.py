"""TreeGRU sentiment: as `tree_lstm`, with a GRU at the leaves and one GRU per child at the internal nodes.

A cell may be built from smaller modules: only the outermost one is marked as a cell, and edbatch batches its calls as
wholes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss


class GatedUnit(nn.Module):
    """Decides, entry by entry, how much of a vector stays and how much is replaced by a candidate made from it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gates = nn.Linear(dim, 2 * dim)
        self.candidate = nn.Linear(dim, dim)

    def forward(self, e: Tensor) -> Tensor:
        r, z = torch.sigmoid(self.gates(e)).chunk(2, dim=-1)
        c = torch.tanh(self.candidate(r * e))
        return z * e + (1 - z) * c


class BinaryTreeGRU(nn.Module):
    """The states of two children pass through gates, and their mean is the state of the parent."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.left = GatedUnit(dim)
        self.right = GatedUnit(dim)

    def forward(self, h1: Tensor, h2: Tensor) -> Tensor:
        h: Tensor = 0.5 * (self.left(h1) + self.right(h2))
        return h


class TreeGRU(nn.Module):
    """A tree has `is_leaf`, `label` (an int), and either `word` (an int) or `left` and `right` (trees)."""

    def __init__(self, *, words: int, classes: int, dim: int) -> None:
        super().__init__()
        self.leaf = edbatch.cell(nn.Sequential(nn.Embedding(words, dim), GatedUnit(dim)))
        self.node = edbatch.cell(BinaryTreeGRU(dim))
        self.out = edbatch.cell(LabelLoss(dim, classes))

    def forward(self, tree: Any) -> tuple[Tensor, Tensor]:
        outputs: list[tuple[Tensor, Tensor]] = []  # of every node; the root comes last
        self.encode(tree, outputs)
        return torch.stack([loss for loss, _ in outputs]).sum(), outputs[-1][1]

    def encode(self, tree: Any, outputs: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The state of the tree's root; appends the loss and the guess of each of its nodes."""
        h: Tensor
        if tree.is_leaf:
            h = self.leaf(tree.word)
        else:
            h = self.node(self.encode(tree.left, outputs), self.encode(tree.right, outputs))
        outputs.append(self.out(h, tree.label))
        return h
