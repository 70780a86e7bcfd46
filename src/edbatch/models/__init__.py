"""Models written for one example, ready for `edbatch.batch`."""

from edbatch.models.tree_lstm import BinaryTreeLSTM, LeafLSTM, NodeLoss, TreeLSTM

__all__ = ["BinaryTreeLSTM", "LeafLSTM", "NodeLoss", "TreeLSTM"]
