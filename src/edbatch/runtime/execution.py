"""Runs a mini-batch forward: batch after batch, each reads its operands from arenas and writes its results into them.

In: a `Plan` and the compiled programs of its types. Out: an `Execution`, which has the values and all that backward
needs. An arena is the memory of all values of one spec.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edbatch.errors import BatchError
from edbatch.layout.layout import Slot
from edbatch.recording.results import Group
from edbatch.runtime.arena import Lease, Pool
from edbatch.runtime.binding import Binding
from edbatch.runtime.compilation import Compiled
from edbatch.runtime.frozen import prologue
from edbatch.runtime.needs import Needs
from edbatch.runtime.operands import Operands, as_list
from edbatch.runtime.plan import Plan
from edbatch.runtime.row_loops import copier
from edbatch.spec import Spec
from edbatch.torch_insides.tensors import fake_mode_of

PLAIN = (Tensor, torch.nn.Parameter)


class Execution:
    """One run of a plan: its arenas and, in training, what backward will need."""

    def __init__(self, plan: Plan, pool: Pool, needs: Needs | None, compiled: Compiled):
        self.plan = plan
        self.needs = needs
        self.lease = Lease(pool, "values")
        self.operands = Operands(plan.recording, plan.schedule, plan.layout, moves_rows=compiled.moves_rows)
        self.types = plan.recording.node_types
        self.outputs = plan.recording.type_set.outputs
        layout = plan.layout
        rows = zip(plan.recording.arenas, layout.arena_rows.tolist(), strict=True)
        self._parts = [self.lease.reserve(spec, count) for spec, count in rows]
        self.base: list[int] = layout.base.tolist()
        self.type_sizes: list[int] = layout.type_sizes.tolist()
        self.largest: list[int] = layout.largest.tolist()
        self.compiled = compiled
        self.programs = compiled.programs
        self.prologues: list[Any] = [None] * len(self.types)
        self.saved: list[list[Tensor]] = [[] for _ in self.types]
        self.kept: list[dict[int, Tensor]] = [{} for _ in self.types]  # operands that backward's end reads, by slot

    @cached_property
    def arenas(self) -> list[Tensor]:
        return [part.tensor() for part in self._parts]

    @cached_property
    def addresses(self) -> list[int]:
        """The addresses of the arenas, which is all that generated code needs of them."""
        return [part.address for part in self._parts]

    @cached_property
    def head(self) -> tuple[int, int, int, int]:
        """The first arguments of every kernel, see `kernel_text.FIRST_ARGUMENTS`."""
        layout = self.plan.layout
        return *layout.addresses[:3], layout.slot_begin.shape[1]

    @cached_property
    def sizes(self) -> list[int]:
        return as_list(self.plan.layout.sizes)

    @cached_property
    def num_rows(self) -> list[int]:
        return as_list(self.plan.layout.num_rows)

    @cached_property
    def own(self) -> list[int]:
        return as_list(self.plan.layout.own)

    def check_memory(self) -> None:
        """Raises if a shared tensor has less memory than its shape needs: kernels read addresses without a check."""
        for tensor in {id(t): t for node_type in self.types for t in node_type.shared}.values():
            if type(tensor) not in PLAIN and fake_mode_of(tensor) is not None and tensor.device.type == "cpu":
                raise BatchError(
                    f"a tensor of shape {list(tensor.shape)} that examples share, such as a parameter, is a "
                    "FakeTensor, which has no values; give the model real ones"
                )
            if tensor.layout is not torch.strided or 0 in tensor.shape:
                continue
            last = tensor.storage_offset() + sum(map(operator.mul, tensor.stride(), [n - 1 for n in tensor.shape]))
            if (last + 1) * tensor.itemsize > tensor.untyped_storage().nbytes():
                raise BatchError(
                    f"a tensor of shape {list(tensor.shape)} that examples share, such as a parameter, has less memory "
                    "than its shape needs: its storage was resized; give it its memory back before the batched call, "
                    "and let it have that until backward has run"
                )

    def run(self) -> None:
        """Compute every value of the mini-batch."""
        self.check_memory()
        self._take_outside()
        for t, programs in enumerate(self.programs):
            trains = programs.backward is not None
            self.prologues[t] = prologue(self.compiled.forms[t], self.types[t].shared, self.lease, trains=trains)
            self.saved[t] = [self.lease.take(spec, self.type_sizes[t]) for spec in programs.saved]
        scratch = Lease(self.lease.pool, "scratch")
        launch = [programs.forward.bind(Binding(self, t, scratch)) for t, programs in enumerate(self.programs)]
        batch = t = 0
        try:
            for batch, t in enumerate(self.operands.batch_types):
                launch[t](batch)
        except Exception as error:
            error.add_note(self._where(batch, t))
            raise
        scratch.release()

    def _where(self, batch: int, t: int) -> str:
        """For an error's note: which cell failed, in which examples, and the extreme numbers that it was given."""
        schedule, starts = self.plan.schedule, self.plan.recording.starts
        nodes = schedule.order[schedule.starts[batch] : schedule.starts[batch + 1]]
        example = np.searchsorted(starts, nodes, side="right") - 1
        text = (
            f"while running {self.types[t].name} for {len(nodes)} calls in examples {example.min()} to {example.max()}"
        )
        for slot, kind in enumerate(self.types[t].slots):
            if kind == Slot.DATA and not self.types[t].slot_specs[slot].is_float:  # type: ignore[union-attr]
                begin, size = self.operands.begin[batch][slot], self.operands.size[batch][slot]
                numbers = self.plan.layout.index[begin : begin + size]
                for word, at in (("smallest", int(numbers.argmin())), ("largest", int(numbers.argmax()))):
                    text += f"; the {word} number it got is {numbers[at]}, in example {example[at]}"
        return text

    def _take_outside(self) -> None:
        """Copy the tensors that examples bring with them into the first rows of their arenas."""
        inputs: dict[Spec, list[Tensor]] = {}
        recording = self.plan.recording
        if not recording.outside:
            return
        for tensor, spec in zip(recording.outside, recording.outside_specs, strict=True):
            inputs.setdefault(spec, []).append(tensor.detach())
        for arena, spec in zip(self.arenas, self.plan.recording.arenas, strict=True):
            if spec in inputs:
                torch.stack(inputs[spec], out=arena.narrow(0, 0, len(inputs[spec])))

    def all_rows(self, arenas: Sequence[Tensor | None], t: int) -> list[Any]:
        """The rows that all batches of a type write, in launch order, as views of arenas."""
        size = self.type_sizes[t]
        return [
            None if (whole := arenas[arena]) is None else whole[self.base[number] : self.base[number] + size]
            for number, arena, _, _ in self.outputs[t]
        ]

    def gather(self, group: Group) -> Tensor:
        """The rows of a group of results, in new memory."""
        part, rows = self._parts[self.plan.recording.arena_of[group.spec]], self.plan.group_rows(group)
        spec = group.spec
        if self.compiled.moves_rows and (loop := copier(spec)) is not None:  # torch would take far longer
            found, (copy, width) = spec.empty(len(rows)), loop
            address = rows.__array_interface__["data"][0]  # `rows.ctypes` takes four times as long
            copy(len(rows), address, 0, part.address, found.data_ptr(), width)
            return found
        arena, index = part.tensor(), torch.from_numpy(rows)
        return arena.index_select(0, index if arena.is_cpu else index.to(arena.device, non_blocking=True))
