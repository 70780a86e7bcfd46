"""Where every value of a mini-batch lies in memory, so that batches read and write ranges instead of copying.

In: a graph of recorded calls and its schedule. Out: a `Layout`: a row of memory for every value, and for every batch
which rows it reads. Imports no torch, and of this package only `scheduling` and `storage`.
"""
