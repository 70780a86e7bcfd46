"""What the runtime asks of anything that computes a batch: compiled cells, segment reductions, copies, cells run one
by one.

`rows` are operands `[B, *shape]`, one per slot; `outs` are ranges of arenas to write; `pro` is what `prologue`
returned for this mini-batch. A kernel's `training` form also keeps `saved` intermediates, and splits its backward
into what each batch needs (`backward`) and what waits for the end of the mini-batch (`finish`: gradients of shared
tensors over all rows at once).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import torch

from edbatch.spec import Spec

Tensors = Sequence[torch.Tensor | None]
Mask = tuple[bool, ...]


class Read(Enum):
    """How a fused cell finds an operand."""

    ROWS = "rows of an arena, which kernels look up themselves"
    TENSOR = "made before: a sum of rows, say"
    NUMBERS = "numbers of a batch, which lie in the plan; whole ones are read there"


Reads = tuple[Read, ...]
Take = Callable[[Spec], torch.Tensor]  # memory for a tensor of a spec


class TooLong(Exception):
    """A program of a cell is too long to be compiled."""


class Training(Protocol):
    @property
    def saved(self) -> tuple[Spec, ...]: ...
    @property
    def deferred(self) -> tuple[Spec, ...]: ...
    @property
    def backward_rows(self) -> Mask: ...
    @property
    def backward_outs(self) -> Mask: ...
    @property
    def finish_rows(self) -> Mask: ...
    @property
    def finish_outs(self) -> Mask: ...
    def forward(self, B: int, rows: Any, pro: Any, outs: Any, saved: Any) -> None: ...
    def backward(
        self, B: int, rows: Any, outs: Any, saved: Any, pro: Any, out_grads: Any, deferred: Any, sums: Any
    ) -> Tensors: ...
    def finish(
        self, N: int, rows: Any, outs: Any, saved: Any, pro: Any, out_grads: Any, deferred: Any, sums: Any
    ) -> Tensors: ...


class Kernel(Protocol):
    @property
    def outputs(self) -> tuple[Spec, ...]: ...
    @property
    def bound(self) -> tuple[torch.Tensor, ...]: ...
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
    def is_current(self) -> bool:
        """Whether what it found when it was made, the tensors that it closes over, is still like that."""
        ...

    def unflatten(self, values: Sequence[Any]) -> Any: ...
    def differentiable(self, need_rows: Mask, need_shared: Mask) -> Mask:
        """Which outputs depend on something that needs a gradient."""
        ...

    def prologue(self, shared: Sequence[torch.Tensor], take: Take = Spec.empty) -> Any:
        """What all batches share, made of the shared tensors in memory that `take` gives."""
        ...

    def infer(self, B: int, rows: Any, pro: Any, outs: Any) -> None: ...
    def training(self, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> Training: ...
