"""Programs of a cell as machine code: loops over rows, compiled by numba, around the matrix products of BLAS.

In: the programs of a body. Out: a `FusedCell`. `loops` writes the text of loops, `library` is what that text calls.
Imports the other rooms of `cells`.
"""
