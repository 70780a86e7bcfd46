"""Cells that several models have in common.

In: sizes. Out: modules of one example, marked as cells. Only `models` imports them.
"""
