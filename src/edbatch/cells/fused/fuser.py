"""Fused emission: turns a program of a cell into few kernels. Elementwise ops run in generated loops, others by torch.

In: a body (the ops of a cell) and a `Program` (some of them, with their inputs and results). Out: a `Fused`: given the
memory of a mini-batch, it gives a function that runs batch b.

Ops are divided into phases, see `phases`. Kernel p stores the values that torch ops of phase p read, and every result
that can be computed by then. The matrix products of a phase run together, see `products`. Kernels read operands where
they lie, row by row, and write results and saved values to their final place. They add gradients of operands to the
rows that the operands came from, or store them there.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from edbatch.cells.body.body import Body, Val
from edbatch.cells.body.program import Place, Program
from edbatch.cells.fused.bind_text import BindText
from edbatch.cells.fused.library.native import compile_kernels
from edbatch.cells.fused.loops.kernel_text import GeneratedKernel, RowMemory
from edbatch.cells.fused.loops.loops import Loops
from edbatch.cells.fused.loops.pointwise import DTYPES
from edbatch.cells.fused.memory import FusedMemory
from edbatch.cells.fused.phases import Phases
from edbatch.cells.fused.products import Products
from edbatch.cells.kernel import Read, TooLong
from edbatch.cells.torch_ops.emit import add_up
from edbatch.cells.torch_ops.rules import batched, shared
from edbatch.cells.torch_ops.tensors import Forms
from edbatch.spec import Spec
from edbatch.torch_state.surroundings import inside

aten = torch.ops.aten
MAX_OPS = 600
MAX_DEPTH = 10 * MAX_OPS  # of nested Python calls; an op takes about five
_LOCK = threading.RLock()  # the recursion limit belongs to the whole interpreter


@dataclass(frozen=True)
class Fused:
    """`bind(binding)` returns `launch(b)`; `source` is its Python text, `kernels` the texts of the loops it calls.

    products: those that run without torch, as (blocks, length, columns): so many [B, length] × [length, columns].
    scatters: the operands whose gradients kernels write, row by row.
    by_address: whether of shared values only addresses are read, so that `Strided` ones will do instead of tensors.
    """

    bind: Callable[[Any], Callable[[int], None]]
    source: str
    kernels: tuple[str, ...]
    products: tuple[tuple[int, int, int], ...]
    scatters: tuple[int, ...]
    by_address: bool


def fuse(body: Body, program: Program, reads: tuple[Read, ...], exact_math: bool, name: str) -> Fused:
    """Turn a program into code, and compile it.

    Args:
        reads: how each operand is found.
        name: of the cell, for the message while its kernels are compiled.
    """
    if len(program.ops) > MAX_OPS:
        raise TooLong(
            f"it has {len(program.ops)} ops, and kernels of more than {MAX_OPS} would be compiled for minutes"
        )
    return inside((_LOCK, _SameDepth()), _fuse, body, program, reads, exact_math, name)


def _fuse(body: Body, program: Program, reads: tuple[Read, ...], exact_math: bool, name: str) -> Fused:
    sys.setrecursionlimit(max(sys.getrecursionlimit(), MAX_DEPTH))  # recursion follows the longest chain of ops
    return _Fuser(body, program, reads, exact_math).emit(name)


class _SameDepth:
    """A context at whose end the recursion limit is as before."""

    def __enter__(self) -> None:
        self._before = sys.getrecursionlimit()

    def __exit__(self, *error: Any) -> None:
        sys.setrecursionlimit(self._before)


class _Fuser:
    def __init__(self, body: Body, program: Program, reads: tuple[Read, ...], exact_math: bool) -> None:
        self.body, self.program, self.exact_math = body, program, exact_math
        self.phases = Phases(body, program, exact_math)
        self.text = BindText()
        self.memory = FusedMemory(body, program, reads, self.phases, self.text)
        self.products = Products(self.memory, program)
        self.kernels: list[GeneratedKernel] = []
        self.gradients = {  # of operands whose rows kernels find themselves: slot -> value
            slot: value.index
            for slot, value in enumerate(program.returns or ())
            if value is not None and self.memory.is_indexed(slot)
        }
        self.scatters = tuple(self.gradients)

    def emit(self, name: str) -> Fused:
        wanted, level = self.products.as_tensors(), self.phases.level
        stored = [i for i in self.program.ops if i in self.phases.soft and i in wanted]
        for phase in range(max(level.values(), default=0) + 1):
            self._emit_kernel(phase, [i for i in stored if level[i] == phase])
            for index in self.phases.hard:
                if level[index] == phase and not self.products.take(index):
                    self.products.emit_waiting()
                    self._emit_torch(index)
            self.products.emit_waiting()
        self._emit_rest()
        return self._bind(name)

    def _emit_kernel(self, phase: int, stored: Sequence[int]) -> None:
        """One kernel that stores soft values (see `phases`), and adds the gradients of this phase to their rows."""
        memory = self.memory
        loops = Loops(self.body, memory.find, self.exact_math)
        homes: dict[int, Place | str] = {}
        for index in stored:
            spec = self.body.spec(Val(index))
            width, dtype = math.prod(spec.shape), DTYPES[spec.dtype]
            places = memory.places.pop(index, ())
            for place in places:
                loops.store(index, memory.own(place, width, dtype))
            if not places:
                memory.put_in_scratch(index, spec.shape)
                loops.store(index, memory.memory(index, "scratch", width, dtype))
            homes[index] = places[0] if places else "scratch"
        for slot, index in list(self.gradients.items()):
            if index in self.phases.soft and self.phases.level[index] == phase:
                self._scatter(loops, slot)
        self._run(loops)
        memory.home.update(homes)  # from now on they are read, not computed

    def _emit_torch(self, index: int) -> None:
        value, op, memory, tensors = Val(index), self.body.op(index), self.memory, self.memory.tensors
        assert op is not None
        if index in memory.blocks:
            self.products.emit_blocks(index, op)
            return
        code = batched(tensors, op) if self.body.is_row[index] else shared(tensors, op)
        shape = code.form or tensors.own_form(index)
        home = memory.goes_to(index)
        if home is not None:
            memory.home[index] = home
            result = tensors.form(value, shape)
            self.text.launch.line(code.writing(result) if code.out else f"{result}.copy_({code.text})")
        elif code.out and isinstance(op.spec, Spec) and self.body.is_row[index] and shape[:1] != ("flat",):
            memory.home[index] = "scratch"
            memory.put_in_scratch(index, shape)
            self.text.launch.line(code.writing(tensors.form(value, shape)))
        else:
            name = tensors.assign(value, code.text, pinned=True)
            tensors.memory[index] = Forms({shape: name}, pinned=True)

    def _emit_rest(self) -> None:
        """What is left: results not stored yet, such as copies of inputs, gradients of operands, and sums."""
        memory, line = self.memory, self.text.launch.line
        loops = Loops(self.body, memory.find, self.exact_math)
        for index, places in memory.places.items():
            spec = self.body.spec(Val(index))
            for place in places:
                if spec.dtype in DTYPES:
                    loops.store(index, memory.own(place, math.prod(spec.shape), DTYPES[spec.dtype]))
                else:
                    line(f"{memory.buffer(place)}.narrow(0, w, B).copy_({memory.tensors.raw(Val(index))})")
        for slot in list(self.gradients):
            self._scatter(loops, slot)
        self._run(loops)
        for slot, value in enumerate(self.program.returns or ()):
            if value is not None and not memory.is_indexed(slot):
                add = self.text.bound("add_gradient", "x.add_gradient")
                line(f"{add}(b, {slot}, {memory.tensors.raw(value)})")
        for key, value in self.program.sums:
            sums = self.text.bound("sums", "x.sums")
            line(f"{memory.tensors.object(add_up)}({sums}, {key}, {memory.tensors.row(value)})")

    def _scatter(self, loops: Loops, slot: int) -> None:
        spec = self.body.rows[slot]
        target = self.text.bound(f"gradient{slot}", f"x.gradient({slot})")
        width, dtype = math.prod(spec.shape), DTYPES[spec.dtype]
        start, way = self.memory.of_slot("starts", slot), self.memory.of_slot("ways", slot)
        loops.scatter(self.gradients.pop(slot), RowMemory(target, "index", width, dtype, start, way))

    def _run(self, loops: Loops) -> None:
        if not loops.is_empty:
            kernel = loops.kernel()
            self.text.call(f"kernel{len(self.kernels)}", kernel.arguments)
            self.kernels.append(kernel)

    def _bind(self, name: str) -> Fused:
        source, kernels = self.text.source(), tuple(k.source for k in self.kernels)
        functions = compile_kernels(list(kernels), name)
        namespace = self.text.launch.namespace | {f"kernel{i}": f for i, f in enumerate(functions)}
        exec(compile(source, f"<{self.program.name} of {name}>", "exec"), namespace)
        counted, by_address = tuple(self.products.counted), self.memory.by_address
        return Fused(namespace["bind"], source, kernels, counted, self.scatters, by_address)
