"""Runs a mini-batch: takes memory for all values, gives kernels their part of it, launches them batch by batch, and
computes the gradients.

In: a `Plan`: all recorded calls (`Recording`), in which order they run (`Schedule`) and where values lie (`Layout`).
Out: tensors, and gradients by `backward`. Imports `recording` and the rooms below it; only `pipeline` and the rooms
above that import it.
"""
