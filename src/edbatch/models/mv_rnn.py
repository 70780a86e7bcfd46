"""MV-RNN sentiment: every word and phrase has a vector, its meaning, and a matrix, by which it changes its neighbour.

A state may be any tuple of tensors: here a node hands a matrix and a vector to its parent. A cell may use any function
of torch, such as products with matrices that are themselves results of other cells.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss


class LeafMV(nn.Module):
    """A word id becomes a matrix and a vector."""

    def __init__(self, words: int, dim: int) -> None:
        super().__init__()
        self.matrices = nn.Embedding(words, dim * dim)
        self.vectors = nn.Embedding(words, dim)
        with torch.no_grad():  # near the identity, so that products of many matrices neither vanish nor explode
            self.matrices.weight.div_(dim).add_(torch.eye(dim).flatten())

    def forward(self, word: Tensor) -> tuple[Tensor, Tensor]:
        v = self.vectors(word)
        return self.matrices(word).view(v.shape[-1], -1), v


class BinaryMV(nn.Module):
    """Each child's matrix changes the other's vector; the parent's matrix is a mixture of both."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.vector = nn.Linear(2 * dim, dim)
        self.matrix = nn.Parameter(torch.eye(dim).repeat(1, 2) / 2)  # at first, the mean of both
        self.matrix_bias = nn.Parameter(torch.zeros(dim, dim))

    def forward(self, m1: Tensor, v1: Tensor, m2: Tensor, v2: Tensor) -> tuple[Tensor, Tensor]:
        v = self.vector(torch.cat((m1 @ v2, m2 @ v1))).tanh()
        return self.matrix_bias + self.matrix @ torch.cat((m1, m2)), v


class MVRNN(nn.Module):
    """A tree has `is_leaf`, `label` (an int), and either `word` (an int) or `left` and `right` (trees)."""

    def __init__(self, *, words: int, classes: int, dim: int) -> None:
        super().__init__()
        self.leaf = edbatch.cell(LeafMV(words, dim))
        self.node = edbatch.cell(BinaryMV(dim))
        self.out = edbatch.cell(LabelLoss(dim, classes))

    def forward(self, tree: Any) -> tuple[Tensor, Tensor]:
        outputs: list[tuple[Tensor, Tensor]] = []  # of every node; the root comes last
        self.encode(tree, outputs)
        return torch.stack([loss for loss, _ in outputs]).sum(), outputs[-1][1]

    def encode(self, tree: Any, outputs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The matrix and the vector of the tree's root; appends the loss and the guess of each of its nodes."""
        if tree.is_leaf:
            m, v = self.leaf(tree.word)
        else:
            m, v = self.node(*self.encode(tree.left, outputs), *self.encode(tree.right, outputs))
        outputs.append(self.out(v, tree.label))
        return m, v
