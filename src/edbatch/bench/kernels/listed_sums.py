"""What segment reductions (sums and means over any number of values, in one batch) are compared with: the same models,
whose arcs are joined by a cell that takes a list.

Calls of such a cell with different numbers of arcs have different types, so they never run together. In its favour, one
call joins h and c at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

import edbatch
from edbatch.models import LatticeLSTM, RandomDag

State = tuple[Tensor, Tensor]


@edbatch.cell
def add(steps: list[State]) -> State:
    hs, cs = zip(*steps, strict=True)
    return torch.stack(hs).sum(0), torch.stack(cs).sum(0)


@edbatch.cell
def average(steps: list[State]) -> State:
    hs, cs = zip(*steps, strict=True)
    return torch.stack(hs).mean(0), torch.stack(cs).mean(0)


class ListedLatticeLSTM(LatticeLSTM):
    """A `LatticeLSTM` without segment reductions."""

    def join(self, steps: list[State]) -> State:
        return add(steps) if len(steps) > 1 else steps[0]  # as Python's sum, which records nothing for one value


class ListedRandomDag(RandomDag):
    """A `RandomDag` without segment reductions."""

    def join(self, steps: list[State]) -> State:
        h, c = average(steps)
        return h, c
