"""Cells that change what their next call reads, such as a buffer: their calls run one after the other, in the order in
which the function made them.

A graph knows no order but that of values. So such a call reads one value more, the *turn* that the call before it gave,
and gives one of its own. A turn has no elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from edbatch.cells.eager import EagerKernel
from edbatch.cells.kernel import Bindable, Form, Launch, Mask, Memory, Programs, Reads, Take
from edbatch.spec import Spec
from edbatch.switches import Switches

if TYPE_CHECKING:
    from edbatch.runtime.binding import Binding

TURN = Spec((0,), torch.uint8, torch.device("cpu"))


def in_order(kernel: EagerKernel) -> InOrder:
    """The kernel with turns, which is made once."""
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
        self.bound, self.changes = kernel.bound, kernel.changes
        self.is_current = kernel.is_current
        self.outputs = (*kernel.outputs, TURN)
        self.views = (*kernel.views, frozenset[int]())

    def unflatten(self, values: Sequence[Any]) -> Any:
        return self.kernel.unflatten(values[:-1])

    def differentiable(self, need_rows: Mask, need_shared: Mask) -> Mask:
        return (*self.kernel.differentiable(need_rows[:-1], need_shared), False)

    def hoisted(self, recurrent: Mask) -> None:
        return None

    def form(self, reads: Reads, switches: Switches) -> Form:
        return self

    def give_up(self) -> Form | None:
        return None

    def prologue(self, shared: Sequence[torch.Tensor], take: Take = Spec.empty) -> Any:
        return self.kernel.prologue(shared, take)

    def prologue_of_inference(self, shared: Sequence[torch.Tensor], memory: Memory) -> Any:
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
    """A program that does not see turns."""

    program: Bindable

    def bind(self, x: Binding) -> Launch:
        return self.program.bind(WithoutTurns(x))  # type: ignore[arg-type]


class WithoutTurns:
    """The memory of the type, as tensors, without the last operand and the last output."""

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
