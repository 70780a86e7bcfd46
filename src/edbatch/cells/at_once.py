"""Gradients of shared tensors batch by batch, instead of once at the end of a mini-batch: to see what waiting buys.

In: the programs of a type. Out: the same, but finish runs after each batch of backward, on the rows of that batch, and
what it gives is added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from edbatch.cells.kernel import Gradients, Launch, Programs

if TYPE_CHECKING:
    from edbatch.runtime.binding import Binding

TOTALS = "totals"  # where the gradients so far are, among the sums of the type


def at_once(programs: Programs, num_slots: int, num_shared: int) -> Programs:
    """The programs of a type with so many operands and shared tensors, with nothing left to do at the end."""
    if programs.backward is None or not num_shared:
        return programs
    backward = AtOnce(programs, num_slots, num_shared)
    return replace(programs, backward=backward, finish=_totals, finish_rows=frozenset())


@dataclass(frozen=True)
class AtOnce:
    """Backward of a batch, and then finish of the same batch."""

    programs: Programs
    num_slots: int
    num_shared: int

    def bind(self, x: Binding) -> Launch:
        totals: list[torch.Tensor | None] = [None] * self.num_shared
        x.sums[TOTALS] = totals
        of_batch = copy(x)
        sums = of_batch.sums = {}
        finish, backward = self.programs.finish, self.programs.backward
        assert backward is not None
        launch, sizes, pro = backward.bind(of_batch), x.sizes, x.pro
        read = tuple(slot in self.programs.finish_rows for slot in range(self.num_slots))

        def launch_and_finish(b: int) -> None:
            launch(b)
            rows, outs = x.operands(b, read), x.outs(b)
            _add(totals, finish(sizes[b], rows, outs, x.saved(b), pro, x.out_grads(b), x.deferred(b), sums))
            sums.clear()

        return launch_and_finish


def _add(totals: list[torch.Tensor | None], gradients: Gradients) -> None:
    for i, gradient in enumerate(gradients):
        if gradient is not None:
            known = totals[i]
            totals[i] = gradient.clone() if known is None else known.add_(gradient)


def _totals(
    N: int, rows: Any, outs: Any, saved: Any, pro: Any, out_grads: Any, deferred: Any, sums: dict[Any, Any]
) -> Sequence[torch.Tensor | None]:
    found: list[torch.Tensor | None] = sums[TOTALS]
    return found
