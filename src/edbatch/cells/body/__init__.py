"""The body of a cell, straight-line code over the values of one example, and what rewrites it.

In: what `capture` recorded. Out: simpler bodies, and the programs (prologue, forward, backward, end) that one is split
into. The lowest room of `cells`.
"""
