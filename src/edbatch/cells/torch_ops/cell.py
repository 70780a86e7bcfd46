"""A cell as torch ops: Python code over whole batches, for every device and dtype. The batch is the first dimension.

In: a body, the ops of a cell. Out: a `TorchCell`. Its programs take and return tensors without autograd. When a program
is made, it is tried out first, see `verify`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property

import torch

from edbatch.cells.body.body import Body
from edbatch.cells.body.form import BodyForm
from edbatch.cells.body.program import Emitted
from edbatch.cells.body.split import Split, inference, prologue, split
from edbatch.cells.kernel import Form, Lender, Programs, Take
from edbatch.cells.torch_ops.emit import emit
from edbatch.cells.torch_ops.memory_plan import MemoryPlan, plan_memory
from edbatch.cells.torch_ops.planned import backward_of, forward_of
from edbatch.cells.torch_ops.rules import has_rules
from edbatch.cells.torch_ops.verify import Verification
from edbatch.cells.torch_ops.work_space import Prologue
from edbatch.spec import Spec
from edbatch.switches import ALL_ON, Switches

STRICT = False  # whether a plan that cannot be made is an error; it is in tests
log = logging.getLogger("edbatch")


class TorchCell(BodyForm):
    """`sources`: the code of each program so far, for people to read."""

    def __init__(self, body: Body, sparse: frozenset[int], switches: Switches = ALL_ON):
        super().__init__(body, sparse, stack_weights=switches.stack_weights)
        self.switches = switches
        self.sources: list[str] = []
        self._plans = 0

    @property
    def is_batched(self) -> bool:
        """Whether one of its programs, so far, has ops that run as one call."""
        if not self.sources:
            _ = self.infer
        return self._plans > 0

    @cached_property
    def _prologue(self) -> Emitted:
        return emit(self.body, prologue(self.body))

    @cached_property
    def _verification(self) -> Verification:
        return Verification(self.body, self._prologue)

    def prologue(self, shared: Sequence[torch.Tensor], take: Take = Spec.empty) -> tuple[torch.Tensor, ...]:
        return Prologue.of(self._prologue.function([t.detach() for t in shared], take))

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
        if not self.switches.batch_inside:
            return self._emit_planned(split, None)
        try:
            return self._emit_planned(split, self.switches.plan_memory)
        except Exception as error:
            found = self._emit_planned(split, None)  # if this fails, too, the plan is not the reason
            if STRICT:
                raise
            log.warning("no memory plan was made of a cell: %s. Its ops run one by one", error, exc_info=True)
            return found

    def _emit_planned(self, split: Split, planned: bool | None) -> Programs:
        """The programs, with a plan for memory, batched inside without one, or op by op (None)."""
        programs = [program for program in (split.forward, split.backward) if program is not None]
        plans: Sequence[MemoryPlan | None] = [None, None]
        if planned is not None:
            last = {} if split.finish is None else split.finish.inputs
            apart = frozenset(index for index, place in last.items() if place.group == "saved")
            plans = plan_memory(split.body, programs, apart, planned=planned) or plans
        self._plans += plans[0] is not None
        forward = emit(split.body, split.forward, plans[0])
        if not self.sources:
            self.sources.append(self._prologue.source)
        num_rows, num_outs = len(split.body.rows), len(split.body.outputs)
        bound = forward_of(forward, num_rows)
        if split.backward is None or split.finish is None:
            self._verification.infer(forward)
            self.sources.append(forward.source)
            return Programs(bound, split=split)
        backward = emit(split.body, split.backward, plans[1])
        finish = emit(split.body, split.finish, saved=plans[0])
        saved = split.saved if plans[0] is None else plans[0].saved_specs(split.saved)
        self._verification.training((forward, backward, finish), saved, split.deferred)
        self.sources += [forward.source, backward.source, finish.source]
        reads = split.backward.reads
        return Programs(
            bound,
            backward_of(backward, reads("rows", num_rows), reads("outs", num_outs)),
            finish.function,
            saved,
            split.deferred,
            split.finish.read("rows"),
            split=split,
        )
