"""A cell as fused kernels, for the CPU: its body with stacked products, its programs as launches of generated loops.

In: a body and how its operands are found. Out: a `FusedCell`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from edbatch.cells.body.body import Body
from edbatch.cells.body.form import BodyForm
from edbatch.cells.body.program import Emitted, Program
from edbatch.cells.body.split import Split, prologue
from edbatch.cells.fused.fuser import Fused, fuse
from edbatch.cells.fused.stack_weights import bias_apart, stack_products
from edbatch.cells.fused.strided import Strided, StridedPrologue, is_strided, without_torch
from edbatch.cells.kernel import Form, Lender, Programs, Read, Take
from edbatch.cells.torch_ops.emit import emit
from edbatch.spec import Spec


class FusedCell(BodyForm):
    """`reads`: how each operand is found. `instead`: the form to take if this one cannot be made."""

    def __init__(
        self,
        name: str,
        body: Body,
        sparse: frozenset[int],
        reads: tuple[Read, ...],
        exact_math: bool,
        stack_weights: bool,
        instead: Form,
    ) -> None:
        body = stack_products(body) if stack_weights else bias_apart(body)
        super().__init__(body, sparse, stack_weights=stack_weights)
        self.name, self.reads, self.exact_math = name, reads, exact_math
        self.is_given_up = False
        self.fused: list[Fused] = []  # all programs so far
        self._instead = instead

    @cached_property
    def _prologue(self) -> Emitted:
        return emit(self.body, prologue(self.body))

    def prologue(self, shared: Sequence[torch.Tensor], take: Take = Spec.empty) -> tuple[torch.Tensor, ...]:
        """Detached: until backward, memory that a parameter has left is kept. Kernels do not know torch's signs."""
        given = [t.detach().resolve_neg() for t in shared]
        values: tuple[torch.Tensor, ...] = self._prologue.function(given, take)
        return values

    def prologue_of_inference(
        self, shared: Sequence[torch.Tensor], memory: Lender
    ) -> tuple[torch.Tensor, ...] | tuple[Strided, ...]:
        if self._strided is None or any(t.is_neg() for t in shared):
            return self.prologue(shared, memory.take_one)
        return self._strided(shared, memory.address)

    @cached_property
    def _strided(self) -> StridedPrologue | None:
        """The prologue of inference without torch, if that reads nothing of shared values but their addresses."""
        forward = self.infer.forward
        assert isinstance(forward, Fused)
        can_be = forward.by_address and is_strided(self.body, prologue(self.body))
        return without_torch(self._prologue, self.body.shared) if can_be else None

    def give_up(self) -> Form | None:
        self.is_given_up = True
        return self._instead

    @property
    def sources(self) -> list[str]:
        """The code of all programs so far, for people."""
        return [text for program in self.fused for text in (program.source, *program.kernels)]

    def _emit(self, split: Split) -> Programs:
        forward = self._fuse(split.body, split.forward)
        if split.backward is None or split.finish is None:
            return Programs(forward, split=split)
        backward = self._fuse(split.body, split.backward)
        return Programs(
            forward,
            backward,
            emit(split.body, split.finish).function,
            split.saved,
            split.deferred,
            split.finish.read("rows"),
            backward.scatters,
            split,
        )

    def _fuse(self, body: Body, program: Program) -> Fused:
        made = fuse(body, program, self.reads, self.exact_math, f"{self.name} ({program.name})")
        self.fused.append(made)
        return made
