"""Where every value of a mini-batch lies in memory, so that batches read and write ranges instead of copies.

In: a graph and its schedule. Out: a `Layout`: a row for every value, and for every batch how its operands are read.
Knows no torch; imports `scheduling` alone.
"""
