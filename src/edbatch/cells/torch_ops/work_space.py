"""The work space of a program: memory for the values that lie beside each other, and views of it by batch size.

In: the views that a program needs. Out: tensors. Making a view takes about as long as adding two small tensors, so the
views of batches of many sizes are kept from mini-batch to mini-batch, and so is their memory; a work space that is in
use is lent to nobody else.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from edbatch.cells.torch_ops.batch_calls import Stack
from edbatch.cells.torch_ops.tensors import Times, View
from edbatch.torch_insides.modes import InferenceMode, num_dispatch_modes
from edbatch.torch_state.surroundings import Made, inside

KEPT = 1 << 22  # bytes of a work space that is kept from one mini-batch to the next; larger ones are made anew
MANY = 64  # sizes of batches whose views are kept


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
    _spaces: list[WorkSpace] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def lend(self, rows: int) -> Loan:
        """A work space for batches of up to so many rows, for one mini-batch."""
        if num_dispatch_modes():  # what is made now may be fake tensors
            return Loan(WorkSpace(self, rows, self.device))
        with self._lock:
            for space in self._spaces:
                if space.rows >= rows and space.loan() is None:
                    return space.lent()
            rounded = 1 << (rows - 1).bit_length()  # so that larger batches seldom need a new one
            space = WorkSpace(self, rounded, self.device)
            if space.memory.nbytes <= KEPT:
                self._spaces[:] = [s for s in self._spaces if s.loan() is not None]  # others are too small
                self._spaces.append(space)
            return space.lent()

    def __deepcopy__(self, memo: Any) -> Work:
        return self


class Loan:
    """A work space is lent until nothing refers to this any more."""

    def __init__(self, space: WorkSpace) -> None:
        self.space = space


class WorkSpace:
    """Memory for batches of up to so many rows. `loan()`: the present loan, or None."""

    def __init__(self, work: Work, rows: int, device: torch.device) -> None:
        self.rows, self._views = rows, work.views
        make = partial(torch.empty, rows * work.width, dtype=work.dtype, device=device)
        self.memory = inside((Made(InferenceMode, False),), make)  # else it would be an inference tensor
        self.loan: Callable[[], Loan | None] = lambda: None
        self._made: dict[int, list[torch.Tensor]] = {}

    def lent(self) -> Loan:
        loan = Loan(self)
        self.loan = weakref.ref(loan)
        return loan

    def __call__(self, size: int) -> list[torch.Tensor]:
        """The views for a batch of so many rows."""
        found = self._made.get(size)
        if found is None:
            found = [_view(self.memory, view, size) for view in self._views]
            if len(self._made) < MANY:
                self._made[size] = found
        return found


def _view(memory: torch.Tensor, view: View, size: int) -> torch.Tensor:
    sizes, strides, begin = view
    return memory.as_strided(
        [_number(n, size) for n in sizes], [_number(n, size) for n in strides], begin.factor * size
    )


def _number(number: int | Times, size: int) -> int:
    return number.factor * size if isinstance(number, Times) else number
