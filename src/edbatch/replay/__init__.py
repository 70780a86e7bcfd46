"""Examples that were recorded before, known by a key of the user's: their recordings are joined instead of made again.

In: examples, and the bank of those recorded. Out: the same `Recording` and `Results` as recording all would give.
Imports `recording`.
"""
