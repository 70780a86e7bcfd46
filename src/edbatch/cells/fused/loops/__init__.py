"""The text of loops: elementwise ops, reductions along rows, outer products, and ranges of elements.

In: ops of a body. Out: lines of Python that numba compiles.
"""
