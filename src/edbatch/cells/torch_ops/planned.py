"""Programs with a work space, ready to be bound to the memory of a mini-batch.

In: an emitted program. Out: a `Bindable`. Operands that the memory plan wants beside others are gathered straight to
their columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edbatch.cells.body.program import Emitted
from edbatch.cells.kernel import Bindable, Launch, Mask
from edbatch.cells.tensor_programs import TensorBackward, TensorForward
from edbatch.cells.torch_ops.work_space import Work

if TYPE_CHECKING:
    from edbatch.runtime.binding import Binding


def forward_of(emitted: Emitted, num_rows: int) -> Bindable:
    """A program that writes results."""
    if emitted.work is None:
        return TensorForward(emitted.function)
    return PlannedForward(emitted, _unplaced(emitted.work, (True,) * num_rows))


def backward_of(emitted: Emitted, rows: Mask, outs: Mask) -> Bindable:
    """A program that gives gradients; the masks say which operands and outputs it reads."""
    if emitted.work is None:
        return TensorBackward(emitted.function, rows, outs)
    return PlannedBackward(emitted, rows, outs, _unplaced(emitted.work, rows))


def _unplaced(work: Work, rows: Mask) -> Mask:
    placed = {slot for slot, _ in work.placed}
    return tuple(is_read and slot not in placed for slot, is_read in enumerate(rows))


@dataclass(frozen=True)
class PlannedForward:
    """`unplaced`: the operands that are read where they lie."""

    emitted: Emitted
    unplaced: Mask

    def bind(self, x: Binding) -> Launch:
        function, sizes, pro, unplaced, work = self.emitted.function, x.sizes, x.pro, self.unplaced, self.emitted.work
        loan, stacks = work.lend(x.largest), pro.stacked(work.stacks)
        views_for, placed = loan.space, work.placed

        def launch(b: int, loan: Any = loan) -> None:
            views = views_for(sizes[b])
            rows = x.operands(b, unplaced)
            for slot, view in placed:
                x.gather(b, slot, views[view])
            function(sizes[b], rows, pro, x.outs(b), x.saved(b), views, stacks)

        return launch


@dataclass(frozen=True)
class PlannedBackward:
    """rows, outs: the operands and outputs that it reads. unplaced: the operands that are read where they lie."""

    emitted: Emitted
    rows: Mask
    outs: Mask
    unplaced: Mask

    def bind(self, x: Binding) -> Launch:
        function, sizes, pro, unplaced, work = self.emitted.function, x.sizes, x.pro, self.unplaced, self.emitted.work
        loan, stacks, sums = work.lend(x.largest), pro.stacked(work.stacks), x.sums
        views_for, placed = loan.space, work.placed
        no_outs: list[Any] = [None] * len(self.outs)
        reads_outs = any(self.outs)

        def launch(b: int, loan: Any = loan) -> None:
            views = views_for(sizes[b])
            rows, outs = x.operands(b, unplaced), x.outs(b) if reads_outs else no_outs
            for slot, view in placed:
                x.gather(b, slot, views[view])
            gradients = function(
                sizes[b], rows, outs, x.saved(b), pro, x.out_grads(b), x.deferred(b), sums, views, stacks
            )
            for slot, gradient in enumerate(gradients):
                if gradient is not None:
                    x.add_gradient(b, slot, gradient)

        return launch
