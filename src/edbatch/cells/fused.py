"""Fused emission: a program of a cell as few kernels. Elementwise ops run in generated loops, the others as torch ops.

In: a body and a `Program`. Out: a `Fused`: a function that, bound to the memory of one mini-batch, launches batch b.

Ops fall into phases, see `phases`. Kernel p stores what the torch ops of phase p read, and every result that is known
by then. Operands are gathered inside the kernels, row by row; results and saved values are written where they belong;
gradients of operands are added to the rows they came from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from edbatch.cells.blocks import find_blocks
from edbatch.cells.body import Body, Op, Val
from edbatch.cells.emit import Emitter, Form, Forms, add_up
from edbatch.cells.loops import FIRST_ARGUMENTS, PIECES, Kernel, Loops, Memory
from edbatch.cells.native import compile_kernels
from edbatch.cells.phases import Phases
from edbatch.cells.pointwise import DTYPES
from edbatch.cells.program import Place, Program
from edbatch.cells.rules import batched, shared
from edbatch.spec import Spec

aten = torch.ops.aten
Mask = tuple[bool, ...]


@dataclass(frozen=True)
class Fused:
    """`bind(binding)` gives `launch(b)`; `source` is its Python, `kernels` that of the loops it calls."""

    bind: Callable[[Any], Callable[[int], None]]
    source: str
    kernels: tuple[str, ...]


def fuse(body: Body, program: Program, taken: Mask, exact_math: bool, name: str) -> Fused:
    """Emit a program.

    Args:
        taken: which row operands are read as tensors first (sums of rows, numbers), not row by row inside the kernels.
        name: of the cell, for the message while its kernels are compiled.
    """
    return _Fuser(body, program, taken, exact_math).emit(name)


class _Fuser(Emitter):
    def __init__(self, body: Body, program: Program, taken: Mask, exact_math: bool) -> None:
        super().__init__(body, program)
        self.taken, self.exact_math = taken, exact_math
        self.prelude: dict[str, str] = {}  # variable -> what it is bound to, once per mini-batch
        self.kernels: list[Kernel] = []
        self.phases = Phases(body, program, exact_math)
        self.soft, self.level = self.phases.soft, self.phases.level
        self.places: dict[int, list[Place]] = {}  # where a value must end
        for place, value in program.dests.items():
            self.places.setdefault(self.phases.behind_reshapes(value.index), []).append(
                place._replace(shape=body.spec(value).shape)
            )
        self.home: dict[int, Place | str] = dict(program.inputs)  # of values in memory: a buffer, or a scratch tensor
        self.addresses: dict[int, Memory] = {}
        self.scratch_shapes: dict[int, tuple[int, ...]] = {}
        self.gradients = {  # of operands whose rows kernels know: slot -> value
            slot: value.index
            for slot, value in enumerate(program.returns or ())
            if value is not None and self._is_indexed(slot)
        }
        self.blocks = find_blocks(body, program, self.soft, self._as_tensors())

    def _as_tensors(self) -> set[int]:
        """The values that must lie in memory row by row: results, and what torch ops read."""
        found = self.phases.read_by_torch() | set(self.places)
        for slot, value in enumerate(self.program.returns or ()):
            if value is not None and not self._is_indexed(slot):
                found.add(self.phases.root(value.index))
        return found

    # ---- memory, as kernels see it

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
            return Memory(self._bound(f"p_z{index}", f"z{index}.data_ptr()"), "blocks", self.blocks[index], dtype)
        if home == "scratch":
            return Memory(self._bound(f"p_z{index}", f"z{index}.data_ptr()"), "local", width, dtype)
        if isinstance(home, Place) and home.group == "pro":
            kept = self._bound(f"shared{home.number}", f"x.shared({home.number})")
            return Memory(self._bound(f"p_{kept}", f"{kept}.data_ptr()"), "shared", width, dtype)
        if isinstance(home, Place) and home.group == "rows" and self._is_indexed(home.number):
            arena = self._bound(f"arena{home.number}", f"x.arena({home.number}).data_ptr()")
            return Memory(arena, "index", width, dtype, f"x.start({home.number})")
        if isinstance(home, Place) and home.group != "rows":
            return self._own(home, width, dtype)
        rows = "local" if self.body.is_row[index] else "shared"
        tensor = self.assign(Val(index), f"{self.raw(Val(index))}.contiguous()", pinned=True)
        return Memory(self.assign(Val(index), f"{tensor}.data_ptr()", pinned=True), rows, width, dtype)

    def _own(self, place: Place, width: int, dtype: str) -> Memory:
        """A buffer of the type, in which the batch has rows w, w + 1, …"""
        return Memory(self._bound(f"p_{self._buffer(place)}", f"{self._buffer(place)}.data_ptr()"), "own", width, dtype)

    def _buffer(self, place: Place) -> str:
        return self._bound(f"{place.group}{place.number}", f"x.{place.group}[{place.number}]")

    def _is_indexed(self, slot: int) -> bool:
        """Whether kernels read (and add gradients to) the rows of an operand themselves."""
        return not self.taken[slot] and self.body.rows[slot].dtype in DTYPES

    def _bound(self, name: str, text: str) -> str:
        self.prelude.setdefault(name, text)
        return name

    # ---- tensors, as torch ops see them

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
                name, rows = f"z{index}", ":B"
            if memory != shape:
                view = ", ".join(map(str, (f"{name}.shape[0]", *shape)))
                name = self._bound("_".join(map(str, (name, *shape))), f"{name}.view({view})")
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
            return self._bound(f"pro{place.number}", f"x.pro[{place.number}]")
        reader = self._bound(f"read{place.number}", f"x.reader({place.number})")
        return self.assign(Val(index), f"{reader}(b)", pinned=True)

    # ---- emission

    def emit(self, name: str) -> Fused:
        wanted = self._as_tensors()
        stored = [i for i in self.program.ops if i in self.soft and i in wanted]
        for phase in range(max(self.level.values(), default=0) + 1):
            self._emit_kernel(phase, [i for i in stored if self.level[i] == phase])
            for index in self.phases.hard:
                if self.level[index] == phase:
                    self._emit_torch(index)
        self._emit_rest()
        return self._bind(name)

    def _emit_kernel(self, phase: int, stored: Sequence[int]) -> None:
        """One kernel that stores soft values, and adds gradients that are known by now to their rows."""
        loops = Loops(self.body, self.find, self.exact_math)
        homes: dict[int, Place | str] = {}
        for index in stored:
            spec = self.body.spec(Val(index))
            width, dtype = math.prod(spec.shape), DTYPES[spec.dtype]
            places = self.places.pop(index, ())
            for place in places:
                loops.store(index, self._own(place, width, dtype))
            if not places:
                self._scratch(index, spec.shape)
                loops.store(index, self._memory(index, "scratch", width, dtype))
            homes[index] = places[0] if places else "scratch"
        for slot, index in list(self.gradients.items()):
            if index in self.soft and self.level[index] == phase:
                self._scatter(loops, slot)
        self._call(loops)
        self.home.update(homes)  # from now on they are read, not computed

    def _scratch(self, index: int, shape: Sequence[Any]) -> None:
        self.scratch_shapes[index] = tuple(shape)
        self._bound(f"z{index}", f"x.scratch({tuple(shape)!r}, {self.object(self.body.spec(Val(index)).dtype)})")

    def _emit_torch(self, index: int) -> None:
        value, op = Val(index), self.body.op(index)
        assert op is not None
        if index in self.blocks:
            self._emit_blocks(index, op)
            return
        code = batched(self, op) if self.body.is_row[index] else shared(self, op)
        shape = code.form or self._own_form(index)
        places = self.places.get(index, [])
        if places:
            home = places.pop(0)
            self.home[index] = home
            if code.out:
                self.lines.append(code.writing(self.form(value, shape)))
            else:
                self.lines.append(f"{self.form(value, shape)}.copy_({code.text})")
        elif code.out and isinstance(op.spec, Spec) and self.body.is_row[index] and shape[:1] != ("flat",):
            self.home[index] = "scratch"
            self._scratch(index, shape)
            self.lines.append(code.writing(self.form(value, shape)))
        else:
            name = self.assign(value, code.text, pinned=True)
            self.memory[index] = Forms({shape: name}, pinned=True)

    def _emit_blocks(self, index: int, op: Op) -> None:
        """A product as blocks of columns, or products of one shape as one; see `blocks`."""
        (row, weight), width, whole = op.args, self.blocks[index], self.raw(op.args[1])
        *_, length, columns = self.body.spec(weight).shape
        if op.target is aten.bmm.default:
            count, step, blocks = self.body.spec(weight).shape[0], length, whole
        else:
            count, step = columns // width, 0
            blocks = self._bound(f"{whole}_blocks{count}", f"{whole}.unflatten(1, ({count}, {width})).transpose(0, 1)")
        self.home[index] = "scratch"
        self._scratch(index, (count * width,))
        result = f"z{index}.as_strided(({count}, B, {width}), (B * {width}, {width}, 1))"
        self.lines.append(f"{self.object(torch.bmm)}({self._spread(row, count, length, step)}, {blocks}, out={result})")

    def _spread(self, row: Val, count: int, length: int, step: int) -> str:
        """Rows as [count, B, length] without a copy: pieces of them, `step` elements apart."""
        base, begin = row.index, 0
        while self.phases.is_view(base) and base in self.soft:  # one range of the elements of another value
            op = self.body.op(base)
            begin += PIECES[op.target](self.body, op)[0]  # type: ignore[union-attr,index,arg-type]
            base = op.args[0].index  # type: ignore[union-attr]
        home = self.home.get(base)
        if base in self.blocks or home is None or (isinstance(home, Place) and home.group in ("rows", "pro")):
            if step:
                return f"{self.row(row, (count, length))}.transpose(0, 1)"
            return f"{self.flat(row, length)}.expand({count}, B, {length})"
        buffer, first = (f"z{base}", "") if home == "scratch" else (self._buffer(home), "w * ")  # type: ignore[arg-type]
        width = math.prod(self.body.spec(Val(base)).shape)
        offset = self._bound(f"at_{buffer}_{begin}", f"{buffer}.storage_offset() + {begin}")
        offset = f"{offset} + {first}{width}" if first else offset
        return f"{buffer}.as_strided(({count}, B, {length}), ({step}, {width}, 1), {offset})"

    def _emit_rest(self) -> None:
        """Results that are no fresh values, gradients of operands, and sums."""
        loops = Loops(self.body, self.find, self.exact_math)
        for index, places in self.places.items():
            spec = self.body.spec(Val(index))
            for place in places:
                if spec.dtype in DTYPES:
                    loops.store(index, self._own(place, math.prod(spec.shape), DTYPES[spec.dtype]))
                else:
                    self.lines.append(f"{self._buffer(place)}.narrow(0, w, B).copy_({self.raw(Val(index))})")
        for slot in list(self.gradients):
            self._scatter(loops, slot)
        self._call(loops)
        for slot, value in enumerate(self.program.returns or ()):
            if value is not None and not self._is_indexed(slot):
                add = self._bound(f"add{slot}", f"x.adder({slot})")
                self.lines.append(f"{add}(b, {self.raw(value)})")
        for key, value in self.program.sums:
            self.lines.append(f"{self.object(add_up)}({self._bound('sums', 'x.sums')}, {key}, {self.row(value)})")

    def _scatter(self, loops: Loops, slot: int) -> None:
        spec = self.body.rows[slot]
        target = self._bound(f"gradient{slot}", f"x.gradient({slot}).data_ptr()")
        memory = Memory(target, "index", math.prod(spec.shape), DTYPES[spec.dtype], f"x.start({slot})")
        loops.scatter(self.gradients.pop(slot), memory)

    def _call(self, loops: Loops) -> None:
        """A kernel's arguments are written down once per mini-batch, but for addresses that are only known here."""
        if loops.is_empty:
            return
        kernel, number = loops.kernel(), len(self.kernels)
        later = {
            at: text for at, text in enumerate(kernel.arguments) if text.isidentifier() and text not in self.prelude
        }
        texts = ["0" if at in later else text for at, text in enumerate(kernel.arguments)]
        given = self._bound(f"given{number}", f"x.arguments({', '.join(texts)})")
        address = self._bound(f"p{number}", f"{given}.ctypes.data")
        self.lines += [f"{given}[{FIRST_ARGUMENTS + at}] = {text}" for at, text in later.items()]
        self.lines.append(f"kernel{number}(b, {address})")
        self.kernels.append(kernel)

    def _bind(self, name: str) -> Fused:
        before = "".join(f"    {k} = {text}\n" for k, text in self.prelude.items())
        lines = "".join(f"        {line}\n" for line in self.lines)
        source = (
            f"def bind(x):\n    n, own = x.sizes, x.own\n{before}"
            f"    def launch(b):\n        B, w = n[b], own[b]\n{lines}"
            "    launch.memory = x  # addresses keep nothing alive\n    return launch\n"
        )
        functions = compile_kernels([k.source for k in self.kernels], name)
        namespace = dict(self.namespace) | {f"kernel{i}": f for i, f in enumerate(functions)}
        exec(compile(source, f"<{self.program.name} of {name}>", "exec"), namespace)
        return Fused(namespace["bind"], source, tuple(k.source for k in self.kernels))
