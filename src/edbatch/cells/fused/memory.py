"""Where the values of a fused program lie: as addresses for generated kernels and products, as tensors for torch ops.

What a launch needs is bound once per mini-batch (`prelude`), to a `runtime.launch.Binding` that the code calls x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from edbatch.cells.body.body import Body, Val
from edbatch.cells.body.program import Place, Program
from edbatch.cells.fused.loops.kernel_text import Memory
from edbatch.cells.fused.loops.pointwise import DTYPES
from edbatch.cells.fused.loops.ranges import behind_shifts
from edbatch.cells.fused.phases import Phases
from edbatch.cells.kernel import Read, Reads
from edbatch.cells.torch_ops.emit import Emitter, Form, Forms
from edbatch.cells.torch_ops.rules import batched, shared
from edbatch.spec import Spec

aten = torch.ops.aten


class FusedMemory(Emitter):
    def __init__(self, body: Body, program: Program, reads: Reads, phases: Phases) -> None:
        super().__init__(body, program)
        self.reads, self.phases, self.soft = reads, phases, phases.soft
        self.prelude: dict[str, str] = {}  # variable -> what it is bound to, once per mini-batch
        self.home: dict[int, Place | str] = dict(program.inputs)  # of values in memory: a buffer, or a scratch tensor
        self.addresses: dict[int, Memory] = {}
        self.scratch_shapes: dict[int, tuple[int, ...]] = {}
        self.blocks: dict[int, int] = {}  # products that lie block by block: the columns of a block
        self.by_address = True  # whether only addresses of shared values are read so far

    # ---- as kernels see it

    def find(self, index: int) -> Memory | None:
        """Where a kernel finds a value; None when it computes it."""
        if index not in self.addresses:
            home, spec = self.home.get(index), self.body.specs[index]
            op = self.body.op(index)
            if not isinstance(spec, Spec) or (home is None and index in self.soft):
                return None
            if not self.body.is_row[index] and op is not None and op.target is aten.full.default:
                return None
            self.addresses[index] = self._memory(index, home, math.prod(spec.shape), DTYPES[spec.dtype])
        return self.addresses[index]

    def _memory(self, index: int, home: Place | str | None, width: int, dtype: str) -> Memory:
        if index in self.blocks and home == "scratch":
            return Memory(self._scratch_address(index), "blocks", self.blocks[index], dtype)
        if home == "scratch":
            return Memory(self._scratch_address(index), "local", width, dtype)
        if isinstance(home, Place) and home.group == "pro":
            return Memory(self._bound(f"p_pro{home.number}", f"x.shared({home.number})"), "shared", width, dtype)
        if isinstance(home, Place) and home.group == "rows" and self._is_indexed(home.number):
            arena = self._bound(f"arena{home.number}", f"x.arena({home.number})")
            return Memory(arena, "index", width, dtype, self._of_slot("starts", home.number))
        if isinstance(home, Place) and home.group != "rows":
            return self._own(home, width, dtype)
        if isinstance(home, Place) and self.reads[home.number] is Read.NUMBERS and dtype == "i64":
            return Memory(self._bound(f"numbers{home.number}", f"x.numbers({home.number})"), "own", width, dtype)
        rows = "local" if self.body.is_row[index] else "shared"
        tensor = self.assign(Val(index), f"{self.raw(Val(index))}.contiguous()", pinned=True)
        return Memory(self.assign(Val(index), f"{tensor}.data_ptr()", pinned=True), rows, width, dtype)

    def _own(self, place: Place, width: int, dtype: str) -> Memory:
        """A buffer of the type, in which the batch has rows w, w + 1, …"""
        address = f"x.address({place.group!r}, {place.number})"
        return Memory(self._bound(f"p_{place.group}{place.number}", address), "own", width, dtype)

    def _buffer(self, place: Place) -> str:
        return self._bound(f"{place.group}{place.number}", f"x.tensor({place.group!r}, {place.number})")

    def _is_indexed(self, slot: int) -> bool:
        """Whether kernels read (and add gradients to) the rows of an operand themselves."""
        return self.reads[slot] is Read.ROWS and self.body.rows[slot].dtype in DTYPES

    def _of_slot(self, numbers: str, slot: int) -> str:
        """The address of the first batch's number of a slot; there is one for every slot."""
        return f"{self._bound(numbers, f'x.{numbers}')} + {8 * slot}"

    def _scratch(self, index: int, shape: Sequence[Any]) -> None:
        self.scratch_shapes[index] = tuple(shape)

    def _scratch_address(self, index: int) -> str:
        row_bytes = math.prod(self.scratch_shapes[index]) * self.body.spec(Val(index)).dtype.itemsize
        return self._bound(f"p_z{index}", f"x.scratch({index}, {row_bytes})")

    def _scratch_tensor(self, index: int) -> str:
        self._scratch_address(index)
        dtype = self.object(self.body.spec(Val(index)).dtype)
        return self._bound(f"z{index}", f"x.scratch_tensor({index}, {self.scratch_shapes[index]!r}, {dtype})")

    def _behind_pieces(self, index: int) -> tuple[int, int]:
        """The value of whose elements another is one range, and where that begins."""
        return behind_shifts(self.body, Val(index), lambda i: i not in self.soft or not self.phases.is_view(i))

    def _shared(self, value: Val) -> str:
        """A shared value of which only the address and the strides are read."""
        home = self.home.get(value.index)
        is_given = isinstance(home, Place) and home.group == "pro"
        return f"x.pro[{home.number}]" if is_given else self.raw(value)  # type: ignore[union-attr]

    def _bound(self, name: str, text: str) -> str:
        self.prelude.setdefault(name, text)
        return name

    # ---- as torch ops see it

    def form(self, value: Val, form: Form) -> str:
        if value.index not in self.memory:
            self._make_tensor(value.index, form)
        return super().form(value, form)

    def _make_tensor(self, index: int, form: Form) -> None:
        home, op = self.home.get(index), self.body.op(index)
        shape = self._own_form(index)
        if home == "scratch" or (isinstance(home, Place) and home.group not in ("rows", "pro")):
            shape = shape if form[:1] == ("flat",) else form
            if isinstance(home, Place):
                memory = self.body.spec(Val(index)).shape if home.shape is None else home.shape
                name, rows = self._buffer(home), "w:w + B"
            else:
                memory = self.scratch_shapes[index]
                name, rows = self._scratch_tensor(index), ":B"
            if memory != shape:
                view = ", ".join(map(str, (f"{name}.shape[0]", *shape)))
                name = self._bound("_".join(map(str, (name, "as", *shape))), f"{name}.view({view})")
            text = self.assign(Val(index), f"{name}[{rows}]", pinned=True)  # narrow would take half as long again
        elif isinstance(home, Place):
            text = self._tensor_at(index, home)
        elif op is not None and op.target is aten.view.default:
            self.form(op.args[0], form)
            self.memory[index] = self.memory[op.args[0].index]
            return
        else:
            assert op is not None
            code = batched(self, op) if self.body.is_row[index] else shared(self, op)
            shape, text = code.form or shape, self.assign(Val(index), code.text, pinned=True)
        self.memory[index] = Forms({shape: text}, pinned=True)

    def _tensor_at(self, index: int, place: Place) -> str:
        if place.group == "pro":
            self.by_address = False
            return self._bound(f"pro{place.number}", f"x.pro[{place.number}]")
        reader = self._bound(f"read{place.number}", f"x.reader({place.number})")
        return self.assign(Val(index), f"{reader}(b)", pinned=True)
