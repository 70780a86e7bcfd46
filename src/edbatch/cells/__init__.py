"""Kernels: whatever computes a batch of calls of one cell (a marked function or module of the model).

In: a function of one example and the specs (shape, dtype, device) of its arguments. Out: a `Kernel` (see `kernel`),
which `runtime` runs on whole batches. It is compiled (`compiled`), calls the function one by one (`eager`), or sums or
copies rows (`segments`). A compiled cell goes through the folders below: `capture` writes down the ops of the function
as a `body`; the body is rewritten and split into programs (forward, backward, …); `torch_ops` and `fused` turn
programs into code. `recording`, `rewriting`, `replay` and `runtime` import this room.
"""
