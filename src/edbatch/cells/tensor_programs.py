"""Programs that are functions of tensors: operands are gathered into tensors before one runs on a batch, and gradients
are added back after it.

In: such a function. Out: a `Bindable`: what the runtime gives memory and then launches batch by batch. Fused kernels
read memory themselves and do not need this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edbatch.cells.kernel import Gradients, Launch, Mask

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
    """`function(B, rows, outs, saved, pro, out_grads, deferred, sums)` returns for each operand its gradient or None.

    Gradients may share memory with each other and with the arguments. The masks `rows` and `outs` say which operands
    and outputs the function reads; it gets None for the others.
    """

    function: Callable[..., Gradients]
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
