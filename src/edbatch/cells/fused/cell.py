"""A compiled cell in its fused form: the same body with stacked products, its programs as launches of fused kernels.

In: a `CompiledCell`. Out: a `FusedCell` per way of reading its operands. It runs on the CPU; everywhere else the cell's
plain programs do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from edbatch.cells.body.body import Body
from edbatch.cells.body.program import Emitted, Program
from edbatch.cells.body.split import Split, infer, prologue, split
from edbatch.cells.fused.fuser import Fused, fuse
from edbatch.cells.fused.stack_weights import stack_products
from edbatch.cells.fused.strided import StridedPrologue, is_strided, without_torch
from edbatch.cells.kernel import Mask, Reads, Take
from edbatch.cells.torch_ops.emit import emit
from edbatch.spec import Spec

if TYPE_CHECKING:
    from edbatch.cells.compiled import CompiledCell


@dataclass(frozen=True)
class FusedTraining:
    """The programs that train a cell, for one choice of wanted gradients; see `kernel.Training`."""

    saved: tuple[Spec, ...]
    deferred: tuple[Spec, ...]
    finish_rows: Mask
    plan: Split
    forward: Fused
    backward: Fused
    finish: Callable[..., tuple[torch.Tensor | None, ...]]


@dataclass(frozen=True)
class FusedCell:
    """`reads`: how each operand is found."""

    cell: CompiledCell
    reads: Reads
    exact_math: bool
    _trainings: dict[tuple[Mask, Mask, Mask], FusedTraining] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def body(self) -> Body:
        return stack_products(self.cell.body)

    @cached_property
    def _prologue(self) -> Emitted:
        return emit(self.body, prologue(self.body))

    def prologue(self, shared_and_bound: Sequence[torch.Tensor], take: Take = Spec.empty) -> tuple[torch.Tensor, ...]:
        """Detached: until backward, memory that a parameter has left is kept. Kernels do not know torch's signs."""
        shared = [t.detach().resolve_neg() for t in shared_and_bound]
        values: tuple[torch.Tensor, ...] = self._prologue.function(shared, take)
        return values

    @cached_property
    def strided_prologue(self) -> StridedPrologue | None:
        """The prologue of inference without torch, if that reads nothing of shared values but their addresses."""
        can_be = self.infer.by_address and is_strided(self.body, prologue(self.body))
        return without_torch(self._prologue, self.body.shared) if can_be else None

    @cached_property
    def infer(self) -> Fused:
        return self._fuse(self.body, infer(self.body))

    def training(self, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> FusedTraining:
        key = (need_rows, need_shared, need_outs)
        if key not in self._trainings:
            plan = split(self.body, need_rows, need_shared, need_outs, self.cell.sparse)
            read = {(place.group, place.number) for place in plan.finish.inputs.values()}
            self._trainings[key] = FusedTraining(
                plan.saved,
                plan.deferred,
                tuple(("rows", i) in read for i in range(len(self.cell.rows))),
                plan,
                self._fuse(plan.body, plan.forward),
                self._fuse(plan.body, plan.backward),
                emit(plan.body, plan.finish).function,
            )
        return self._trainings[key]

    @property
    def sources(self) -> list[str]:
        """The code of all fused programs so far, for people."""
        programs = [self.infer] if "infer" in self.__dict__ else []
        programs += [p for training in self._trainings.values() for p in (training.forward, training.backward)]
        return [text for program in programs for text in (program.source, *program.kernels)]

    def _fuse(self, body: Body, program: Program) -> Fused:
        return fuse(body, program, self.reads, self.exact_math, f"{self.cell.name} ({program.name})")
