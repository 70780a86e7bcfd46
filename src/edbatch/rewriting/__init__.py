"""Makes a recording cheaper before it is scheduled: it is rewritten so that it needs fewer launches.

In: a `Recording` and its `Results`. Out: the same of an equal computation. Cells are *hoisted*: the part
of a cell that need not wait for a recurrence runs ahead of it. Imports `recording`.
"""
