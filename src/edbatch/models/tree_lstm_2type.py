"""TreeLSTM with two kinds of internal nodes, each with weights of its own: easy to write, hard to batch.

Which cell a node calls is an ordinary index into a list of modules, decided by the example. Nodes of different kinds
never run in one batch, so the order in which a policy launches the kinds decides how many batches there are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss
from edbatch.models.tree_lstm import BinaryTreeLSTM, LeafLSTM


class TwoTypeTreeLSTM(nn.Module):
    """A tree as in `TreeLSTM`, whose internal nodes have a `kind`, 0 or 1."""

    def __init__(self, *, words: int, classes: int, dim: int) -> None:
        super().__init__()
        self.leaf = edbatch.cell(LeafLSTM(words, dim))
        self.nodes = nn.ModuleList(edbatch.cell(BinaryTreeLSTM(dim)) for _ in range(2))
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
            h, c = self.nodes[tree.kind](*self.encode(tree.left, outputs), *self.encode(tree.right, outputs))
        outputs.append(self.out(h, tree.label))
        return h, c
