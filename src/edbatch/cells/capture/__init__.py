"""From a function to a body: the function runs once on tensors without data, and its ops are written down.

In: a function of one example and the specs (shape, dtype, device) of its arguments. Out: a `Captured`, whose body holds
the ops. Imports `cells.body`.
"""
