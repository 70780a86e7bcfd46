"""From examples to a graph: the user's function runs on every example without computing, and its calls are noted.

In: a function of one example, and examples. Tensors in them become lazy values, which know shape, dtype and device but
have no numbers yet. Every call of a cell (a module or function that is marked as a unit, or a module of torch) and of a
torch function on lazy values becomes a node. Out: a `Recording` (nodes, their types, what they read) and `Results` (how
the return value of the batched call is put together). Folders: `calls` (how one call becomes a node), `values` (lazy
values), `types` (of nodes, and their kernels), `program` (what is known of the user's modules). `replay`, `rewriting`,
`runtime` and `pipeline` import it.
"""
