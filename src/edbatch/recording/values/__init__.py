"""Lazy values: what stands for a tensor while examples are recorded, one by one, in stacks of any number, or as sums.

Imports `recording.types`.
"""
