"""Cells that change what their next call reads, such as a buffer: their calls run one after the other, in the order in
which the function made them.

A graph knows no order but that of values. So such a call reads one value more, the *turn* that the call before it gave,
and gives one of its own. A turn has no elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from edbatch.cells.eager import EagerKernel, EagerTraining
from edbatch.cells.kernel import Mask, Take, Tensors
from edbatch.spec import Spec

TURN = Spec((0,), torch.uint8, torch.device("cpu"))


def in_order(kernel: EagerKernel) -> InOrder:
    """The kernel with turns, which is made once."""
    if kernel.ordered is None:
        kernel.ordered = InOrder(kernel)
    return kernel.ordered  # type: ignore[no-any-return]


class InOrder:
    """A kernel with a turn as its last operand and its last output."""

    writes: tuple[int, ...] = ()
    same: tuple[int | None, ...] = ()

    def __init__(self, kernel: EagerKernel):
        self.kernel = kernel
        self.reason = kernel.reason
        self.bound, self.changes = kernel.bound, kernel.changes
        self.is_current = kernel.is_current
        self.outputs = (*kernel.outputs, TURN)
        self.views = (*kernel.views, frozenset[int]())

    def unflatten(self, values: Sequence[Any]) -> Any:
        return self.kernel.unflatten(values[:-1])

    def differentiable(self, need_rows: Mask, need_shared: Mask) -> Mask:
        return (*self.kernel.differentiable(need_rows[:-1], need_shared), False)

    def prologue(self, shared: Sequence[torch.Tensor], take: Take = Spec.empty) -> Any:
        return self.kernel.prologue(shared, take)

    def infer(self, B: int, rows: Any, pro: Any, outs: Any) -> None:
        self.kernel.infer(B, rows[:-1], pro, outs[:-1])

    def training(self, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> InOrderTraining:
        return InOrderTraining(self.kernel.training(need_rows[:-1], need_shared, need_outs[:-1]))


class InOrderTraining:
    """The same of its training form."""

    saved: tuple[Spec, ...] = ()
    deferred: tuple[Spec, ...] = ()

    def __init__(self, training: EagerTraining):
        self.training = training

    @cached_property
    def backward_rows(self) -> Mask:
        return (*self.training.backward_rows, False)

    @cached_property
    def finish_rows(self) -> Mask:
        return (*self.training.finish_rows, False)

    @cached_property
    def backward_outs(self) -> Mask:
        return (*self.training.backward_outs, False)

    @cached_property
    def finish_outs(self) -> Mask:
        return (*self.training.finish_outs, False)

    def forward(self, B: int, rows: Any, pro: Any, outs: Any, saved: Any) -> None:
        self.training.forward(B, rows[:-1], pro, outs[:-1], saved)

    def backward(
        self, B: int, rows: Any, outs: Any, saved: Any, pro: Any, out_grads: Any, deferred: Any, sums: Any
    ) -> Tensors:
        given = self.training.backward(B, rows[:-1], outs[:-1], saved, pro, out_grads[:-1], deferred, sums)
        return [*given, None]

    def finish(
        self, N: int, rows: Any, outs: Any, saved: Any, pro: Any, out_grads: Any, deferred: Any, sums: Any
    ) -> Tensors:
        return self.training.finish(N, rows[:-1], outs[:-1], saved, pro, out_grads[:-1], deferred, sums)
