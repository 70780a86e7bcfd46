"""From examples to a graph: every call of a cell on lazy values becomes a node.

In: a function of one example, and examples. Out: a `Recording` (nodes, types, operands) and `Results`, which say how
the value of the batched call is put together. Below: `calls` (one call becomes a node), `values` (what stands for a
result), `types` (of nodes, and their kernels), `program` (what is known of the user's modules). `replay`,
`rewriting`, `runtime` and `pipeline` import it.
"""
