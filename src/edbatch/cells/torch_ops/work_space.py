"""The work space of a program: memory for the values that lie beside each other, and views of it by batch size.

In: the views that a program needs. Out: tensors. Making a view takes about as long as adding two small tensors, so the
views of small batches are kept from mini-batch to mini-batch, and so is their memory; a work space that is in use is
lent to nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from edbatch.cells.torch_ops.batch_calls import Stack
from edbatch.cells.torch_ops.tensors import Times, View

KEPT = 1 << 22  # bytes of a work space that is kept from one mini-batch to the next; larger ones are made anew
SMALL = 64  # rows of a batch whose views are kept; of larger ones they take little time beside the work


class Prologue(tuple[torch.Tensor, ...]):
    """What all batches of a mini-batch share: values made of shared tensors, and stacks of them, made on demand."""

    stacks: dict[Stack, torch.Tensor]

    @staticmethod
    def of(values: Sequence[torch.Tensor]) -> Prologue:
        made = Prologue(values)
        made.stacks = {}
        return made

    def stacked(self, stacks: Sequence[Stack]) -> list[torch.Tensor]:
        for stack in stacks:
            if stack not in self.stacks:
                self.stacks[stack] = stack.make(self)
        return [self.stacks[stack] for stack in stacks]


@dataclass(frozen=True, eq=False)
class Work:
    """What a program needs beside its arguments: views of a work space of so many elements a row, stacks of shared
    values.

    placed: (operand, view) pairs of the operands that are gathered into the work space.
    """

    width: int
    dtype: torch.dtype
    device: torch.device
    views: tuple[View, ...]
    stacks: tuple[Stack, ...]
    placed: tuple[tuple[int, int], ...]
    _free: list[WorkSpace] = field(default_factory=list, repr=False)

    def lend(self, rows: int) -> Loan:
        """A work space for batches of up to so many rows, for one mini-batch."""
        while self._free:
            found = self._free.pop()
            if found.rows >= rows:
                return Loan(self._free, found)
        rounded = 1 << (rows - 1).bit_length()  # so that larger batches seldom need a new one
        return Loan(self._free, WorkSpace(self, rounded, self.device))

    def __deepcopy__(self, memo: Any) -> Work:
        return self


class WorkSpace:
    def __init__(self, work: Work, rows: int, device: torch.device) -> None:
        self.rows, self._views = rows, work.views
        self.memory = torch.empty(rows * work.width, dtype=work.dtype, device=device)
        self._made: dict[int, list[torch.Tensor]] = {}

    def __call__(self, size: int) -> list[torch.Tensor]:
        """The views for a batch of so many rows."""
        found = self._made.get(size)
        if found is None:
            found = [_view(self.memory, view, size) for view in self._views]
            if size <= SMALL:
                self._made[size] = found
        return found


class Loan:
    """A work space until nothing refers to this any more."""

    def __init__(self, free: list[WorkSpace], space: WorkSpace) -> None:
        self._free, self.space = free, space

    def __del__(self) -> None:
        if self.space.memory.nbytes <= KEPT:
            self._free.append(self.space)


def _view(memory: torch.Tensor, view: View, size: int) -> torch.Tensor:
    sizes, strides, begin = view
    return memory.as_strided(
        [_number(n, size) for n in sizes], [_number(n, size) for n in strides], begin.factor * size
    )


def _number(number: int | Times, size: int) -> int:
    return number.factor * size if isinstance(number, Times) else number
