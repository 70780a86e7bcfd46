"""Programs of a cell (forward, backward, …) as machine code: loops over the rows of a batch, compiled by numba, around
matrix products by BLAS.

In: a body, the ops of a cell, and its programs. Out: a `FusedCell`. `loops` writes the text of loops, `library` is what
that text calls. Imports the other rooms of `cells`.
"""
