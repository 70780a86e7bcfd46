"""Recordings made cheaper before they are scheduled: sums absorbed into who reads them, parts of cells hoisted.

In: a `Recording` and `Results`. Out: the same of an equal computation. Imports `recording`.
"""
