"""Cells that change what their next call reads, such as a buffer: their calls must run in the order in which the user's
function made them.

In: the kernel of a cell that runs one by one. Out: the same with a *turn*, a value without elements, as a further
operand and output. Each call reads the turn of the call before. So the order follows from the values, and a graph of
recorded calls knows no other order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from edbatch.cells.eager import EagerKernel
from edbatch.cells.kernel import Bindable, Form, Launch, Lender, Mask, Programs, Read, Take
from edbatch.spec import Spec
from edbatch.switches import Switches

if TYPE_CHECKING:
    from edbatch.runtime.binding import Binding

TURN = Spec((0,), torch.uint8, torch.device("cpu"))


def in_order(kernel: EagerKernel) -> InOrder:
    """The kernel with turns; made once per kernel."""
    if kernel.ordered is None:
        kernel.ordered = InOrder(kernel)
    return kernel.ordered  # type: ignore[no-any-return]


class InOrder:
    """A kernel with a turn as its last operand and its last output."""

    is_pure = False
    wanting = None
    writes: tuple[int, ...] = ()
    same: tuple[int | None, ...] = ()

    def __init__(self, kernel: EagerKernel):
        self.kernel = kernel
        self.reason = kernel.reason
        self.enclosed, self.changes = kernel.enclosed, kernel.changes
        self.is_current = kernel.is_current
        self.num_ops = kernel.num_ops
        self.outputs = (*kernel.outputs, TURN)
        self.views = (*kernel.views, frozenset[int]())

    def unflatten(self, values: Sequence[Any]) -> Any:
        return self.kernel.unflatten(values[:-1])

    def differentiable(self, need_rows: Mask, need_shared: Mask) -> Mask:
        return (*self.kernel.differentiable(need_rows[:-1], need_shared), False)

    def hoisted(self, recurrent: Mask) -> None:
        return None

    def form(self, reads: tuple[Read, ...], switches: Switches) -> Form:
        return self

    def give_up(self) -> Form | None:
        return None

    def prologue(self, shared: Sequence[torch.Tensor], take: Take = Spec.empty) -> Any:
        return self.kernel.prologue(shared, take)

    def prologue_of_inference(self, shared: Sequence[torch.Tensor], memory: Lender) -> Any:
        return self.kernel.prologue(shared)

    @cached_property
    def infer(self) -> Programs:
        return _with_turns(self.kernel.infer)

    def training(self, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> Programs:
        return _with_turns(self.kernel.training(need_rows[:-1], need_shared, need_outs[:-1]))


def _with_turns(programs: Programs) -> Programs:
    backward = None if programs.backward is None else WithTurns(programs.backward)
    return replace(programs, forward=WithTurns(programs.forward), backward=backward)


@dataclass(frozen=True)
class WithTurns:
    """A program for operands and outputs with turns, around one that knows nothing of them."""

    program: Bindable

    def bind(self, x: Binding) -> Launch:
        return self.program.bind(WithoutTurns(x))  # type: ignore[arg-type]


class WithoutTurns:
    """A `Binding` (the memory that a program reads and writes) without the last operand and the last output."""

    def __init__(self, x: Binding):
        self._x = x
        self.sizes, self.pro = x.sizes, x.pro

    @property
    def sums(self) -> dict[Any, Any]:
        return self._x.sums

    def operands(self, b: int) -> list[Any]:
        return self._x.operands(b)[:-1]

    def outs(self, b: int) -> list[Any]:
        return self._x.outs(b)[:-1]

    def out_grads(self, b: int) -> list[Any]:
        return self._x.out_grads(b)[:-1]

    def add_gradient(self, b: int, slot: int, gradient: torch.Tensor) -> None:
        self._x.add_gradient(b, slot, gradient)
