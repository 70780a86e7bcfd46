"""Trees of lists, tuples, dicts and registered classes: torch's own, so that what is a leaf for torch is one for us."""

from __future__ import annotations

from torch.utils._pytree import (
    TreeSpec,  # how results of a cell, and of a batched function, are put together
    arg_tree_leaves,  # tensors among the arguments of an op
    keystr,  # where in a result two runs differ, in words
    tree_flatten,  # results and arguments as a list and its TreeSpec
    tree_flatten_with_path,  # the same with the place of each leaf
    tree_leaves,  # tensors anywhere in arguments
    tree_map_only,  # stand-ins for tensors anywhere in arguments
    tree_structure,  # whether two results are put together alike
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
