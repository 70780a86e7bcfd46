"""What may be switched off: how cells run, and everything that only makes mini-batches quicker.

Users choose the first two. The others are on; benchmarks and tests switch them off one at a time, to see what each is
worth: results are the same, but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Switches:
    """What is on.

    compile: cells run as fused kernels, where possible. exact_math: with torch's own tanh, exp, … in them.
    find_cells: calls of functions that record the same again and again become one node each.
    hoist: what need not wait for a recurrence runs ahead of it.
    stack_weights: products of one operand become one, and so do the gradients of their weights.
    batch_inside: ops of a cell that are alike run as one call, where it runs as torch ops.
    plan_memory: on memory that is laid out for that.
    order_batches: nodes stand in batches in the order in which they are read.
    defer_gradients: the gradients of shared tensors are taken once, over all rows of a mini-batch; else batch by batch.
    """

    compile: bool = True
    exact_math: bool = False
    find_cells: bool = False
    hoist: bool = True
    stack_weights: bool = True
    batch_inside: bool = True
    plan_memory: bool = True
    order_batches: bool = True
    defer_gradients: bool = True


ALL_ON = Switches()
