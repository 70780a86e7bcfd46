"""PQ trees, and the order of values inside a cell that they find: which values lie side by side.

In: the ops of a cell in batches. Out: a `CellLayout` with the copies that remain. Knows no torch; imports `scheduling`
alone. Only `inspection` and benchmarks read it so far.
"""
