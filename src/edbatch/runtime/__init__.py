"""Runs a plan: memory for all values, kernels bound to it and launched batch by batch, and the gradients.

In: a `Recording`, its `Schedule` and `Layout`. Out: tensors, and gradients by `backward`. Imports `recording` and
below; only `pipeline` and what is above imports it.
"""
