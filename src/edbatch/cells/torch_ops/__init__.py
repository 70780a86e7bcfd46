"""Programs of a cell (forward, backward, …) as Python code that calls torch's ops on whole batches.

In: a program of a body, that is, its ops on one example. Out: a function of batched tensors, which has been tried on
tensors of the right shapes. Imports `cells.body` and `cells.capture`.
"""
