"""The text of generated loops, for elementwise ops, reductions along a row, outer products and slices.

In: ops of a body. Out: lines of Python, which numba compiles.
"""
