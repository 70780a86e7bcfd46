"""Reads of *given* values: what the examples bring with them, and what is computed from that alone.

In: a lazy value. Out: its tensor, or None. A tensor in a column exists before anything is recorded, so its numbers may
be read at once: `words.tolist()`, `int(w[0])`, `if mask.any()`. Calls on given values are recorded like all others, so
that they are batched where something else uses them. When somebody reads a result, the calls that lead to it run once
more by themselves, each with its own function. What needs a parameter, random numbers or a module that changes is not
given: it waits for the mini-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from edbatch.cells.capture.modes import Modes
from edbatch.cells.segments import SegmentKernel
from edbatch.layout.layout import REF, Slot
from edbatch.recording.calls.shared import Draws
from edbatch.recording.program.marking import active, plain_loop
from edbatch.recording.types.kernel_cache import HOOKS, Context
from edbatch.recording.types.type_set import NodeType
from edbatch.recording.values.lazy import Lazy, Ragged
from edbatch.spec import Spec
from edbatch.torch_insides import pytree
from edbatch.torch_state.surroundings import Surroundings, inside, undrawn

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder

LISTS = (Slot.LIST, Slot.SUM)
Operand = list[int]  # the references that a slot reads, or one number


class GivenValues:
    """The given values of one recording that were read, and all that led to them."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._starts: list[int] = []  # where the args of each node begin
        self._num_args = 0
        self._outputs: dict[int, Sequence[Tensor] | None] = {}  # of each node that was looked at; None: not given
        self._roots: dict[int, frozenset[int]] = {}  # of each of these nodes, the inputs from outside that it needs

    def tensor(self, value: Lazy) -> Tensor | None:
        """The numbers of a value, without a gradient; None if they are not given."""
        recorder = self._recorder
        refs = value.elements if type(value) is Ragged and value.ref is None else None
        if refs is None:
            value = value if type(value) is Ragged else recorder.resolve(value)
            refs = [value.ref]
        found = [self._read(ref) for ref in refs or ()]
        given = [tensor for tensor in found if tensor is not None]
        if len(given) < len(found):
            return None
        return torch.stack(given) if type(value) is Ragged and value.ref is None else given[0]

    def _read(self, ref: int) -> Tensor | None:
        if ref < 0:
            self._recorder.note_read(frozenset([ref]))
            return self._recorder.tensor_of(ref).detach()
        node = ref % REF
        if node not in self._outputs:
            inside((Surroundings(active, plain_loop), *undrawn()), self._compute, node)
        outputs = self._outputs[node]
        if outputs is None:
            return None
        self._recorder.note_read(self._roots[node])
        return outputs[ref // REF]

    def _compute(self, node: int) -> None:
        """Run a node and, before, all nodes that it needs and that did not run yet."""
        recorder = self._recorder
        active.set(None)
        plain_loop.set(True)
        self._look()
        before, recorder.suspended = recorder.suspended, True
        try:
            with torch.no_grad():
                waiting = [node]
                while waiting:
                    self._step(waiting)
        finally:
            recorder.suspended = before

    def _step(self, waiting: list[int]) -> None:
        node = waiting[-1]
        node_type = self._recorder.node_types[self._recorder.types[node]]
        if node in self._outputs or not self._can_run(node_type):
            self._outputs.setdefault(node, None)
            waiting.pop()
            return
        operands = self._operands(node, node_type)
        read = [found for slot, found in zip(node_type.slots, operands, strict=True) if slot is not Slot.DATA]
        refs = [ref for found in read for ref in found]
        missing = {ref % REF for ref in refs if ref >= 0} - self._outputs.keys()
        if missing:
            waiting.extend(missing)
            return
        needed = [self._roots.get(ref % REF, frozenset()) if ref >= 0 else frozenset([ref]) for ref in refs]
        self._roots[node] = frozenset().union(*needed)
        self._outputs[node] = self._run(node, node_type, operands)
        waiting.pop()

    def _can_run(self, node_type: NodeType) -> bool:
        """Whether a call may run once more: it reads no parameters, and does nothing besides giving its results."""
        shared, kernel = self._recorder.shared, node_type.kernel
        if node_type.function is None and not isinstance(kernel, SegmentKernel):
            return False
        is_pure = not kernel.writes and not kernel.changes and kernel.reason != HOOKS
        return is_pure and not any(map(shared.is_trained, node_type.shared))

    def _run(self, node: int, node_type: NodeType, operands: Sequence[Operand]) -> Sequence[Tensor] | None:
        rows = [self._rows(*found) for found in zip(node_type.slots, node_type.slot_specs, operands, strict=True)]
        if any(row is None for row in rows):
            return None
        given: list[Any] = rows
        length = max((len(row) for row, slot in zip(given, node_type.slots, strict=True) if slot in _MANY), default=1)
        if isinstance(node_type.kernel, SegmentKernel):
            if node_type.slots[-1] is Slot.OFFSETS:
                given[-1] = torch.tensor([0, length])
            counts = [length if many else 1 for many in node_type.per_row]
            outs = [spec.empty(count) for spec, count in zip(node_type.kernel.outputs, counts, strict=True)]
            node_type.kernel.run(given, outs)
            return [out if many else out[0] for out, many in zip(outs, node_type.per_row, strict=True)]
        if node_type.shared:
            self._recorder.reads_shared(node_type.shared)
        return self._call(node, node_type, given, length)

    def _call(self, node: int, node_type: NodeType, rows: Sequence[Tensor], length: int) -> Sequence[Tensor] | None:
        assert node_type.function is not None
        function, num_enclosed = node_type.function, len(node_type.kernel.enclosed)
        shared = node_type.shared[: len(node_type.shared) - num_enclosed]
        modes = _modes(self._recorder.signatures[self._recorder.types[node]].context)
        many = [slot is Slot.ROWS for slot in node_type.slots]
        results = []
        with Draws() as draws:
            for i in range(length if any(many) else 1):
                of_row = [row[i] if varies else row[0] for row, varies in zip(rows, many, strict=True)]
                result = modes.around(lambda of_row=of_row: function(*of_row, *shared))  # type: ignore[misc]
                results.append([leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)])
        if draws.seen:
            return None
        return [torch.stack(list(rows)) for rows in zip(*results, strict=True)] if any(many) else results[0]

    def _rows(self, slot: Slot, spec: Spec | None, operand: Operand) -> Tensor | None:
        """What a slot reads, with a first dimension for rows; None if it is not given."""
        if slot is Slot.OFFSETS:
            return torch.empty(0)
        if slot is Slot.DATA:
            assert spec is not None
            return _number(operand[0], spec)[None]
        values = [self._value(ref) for ref in operand]
        given = [value for value in values if value is not None]
        if len(given) < len(values):
            return None
        rows = given[0] if slot in (Slot.ROWS, Slot.SUM_ROWS) else torch.stack(given)
        return rows.sum(0, keepdim=True) if slot in (Slot.SUM, Slot.SUM_ROWS) else rows

    def _value(self, ref: int) -> Tensor | None:
        if ref < 0:
            return self._recorder.tensor_of(ref).detach()
        outputs = self._outputs[ref % REF]
        return None if outputs is None else outputs[ref // REF]

    def _operands(self, node: int, node_type: NodeType) -> list[Operand]:
        at, found = self._starts[node], []
        args = self._recorder.args
        for slot in node_type.slots:
            size = args[at] if slot in LISTS else slot is not Slot.OFFSETS
            at += slot in LISTS
            found.append([args[i] for i in range(at, at + size)])
            at += size
        return found

    def _look(self) -> None:
        """Find where the args of the nodes begin that were recorded since the last look."""
        recorder = self._recorder
        types = np.frombuffer(memoryview(recorder.types), np.int64)[len(self._starts) :]
        slots = [node_type.slots for node_type in recorder.node_types]
        sizes = np.array([len(of_type) - of_type.count(Slot.OFFSETS) for of_type in slots], dtype=np.int64)[types]
        lists = np.array([any(slot in LISTS for slot in of_type) for of_type in slots], dtype=np.bool_)[types]
        starts, shift = self._num_args + np.cumsum(sizes) - sizes, 0
        for i in np.flatnonzero(lists).tolist():  # a list adds as many args as it is long
            at, end = int(starts[i]) + shift, int(sizes[i])
            for slot in slots[types[i]]:
                end += recorder.args[at] if slot in LISTS else 0
                at += recorder.args[at] + 1 if slot in LISTS else slot is not Slot.OFFSETS
            sizes[i], shift = end, shift + end - int(sizes[i])
        starts = self._num_args + np.cumsum(sizes) - sizes
        self._starts += starts.tolist()
        self._num_args += int(sizes.sum())


_MANY = (Slot.ROWS, Slot.LIST)


def _number(bits: int, spec: Spec) -> Tensor:
    number = float(np.int64(bits).view(np.float64)) if spec.is_float else bits
    return torch.tensor(number, dtype=spec.dtype, device=spec.device)


def _modes(context: Context) -> Modes:
    on = dict(context.autocast)
    return Modes(context.dtype, tuple([(d, d in on, on.get(d, torch.bfloat16)) for d in ("cpu", "cuda")]))
