"""TreeLSTM sentiment: one binary tree comes in, the loss of all its nodes and the guess at its root go out.

Written for ONE tree, with ordinary recursion and no batch dimension. The three cells compute the same for every tree;
which of them is called, and when, follows the tree. `edbatch.batch(TreeLSTM(...))` runs many trees at once:

    losses, guesses = edbatch.batch(model)(trees)    # [len(trees)], [len(trees)]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss


class LeafLSTM(nn.Module):
    """A word id becomes a state (h, c)."""

    def __init__(self, words: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dim)
        self.iou = nn.Linear(dim, 3 * dim)

    def forward(self, word: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = self.iou(self.embedding(word)).chunk(3, dim=-1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c


class BinaryTreeLSTM(nn.Module):
    """The states of two children become the state of their parent; each child has a forget gate of its own."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.iou = nn.Linear(2 * dim, 3 * dim)
        self.f1 = nn.Linear(dim, dim)
        self.f2 = nn.Linear(dim, dim)
        self.f2.bias = self.f1.bias  # one bias for both

    def forward(self, h1: Tensor, c1: Tensor, h2: Tensor, c2: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = self.iou(torch.cat((h1, h2), dim=-1)).chunk(3, dim=-1)
        c = i.sigmoid() * u.tanh() + self.f1(h1).sigmoid() * c1 + self.f2(h2).sigmoid() * c2
        return o.sigmoid() * c.tanh(), c


class TreeLSTM(nn.Module):
    """A tree has `is_leaf`, `label` (an int), and either `word` (an int) or `left` and `right` (trees)."""

    def __init__(self, *, words: int, classes: int, dim: int) -> None:
        super().__init__()
        self.leaf = edbatch.cell(LeafLSTM(words, dim))
        self.node = edbatch.cell(BinaryTreeLSTM(dim))
        self.out = edbatch.cell(LabelLoss(dim, classes))

    def forward(self, tree: Any) -> tuple[Tensor, Tensor]:
        outputs: list[tuple[Tensor, Tensor]] = []  # of every node; the root comes last
        self.encode(tree, outputs)
        return torch.stack([loss for loss, _ in outputs]).sum(), outputs[-1][1]

    def encode(self, tree: Any, outputs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The state of the tree's root; appends the loss and the guess of each of its nodes."""
        if tree.is_leaf:
            h, c = self.leaf(tree.word)
        else:
            h, c = self.node(*self.encode(tree.left, outputs), *self.encode(tree.right, outputs))
        outputs.append(self.out(h, tree.label))
        return h, c
