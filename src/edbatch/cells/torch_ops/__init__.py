"""Programs of a cell (forward, backward, …) as Python code that calls torch's ops on whole batches.

In: a program of a body, that is, its ops on one example. Out: a function of batched tensors, which has been tried on
tensors of the right shapes. On the way: `program_graph` cuts values into atoms, `memory_plan` decides which ops run as
one call and which atoms lie side by side in a work space, `emit` and `batch_calls` write the code. Imports
`cells.body`, `cells.capture` and `pq`.
"""
