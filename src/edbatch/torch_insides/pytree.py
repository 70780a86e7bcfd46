"""Nested lists, tuples, dicts and registered classes, by torch's own functions: a leaf for torch is a leaf for us."""

from __future__ import annotations

from torch.utils._pytree import (
    TreeSpec,  # how results of a cell, and of a batched function, are put together
    arg_tree_leaves,  # tensors among the arguments of an op
    keystr,  # where in a result two runs differ, in words
    tree_flatten,  # results and arguments as a list and its TreeSpec
    tree_flatten_with_path,  # the same with the place of each leaf
    tree_leaves,  # tensors anywhere in arguments
    tree_map_only,  # other objects in place of tensors anywhere in arguments
    tree_structure,  # whether two results have the same structure
    tree_unflatten,  # results of the user's own classes, from their leaves
)

__all__ = [
    "TreeSpec",
    "arg_tree_leaves",
    "keystr",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_map_only",
    "tree_structure",
    "tree_unflatten",
]
