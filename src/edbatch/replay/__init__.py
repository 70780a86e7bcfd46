"""Examples that were recorded before are found again by a key that the user gives, and are not recorded again.

In: examples with keys. Out: the same `Recording` and `Results` as recording all of them would give. What was recorded
of one example is called a *piece*; pieces are kept in a bank and joined into mini-batches. Imports `recording`.
"""
