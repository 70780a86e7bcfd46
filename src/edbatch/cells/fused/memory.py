"""Where the values of a fused program lie in memory.

In: questions of the emitter (`fuser`, `products`). Out: texts of addresses, for kernels and products, and names of
tensors, for torch ops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from edbatch.cells.body.body import Body, Val
from edbatch.cells.body.program import Place, Program
from edbatch.cells.fused.bind_text import BindText
from edbatch.cells.fused.loops.kernel_text import RowMemory
from edbatch.cells.fused.loops.pointwise import DTYPES
from edbatch.cells.fused.loops.ranges import behind_shifts
from edbatch.cells.fused.phases import Phases
from edbatch.cells.kernel import Read
from edbatch.cells.torch_ops.rules import batched, shared
from edbatch.cells.torch_ops.tensors import Form, Forms, Tensors
from edbatch.spec import Spec

aten = torch.ops.aten


class FusedMemory:
    """The memory of a program's values.

    home: for each value in memory its buffer, or "scratch", which is memory of one launch.
    places: for each result that is not stored yet the buffers to store it in.
    blocks: products that lie in memory block by block -> the columns of a block.
    by_address: whether so far only addresses of shared values are read.
    tensors: the values that torch ops read.
    """

    def __init__(self, body: Body, program: Program, reads: tuple[Read, ...], phases: Phases, text: BindText) -> None:
        self.body, self.phases, self.text = body, phases, text
        self._reads, self._soft = reads, phases.soft
        self.tensors = Tensors(body, text.launch, {}, self._make_tensor)
        self.home: dict[int, Place | str] = dict(program.inputs)
        self.places: dict[int, list[Place]] = {}
        for place, value in program.dests.items():
            self.places.setdefault(phases.behind_reshapes(value.index), []).append(
                place._replace(shape=body.spec(value).shape)
            )
        self.blocks: dict[int, int] = {}
        self.by_address = True
        self._addresses: dict[int, RowMemory] = {}
        self._scratch_shapes: dict[int, tuple[int, ...]] = {}

    # ---- as kernels see it

    def find(self, index: int) -> RowMemory | None:
        """Where a kernel finds a value; None when it computes it."""
        if index not in self._addresses:
            home, spec = self.home.get(index), self.body.specs[index]
            op = self.body.op(index)
            if not isinstance(spec, Spec) or (home is None and index in self._soft):
                return None
            if not self.body.is_row[index] and op is not None and op.target is aten.full.default:
                return None
            self._addresses[index] = self.memory(index, home, math.prod(spec.shape), DTYPES[spec.dtype])
        return self._addresses[index]

    def memory(self, index: int, home: Place | str | None, width: int, dtype: str) -> RowMemory:
        if index in self.blocks and home == "scratch":
            return RowMemory(self.scratch_address(index), "blocks", self.blocks[index], dtype)
        if home == "scratch":
            return RowMemory(self.scratch_address(index), "local", width, dtype)
        if isinstance(home, Place) and home.group == "pro":
            return RowMemory(self.text.bound(f"p_pro{home.number}", f"x.shared({home.number})"), "shared", width, dtype)
        if isinstance(home, Place) and home.group == "rows" and self.is_indexed(home.number):
            arena = self.text.bound(f"arena{home.number}", f"x.arena({home.number})")
            return RowMemory(arena, "index", width, dtype, self.of_slot("starts", home.number))
        if isinstance(home, Place) and home.group != "rows":
            return self.own(home, width, dtype)
        if isinstance(home, Place) and self._reads[home.number] is Read.NUMBERS and dtype == "i64":
            return RowMemory(self.text.bound(f"numbers{home.number}", f"x.numbers({home.number})"), "own", width, dtype)
        rows = "local" if self.body.is_row[index] else "shared"
        tensor = self.tensors.assign(Val(index), f"{self.tensors.raw(Val(index))}.contiguous()", pinned=True)
        return RowMemory(self.tensors.assign(Val(index), f"{tensor}.data_ptr()", pinned=True), rows, width, dtype)

    def own(self, place: Place, width: int, dtype: str) -> RowMemory:
        """A buffer for all batches of the type, of which this batch has rows w, w + 1, …"""
        address = f"x.address({place.group!r}, {place.number})"
        return RowMemory(self.text.bound(f"p_{place.group}{place.number}", address), "own", width, dtype)

    def buffer(self, place: Place) -> str:
        return self.text.bound(f"{place.group}{place.number}", f"x.tensor({place.group!r}, {place.number})")

    def is_indexed(self, slot: int) -> bool:
        """Whether kernels read (and add gradients to) the rows of an operand themselves."""
        return self._reads[slot] is Read.ROWS and self.body.rows[slot].dtype in DTYPES

    def of_slot(self, numbers: str, slot: int) -> str:
        """The address of a slot's number for the first batch, in an array with a number for each batch and slot."""
        return f"{self.text.bound(numbers, f'x.{numbers}')} + {8 * slot}"

    def put_in_scratch(self, index: int, shape: Sequence[Any]) -> None:
        """Give a value memory of one launch. The value is there once `home` says so."""
        self._scratch_shapes[index] = tuple(shape)

    def scratch_address(self, index: int) -> str:
        row_bytes = math.prod(self._scratch_shapes[index]) * self.body.spec(Val(index)).dtype.itemsize
        return self.text.bound(f"p_z{index}", f"x.scratch({index}, {row_bytes})")

    def scratch_tensor(self, index: int) -> str:
        self.scratch_address(index)
        dtype = self.tensors.object(self.body.spec(Val(index)).dtype)
        return self.text.bound(f"z{index}", f"x.scratch_tensor({index}, {self._scratch_shapes[index]!r}, {dtype})")

    def goes_to(self, index: int) -> Place | None:
        """The buffer that a hard value (see `phases`) is computed into; None for scratch memory. That is its own buffer
        if it is a result, or that of a result computed from it alone, element by element, which later overwrites it."""
        if places := self.places.get(index):
            return places.pop(0)
        is_one = isinstance(self.body.specs[index], Spec)
        last = self.phases.end_of_chain(index, self.places) if is_one and index not in self.blocks else -1
        if last not in self.places or self.places[last][0] in self.home.values():
            return None
        is_alike = self.body.spec(Val(last)).dtype == self.body.spec(Val(index)).dtype
        return self.places[last][0] if is_alike else None

    def behind_ranges(self, index: int) -> tuple[int, int]:
        """The value that holds the elements of a slice, and where they begin in it."""
        return behind_shifts(self.body, Val(index), lambda i: i not in self._soft or not self.phases.is_view(i))

    def shared(self, value: Val) -> str:
        """A shared value of which only the address and the strides are read."""
        home = self.home.get(value.index)
        is_given = isinstance(home, Place) and home.group == "pro"
        return f"x.pro[{home.number}]" if is_given else self.tensors.raw(value)  # type: ignore[union-attr]

    # ---- as torch ops see it

    def _make_tensor(self, index: int, form: Form) -> None:
        home, op = self.home.get(index), self.body.op(index)
        shape = self.tensors.own_form(index)
        if home == "scratch" or (isinstance(home, Place) and home.group not in ("rows", "pro")):
            shape = shape if form[:1] == ("flat",) else form
            if isinstance(home, Place):
                memory = self.body.spec(Val(index)).shape if home.shape is None else home.shape
                name, rows = self.buffer(home), "w:w + B"
            else:
                memory = self._scratch_shapes[index]
                name, rows = self.scratch_tensor(index), ":B"
            if memory != shape:
                view = ", ".join(map(str, (f"{name}.shape[0]", *shape)))
                name = self.text.bound("_".join(map(str, (name, "as", *shape))), f"{name}.view({view})")
            text = self.tensors.assign(
                Val(index), f"{name}[{rows}]", pinned=True
            )  # `narrow` would take half as long again
        elif isinstance(home, Place):
            text = self._tensor_at(index, home)
        elif op is not None and op.target is aten.view.default:
            self.tensors.form(op.args[0], form)
            self.tensors.memory[index] = self.tensors.memory[op.args[0].index]
            return
        else:
            assert op is not None
            code = batched(self.tensors, op) if self.body.is_row[index] else shared(self.tensors, op)
            shape, text = code.form or shape, self.tensors.assign(Val(index), code.text, pinned=True)
        self.tensors.memory[index] = Forms({shape: text}, pinned=True)

    def _tensor_at(self, index: int, place: Place) -> str:
        if place.group == "pro":
            self.by_address = False
            return self.text.bound(f"pro{place.number}", f"x.pro[{place.number}]")
        reader = self.text.bound(f"read{place.number}", f"x.reader({place.number})")
        return self.tensors.assign(Val(index), f"{reader}(b)", pinned=True)
