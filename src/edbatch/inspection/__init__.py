"""What people look at: the plan of a cell, and a call in words.

In: compiled cells and the stats of a call. Out: `CellPlan` and the text of `explain()`. Nothing runs by it: only
`Batched`, benchmarks and reports import it.
"""
