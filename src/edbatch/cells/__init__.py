"""Kernels: whatever computes a batch of calls of one cell.

In: a function of one example and the specs of its arguments. Out: a `Kernel` (see `kernel`), which the runtime binds
and launches: compiled (`compiled`), one by one (`eager`), or a sum or copy of rows (`segments`). A compiled cell goes
through the rooms below: `capture` gives a `body`, rewritten and split into programs, which `torch_ops` and `fused`
turn into code. `recording`, `rewriting`, `replay` and `runtime` import it.
"""
