"""Random data like that of the real data sets.

In: sizes and a seed. Out: lists of examples.
"""
