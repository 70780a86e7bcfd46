"""What a fused program is bound to: the memory of one type of node in one mini-batch, and where each batch lies in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from edbatch.planning.layout import Slot
from edbatch.runtime.arena import Lease
from edbatch.spec import Spec

if TYPE_CHECKING:
    from edbatch.runtime.forward import Execution


class Binding:
    """The memory of type `t`. Batch b has `sizes[b]` rows, from row `own[b]` of the type's own buffers (outs, saved,
    deferred, out_grads), and the rows of its operand k begin at `begin[b][k]` of the index."""

    def __init__(self, execution: Execution, t: int, lease: Lease) -> None:
        self._execution, self._type, self._lease = execution, t, lease
        operands = execution.operands
        self.sizes, self.own, self.begin = execution.sizes, execution.own, operands.begin
        self.index = operands.index(torch.device("cpu"))
        self.pro = execution.prologues[t]
        self.outs = self._ranges(execution.arenas)
        self.saved = execution.saved[t]
        self.deferred: list[Tensor] = []
        self.out_grads: list[Any] = []
        self.sums: dict[Any, Any] = {}
        self._gradients: list[Tensor | None] = []

    def with_gradients(self, arenas: list[Tensor | None], deferred: list[Tensor], sums: dict[Any, Any]) -> Binding:
        """For backward: the arenas of gradients, and where what waits for the end goes."""
        self._gradients, self.deferred, self.sums = arenas, deferred, sums
        self.out_grads = self._ranges(arenas)
        return self

    def _ranges(self, arenas: Any) -> list[Any]:
        size = self._execution.type_sizes[self._type]
        return [
            None if arenas[arena] is None else arenas[arena].narrow(0, base, size)
            for arena, base, _ in self._execution.outputs[self._type]
        ]

    def arena(self, slot: int) -> Tensor:
        """The arena that an operand's rows lie in."""
        return self._execution.arenas[self._execution.operands.arena_of[self._type][slot]]

    def gradient(self, slot: int) -> Tensor:
        """The arena of the gradients of an operand's rows."""
        found = self._gradients[self._execution.operands.arena_of[self._type][slot]]
        assert found is not None
        return found

    def shared(self, number: int) -> Tensor:
        """A shared value with its elements in order."""
        value: Tensor = self.pro[number].contiguous()
        return value

    def scratch(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory for the largest batch of the type."""
        return self._lease.take(Spec(shape, dtype, torch.device("cpu")), self._execution.largest[self._type])

    def reader(self, slot: int) -> Callable[[int], Tensor]:
        """A function that gives a batch's operand as a tensor: a view where its rows are consecutive."""
        operands, arenas = self._execution.operands, self._execution.arenas
        return lambda b: operands.read(arenas, b, slot)

    def adder(self, slot: int) -> Callable[[int, Tensor], None]:
        """A function that adds the gradient of a batch's operand to the rows it was read from."""
        operands, gradients = self._execution.operands, self._gradients
        return lambda b, gradient: operands.add_gradient(gradients, b, slot, gradient)


def is_taken(kind: Slot) -> bool:
    """Whether an operand is read as a tensor before a kernel runs: sums of rows, and numbers."""
    return kind >= Slot.SUM
