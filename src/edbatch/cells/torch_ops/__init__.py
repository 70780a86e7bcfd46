"""Programs of a cell as Python code that calls torch's ops on whole batches.

In: a program of a body. Out: a function of batched tensors, and the verification of that by the body itself. Imports
`cells.body` and `cells.capture`.
"""
