"""What the other rooms ask of anything that computes nodes of one type: compiled cells, cells that run one by one,
reductions over segments, copies.

A `Kernel` says what comes in and out, and gives the `Form` in which it runs here: as torch ops, as fused kernels, as it
was written. A form makes `Programs`, for inference or for some wanted gradients. What runs batch by batch in them is
`Bindable`: bound to the memory of its type in a mini-batch, it gives a function that launches batch b. The runtime
knows nothing else of how a batch is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import torch

from edbatch.spec import Spec
from edbatch.switches import Switches

if TYPE_CHECKING:
    from edbatch.cells.body.split import Split
    from edbatch.cells.compiled import Hoisted
    from edbatch.runtime.binding import Binding

Gradients = Sequence[torch.Tensor | None]
Mask = tuple[bool, ...]
Take = Callable[[Spec], torch.Tensor]  # memory for a tensor of a spec
Launch = Callable[[int], None]  # runs the batch of this number


class Read(Enum):
    """How a fused cell finds an operand."""

    ROWS = "rows of an arena, which kernels look up themselves"
    NUMBERS = "numbers of a batch, which lie in the plan; whole ones are read there"


class TooLong(Exception):
    """A program of a cell is too long to be compiled."""


class Lender(Protocol):
    """Memory of a mini-batch."""

    def take_one(self, spec: Spec) -> torch.Tensor: ...
    def address(self, size: int) -> int: ...


class Bindable(Protocol):
    """A program as code."""

    def bind(self, x: Binding) -> Launch: ...


def no_gradients(*_: Any) -> Gradients:
    """The end of a mini-batch for types that share no tensors."""
    return ()


@dataclass(frozen=True)
class Programs:
    """What runs a type in a mini-batch.

    forward: batch after batch. backward: the batches in reverse; None when no gradient is wanted.
    finish(N, rows, outs, saved, pro, out_grads, deferred, sums): once, at the end, the gradients of the shared tensors
    over all N rows. `pro` is what the prologue gave, `sums` what backward has added up from batch to batch.
    saved, deferred: the specs of what forward keeps for backward, and backward for finish; a buffer for all rows each.
    finish_rows: the operands that finish reads; it may get None for others. scatters: the operands whose gradients
    backward writes itself, row by row. split: the same as ops, where they are known.
    """

    forward: Bindable
    backward: Bindable | None = None
    finish: Callable[..., Gradients] = no_gradients
    saved: tuple[Spec, ...] = ()
    deferred: tuple[Spec, ...] = ()
    finish_rows: frozenset[int] = frozenset()
    scatters: tuple[int, ...] = ()
    split: Split | None = None


class Form(Protocol):
    """A kernel as it runs on some device, compiled or not."""

    @property
    def is_pure(self) -> bool:
        """Whether its prologue depends on the shared tensors alone, and may be kept while these do not change."""
        ...

    @property
    def infer(self) -> Programs:
        """The programs when no gradient is wanted."""
        ...

    def training(self, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> Programs:
        """The programs for the wanted gradients: which operands and shared tensors want one, which outputs have one."""
        ...

    def prologue(self, shared: Sequence[torch.Tensor], take: Take = Spec.empty) -> Any:
        """What all batches share, made of the shared tensors in memory that `take` gives."""
        ...

    def prologue_of_inference(self, shared: Sequence[torch.Tensor], memory: Lender) -> Any:
        """The same for `infer`, in whatever way is quickest."""
        ...

    def give_up(self) -> Form | None:
        """The form to take instead, after this one could not be made, and from now on; None if there is no other."""
        ...


class Kernel(Protocol):
    """What computes all nodes of one type: what comes in, what comes out, and the form in which it runs."""

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """The specs of its results for one node."""
        ...

    @property
    def enclosed(self) -> tuple[torch.Tensor, ...]:
        """The shared tensors that it found by itself, such as parameters; they follow those given as arguments."""
        ...

    @property
    def writes(self) -> tuple[int, ...]:
        """Operands that it writes in place, as torch sees it: their new values are its last outputs."""
        ...

    @property
    def changes(self) -> tuple[torch.Tensor, ...]:
        """Tensors from outside that it writes in place whenever it runs."""
        ...

    @property
    def same(self) -> tuple[int | None, ...]:
        """Of each tensor among its results the written operand that it is, if it is one; empty if it writes none."""
        ...

    @property
    def views(self) -> tuple[frozenset[int], ...]:
        """Of each output the operands whose memory it would share in torch, -1 for anything else; empty if none."""
        ...

    @property
    def reason(self) -> str | None:
        """Why it runs one by one; None when it runs batched."""
        ...

    @property
    def num_ops(self) -> int:
        """About how many ops of torch one node is, one by one."""
        ...

    @property
    def is_current(self) -> bool:
        """Whether what it found when it was made, the tensors that it closes over, is still like that."""
        ...

    @property
    def wanting(self) -> Callable[[Mask], Kernel] | None:
        """Gives the kernel with the gradients of some arguments, of a cell that cannot have all of them at once."""
        ...

    def unflatten(self, values: Sequence[Any]) -> Any:
        """The function's own result, a tree, with these values for its tensors."""
        ...

    def differentiable(self, need_rows: Mask, need_shared: Mask) -> Mask:
        """Which outputs depend on something that needs a gradient."""
        ...

    def hoisted(self, recurrent: Mask) -> Hoisted | None:
        """The kernel in two parts, of which one reads no recurrent operand; None if it stays whole."""
        ...

    def form(self, reads: tuple[Read, ...], switches: Switches) -> Form:
        """How it runs where operands are found like this."""
        ...
