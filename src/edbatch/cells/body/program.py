"""A program of a cell: the part of its body that runs at one time (prologue, infer, forward, backward or finish).

`split` makes a `Program`; emission turns it into Python, an `Emitted`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from edbatch.cells.body.body import Val


class Place(NamedTuple):
    """Where a value is found: buffer `number` of a group of buffers.

    Groups: rows (operands), given (shared tensors), pro (results of the prologue), outs, saved (kept by forward),
    out_grads, deferred (kept by backward).
    """

    group: str
    number: int
    shape: tuple[int, ...] | None = None  # of the buffer, if it differs from that of the value

    @property
    def text(self) -> str:
        return f"{self.group}[{self.number}]"


@dataclass(frozen=True)
class Program:
    """Which ops run, in order, where they read and where results go.

    `inputs`: where values that it does not compute are found. `dests`: buffer -> the value to be written there.
    `sums`: (key, value) pairs to add up over rows.
    """

    name: str
    parameters: str
    inputs: Mapping[int, Place]
    ops: tuple[int, ...]
    dests: Mapping[Place, Val] = field(default_factory=dict)
    sums: tuple[tuple[int, Val], ...] = ()
    returns: tuple[Val | None, ...] | None = None

    def read(self, group: str) -> frozenset[int]:
        """The numbers of the buffers of a group that the program reads."""
        return frozenset(place.number for place in self.inputs.values() if place.group == group)

    def reads(self, group: str, count: int) -> tuple[bool, ...]:
        """The same as a mask."""
        return tuple(map(self.read(group).__contains__, range(count)))


@dataclass(frozen=True)
class Emitted:
    """A program as Python; `rehearsal` is the same code for tensors on the meta device, which have no data.

    work: memory for values that lie beside each other, and stacks of shared values; views of the one and all of the
    other are its last arguments. None if it needs nothing of that; see `torch_ops/work_space.py`.
    """

    function: Callable[..., Any]
    rehearsal: Callable[..., Any]
    source: str
    work: Any = None
