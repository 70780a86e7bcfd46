"""Benchmarks of single cells and kernels."""
