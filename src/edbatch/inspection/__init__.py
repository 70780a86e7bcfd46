"""Shows people what is done: the plan of a cell, and a call in words.

In: compiled cells and the stats of a call. Out: `CellPlan` and the text of `explain()`. Nothing that runs depends on
it: only `Batched`, benchmarks and reports import it.
"""
