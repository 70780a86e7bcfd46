"""A cell as torch ops: Python code over whole batches, for every device and dtype. The batch is the first dimension.

In: a body, the ops of a cell. Out: a `TorchCell`. Its programs take and return tensors without autograd. When a program
is made, it is tried out first, see `verify`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from edbatch.cells.body.body import Body
from edbatch.cells.body.form import BodyForm
from edbatch.cells.body.program import Emitted
from edbatch.cells.body.split import Split, inference, prologue, split
from edbatch.cells.kernel import Form, Lender, Programs, Take
from edbatch.cells.tensor_programs import TensorBackward, TensorForward
from edbatch.cells.torch_ops.emit import emit
from edbatch.cells.torch_ops.rules import has_rules
from edbatch.cells.torch_ops.verify import Verification
from edbatch.spec import Spec


class TorchCell(BodyForm):
    """`sources`: the code of each program so far, for people to read."""

    def __init__(self, body: Body, sparse: frozenset[int], *, stack_weights: bool = True):
        super().__init__(body, sparse, stack_weights=stack_weights)
        self.sources: list[str] = []

    @cached_property
    def _prologue(self) -> Emitted:
        return emit(self.body, prologue(self.body))

    @cached_property
    def _verification(self) -> Verification:
        return Verification(self.body, self._prologue)

    def prologue(self, shared: Sequence[torch.Tensor], take: Take = Spec.empty) -> tuple[torch.Tensor, ...]:
        values: tuple[torch.Tensor, ...] = self._prologue.function([t.detach() for t in shared], take)
        return values

    def prologue_of_inference(self, shared: Sequence[torch.Tensor], memory: Lender) -> tuple[torch.Tensor, ...]:
        return self.prologue(shared, memory.take_one)

    def give_up(self) -> Form | None:
        return None

    def rehearse(self) -> None:
        """Find out whether programs of inference and of training with all gradients can be made. If an op has no rule
        for batches, they are made now, to see whether vmap can run it.

        Raises:
            CaptureError: an op cannot be batched.
        """
        body, splits = self.body, [inference(self.body)]
        values = body.row_grads, body.shared_grads, body.tangent_of
        rows, shared, outs = (tuple(v is not None for v in group) for group in values)
        if body.tangents:
            splits.append(split(body, rows, shared, outs, self.sparse))
        programs = [(s.body, p) for s in splits for p in (s.forward, s.backward, s.finish) if p is not None]
        if not all(has_rules(*program) for program in programs):
            _ = self.infer
            if body.tangents:
                self.training(rows, shared, outs)

    def _emit(self, split: Split) -> Programs:
        forward = emit(split.body, split.forward)
        if not self.sources:
            self.sources.append(self._prologue.source)
        if split.backward is None or split.finish is None:
            self._verification.infer(forward)
            self.sources.append(forward.source)
            return Programs(TensorForward(forward.function), split=split)
        backward, finish = emit(split.body, split.backward), emit(split.body, split.finish)
        self._verification.training((forward, backward, finish), split.saved, split.deferred)
        self.sources += [forward.source, backward.source, finish.source]
        num_rows, num_outs = len(split.body.rows), len(split.body.outputs)
        reads = split.backward.reads
        return Programs(
            TensorForward(forward.function),
            TensorBackward(backward.function, reads("rows", num_rows), reads("outs", num_outs)),
            finish.function,
            split.saved,
            split.deferred,
            split.finish.read("rows"),
            split=split,
        )
