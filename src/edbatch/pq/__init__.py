"""PQ trees, and the order of values inside a cell that they find, so that batches of ops need few copies.

In: the ops of a cell, which is a part of the model that does the same for many examples. Out: a `CellLayout`: which ops
run as one batch, where their values lie, and which copies remain. Cells that run as torch ops follow it. Imports no
torch, and of this package only `scheduling` and `errors`.
"""
