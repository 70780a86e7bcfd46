"""Running a planned mini-batch: batch after batch, operands read from arenas, results written into them."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edbatch.cells.fused.loops.pointwise import BY_SIZE
from edbatch.cells.kernel import TooLong
from edbatch.errors import BatchError
from edbatch.layout.layout import Layout, Slot, plan
from edbatch.recording.results import Group
from edbatch.recording.types.recording import Recording
from edbatch.recording.types.type_set import NodeType
from edbatch.runtime.arena import Lease, Pool
from edbatch.runtime.binding import Binding, copies, reading
from edbatch.runtime.frozen import prologue
from edbatch.runtime.needs import Needs
from edbatch.runtime.operands import Operands, as_list
from edbatch.runtime.row_loops import copy_rows
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.schedule import Schedule
from edbatch.spec import Spec

log = logging.getLogger("edbatch")


@dataclass(frozen=True)
class Compiling:
    """How compiled cells run: `on` as fused kernels where possible, with `exact_math` torch's own tanh, exp, …"""

    on: bool = True
    exact_math: bool = False

    def kernel(self, node_type: NodeType) -> Any:
        """The kernel that runs a type on the CPU: its fused form if it has one."""
        fused = getattr(node_type.kernel, "fused", None)
        return (fused and fused(tuple(map(reading, node_type.slots)), self.exact_math)) or node_type.kernel


OFF = Compiling(on=False)


@dataclass(frozen=True)
class Plan:
    """A recorded, scheduled and laid out mini-batch: everything that is known before any number is computed."""

    recording: Recording
    graph: Graph
    schedule: Schedule
    layout: Layout

    def __repr__(self) -> str:
        return f"Plan({self.recording}, {self.layout})"

    def group_rows(self, group: Group) -> np.ndarray:
        """The arena rows of a group of results."""
        recording = self.recording
        rows = self.layout.rows_of(group.refs, recording.types, recording.table, recording.outside_rows[1])
        if not group.is_ragged or group.lengths is None:
            return rows
        return np.concatenate([np.arange(r, r + n) for r, n in zip(rows, group.lengths, strict=True)])


def make_plan(recording: Recording, schedule: Schedule) -> Plan:
    from edbatch.layout.batch_order import order_batches

    # Cells that run one by one may draw random numbers, which they do in the order of recording.
    types = recording.type_set
    schedule = order_batches(recording.graph, schedule, fixed=types.runs_alone, only_sums=types.only_sums)
    counts, rows = recording.outside_rows
    layout = plan(recording.graph, recording.args, recording.table, schedule, counts, rows)
    return Plan(recording, recording.graph, schedule, layout)


class Execution:
    """One run of a plan: its arenas, and in training what backward will need."""

    def __init__(self, plan: Plan, pool: Pool, needs: Needs | None, compiling: Compiling = OFF):
        self.plan = plan
        self.needs = needs
        self.lease = Lease(pool, "values")
        self.operands = Operands(plan.recording, plan.schedule, plan.layout)
        self.types = plan.recording.node_types
        self.outputs = plan.recording.type_set.outputs
        layout = plan.layout
        rows = zip(plan.recording.arenas, layout.arena_rows.tolist(), strict=True)
        self._parts = [self.lease.reserve(spec, count) for spec, count in rows]
        self.base: list[int] = layout.base.tolist()
        self.type_sizes: list[int] = layout.type_sizes.tolist()
        self.largest: list[int] = layout.largest.tolist()
        # A dispatch mode must see every op.
        self._is_compiled = is_on = compiling.on and not torch._C._len_torch_dispatch_stack()
        kernels, self.only_copies = plan.recording.type_set.keep(
            ("kernels", compiling, is_on), lambda: self._choose_kernels(compiling, is_on)
        )
        self.kernels = list(kernels)
        self.prologues: list[Any] = [None] * len(self.types)
        self.training: list[Any] = [None] * len(self.types)
        self.saved: list[list[Tensor]] = [[] for _ in self.types]
        self.kept: list[dict[int, Tensor]] = [{} for _ in self.types]  # operands of all batches, by slot, for the end

    def _choose_kernels(self, compiling: Compiling, is_on: bool) -> tuple[list[Any], list[bool]]:
        """The kernel of every type, and whether it only copies."""
        is_compiled = [is_on and on_cpu for on_cpu in self.plan.recording.type_set.are_on_cpu]
        pairs = list(zip(self.types, is_compiled, strict=True))
        kernels = [compiling.kernel(node_type) if on else node_type.kernel for node_type, on in pairs]
        return kernels, [on and copies(node_type) for node_type, on in pairs]

    @cached_property
    def arenas(self) -> list[Tensor]:
        return [part.tensor() for part in self._parts]

    @cached_property
    def addresses(self) -> list[int]:
        """Of the arenas; generated code needs no more."""
        return [part.address for part in self._parts]

    @cached_property
    def head(self) -> tuple[int, int, int, int]:
        """What the arguments of every kernel begin with, see `kernel_text.FIRST_ARGUMENTS`."""
        layout = self.plan.layout
        return *layout.addresses[:3], layout.slot_begin.shape[1]

    @cached_property
    def sizes(self) -> list[int]:
        return as_list(self.plan.layout.sizes)

    @cached_property
    def own(self) -> list[int]:
        return as_list(self.plan.layout.own)

    def check_memory(self) -> None:
        """Kernels read addresses: what shared tensors describe must be there."""
        for tensor in {id(t): t for node_type in self.types for t in node_type.shared}.values():
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
        for t in range(len(self.types)):
            self.training[t] = training = self._compile(t)
            self.prologues[t] = prologue(self.kernels[t], self.types[t].shared, self.lease, trains=training is not None)
            if training is not None:
                self.saved[t] = [self.lease.take(spec, self.type_sizes[t]) for spec in training.saved]
        scratch = Lease(self.lease.pool, "scratch")
        launch = [self._launcher(t, scratch) for t in range(len(self.types))]
        batch = t = 0
        try:
            for batch, t in enumerate(self.operands.batch_types):
                launch[t](batch)
        except Exception as error:
            error.add_note(self._where(batch, t))
            raise
        scratch.release()

    def _compile(self, t: int) -> Any:
        """A type's training form, or None. A fused form that cannot be made gives way to the plain one."""
        needs = None if self.needs is None or not any(self.needs.outs[t]) else self.needs
        kernel, plain = self.kernels[t], self.types[t].kernel
        try:
            if needs is None:
                _ = kernel.infer  # a fused form is made now
                return None
            return kernel.training(needs.rows[t], needs.shared[t], needs.outs[t])
        except Exception as error:
            if kernel is plain:
                raise
            text, is_expected = "no kernels are made of %s: %s. It runs as torch ops", isinstance(error, TooLong)
            log.warning(text, self.types[t].name, error, exc_info=not is_expected)
            plain.give_up(kernel)  # type: ignore[attr-defined]
            self.plan.recording.type_set.forget()
            self.kernels[t] = plain
            return self._compile(t)

    def _launcher(self, t: int, scratch: Lease) -> Callable[[int], None]:
        """The function that runs a batch of a type."""
        kernel, training = self.kernels[t], self.training[t]
        if self.only_copies[t]:
            return Binding(self, t, scratch).copier()
        bind = getattr(kernel.infer if training is None else training.forward, "bind", None)
        if bind is not None:
            launch: Callable[[int], None] = bind(Binding(self, t, scratch))
            return launch
        return lambda batch: self._run_batch(batch, t)

    def _run_batch(self, batch: int, t: int) -> None:
        rows = [self.operands.read(self.arenas, batch, slot) for slot in range(len(self.types[t].slots))]
        outs = self.views(self.arenas, batch, t)
        training = self.training[t]
        if training is None:
            self.kernels[t].infer(self.sizes[batch], rows, self.prologues[t], outs)
        else:
            training.forward(self.sizes[batch], rows, self.prologues[t], outs, self.ranges(self.saved[t], batch))

    def _where(self, batch: int, t: int) -> str:
        """Which cell failed while running, and for the numbers it was given the examples with the extreme ones."""
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
        """Copy the inputs from outside into the first rows of their arenas."""
        inputs: dict[Spec, list[Tensor]] = {}
        recording = self.plan.recording
        if not recording.outside:
            return
        for tensor, spec in zip(recording.outside, recording.outside_specs, strict=True):
            inputs.setdefault(spec, []).append(tensor.detach())
        for arena, spec in zip(self.arenas, self.plan.recording.arenas, strict=True):
            if spec in inputs:
                torch.stack(inputs[spec], out=arena.narrow(0, 0, len(inputs[spec])))

    def views(self, arenas: Sequence[Tensor | None], batch: int, t: int) -> list[Any]:
        """The rows that a batch writes, as views of arenas (of values or of gradients)."""
        layout, nodes = self.plan.layout, self.operands.nodes[batch]
        first_node, first_row, rows = (int(x[batch]) for x in (layout.node_begin, layout.row_begin, layout.num_rows))
        return [
            None
            if (whole := arenas[arena]) is None
            else whole.narrow(0, self.base[number] + first_row, rows)
            if per_row
            else whole.narrow(0, self.base[number] + first_node, nodes)
            for number, arena, _, per_row in self.outputs[t]
        ]

    def all_rows(self, arenas: Sequence[Tensor | None], t: int) -> list[Any]:
        """The rows that all batches of a type write, in launch order, as views of arenas."""
        size = self.type_sizes[t]
        return [
            None if (whole := arenas[arena]) is None else whole[self.base[number] : self.base[number] + size]
            for number, arena, _, _ in self.outputs[t]
        ]

    def ranges(self, buffers: list[Tensor], batch: int) -> list[Tensor]:
        """The part of a type's own buffers that belongs to a batch."""
        return [buffer.narrow(0, self.own[batch], self.sizes[batch]) for buffer in buffers]

    def gather(self, group: Group) -> Tensor:
        """The rows of a group of results, in fresh memory."""
        part, rows = self._parts[self.plan.recording.arena_of[group.spec]], self.plan.group_rows(group)
        spec = group.spec
        if self._is_compiled and spec.device.type == "cpu" and spec.dtype.itemsize in BY_SIZE:  # torch takes far longer
            found = spec.empty(len(rows))
            copy = copy_rows(spec.dtype.itemsize)
            address = rows.__array_interface__["data"][0]  # `rows.ctypes` takes four times as long
            copy(len(rows), address, 0, part.address, found.data_ptr(), math.prod(spec.shape))
            return found
        arena, index = part.tensor(), torch.from_numpy(rows)
        return arena.index_select(0, index if arena.is_cpu else index.to(arena.device, non_blocking=True))
