"""What segment reductions are compared with: the same models, whose arcs are joined by a cell that takes a list.

A cell's type includes how many values it gets, so there is a type for each number of arcs, and joins of different
numbers never run together. That a call of such a cell joins h and c at once is in its favour.
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
        return add(steps) if len(steps) > 1 else steps[0]  # Python's sum of one is no node either


class ListedRandomDag(RandomDag):
    """A `RandomDag` without segment reductions."""

    def join(self, steps: list[State]) -> State:
        h, c = average(steps)
        return h, c
