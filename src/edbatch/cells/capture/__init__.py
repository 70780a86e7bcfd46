"""From a function to a body: the function runs once on tensors without data, and its ops are written down.

In: a function and the specs of its arguments. Out: a `Captured`. Imports `cells.body`.
"""
