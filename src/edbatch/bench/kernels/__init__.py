"""Benchmarks of single cells and kernels, without the mini-batch around them.

In: settings. Out: results, as in `bench`. Only `cli` and `bench` import it.
"""
