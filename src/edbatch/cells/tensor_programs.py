"""Programs that take tensors: before one runs on a batch its operands are read, after it gradients are added back.

In: a function of tensors, of torch ops or not. Out: a `Bindable`. Code that reads memory by itself, such as a fused
kernel, is bound directly instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edbatch.cells.kernel import Launch, Mask, Tensors

if TYPE_CHECKING:
    from edbatch.runtime.binding import Binding


@dataclass(frozen=True)
class TensorForward:
    """`function(B, rows, pro, outs, saved)` writes the results of B rows, and what backward needs."""

    function: Callable[..., None]

    def bind(self, x: Binding) -> Launch:
        function, sizes, pro = self.function, x.sizes, x.pro
        return lambda b: function(sizes[b], x.operands(b), pro, x.outs(b), x.saved(b))


@dataclass(frozen=True)
class TensorBackward:
    """`function(B, rows, outs, saved, pro, out_grads, deferred, sums)` gives the gradients of B rows, or None for each.

    Those gradients may share memory with each other and with the arguments. `rows` and `outs` say which operands and
    results it reads; it gets None for others.
    """

    function: Callable[..., Tensors]
    rows: Mask
    outs: Mask

    def bind(self, x: Binding) -> Launch:
        function, sizes, pro, sums, rows = self.function, x.sizes, x.pro, x.sums, self.rows
        no_outs: list[Any] = [None] * len(self.outs)
        reads_outs = any(self.outs)

        def launch(b: int) -> None:
            outs = x.outs(b) if reads_outs else no_outs
            gradients = function(
                sizes[b], x.operands(b, rows), outs, x.saved(b), pro, x.out_grads(b), x.deferred(b), sums
            )
            for slot, gradient in enumerate(gradients):
                if gradient is not None:
                    x.add_gradient(b, slot, gradient)

        return launch
