"""Fused emission: a program of a cell as few kernels. Elementwise ops run in generated loops, the others as torch ops.

In: a body and a `Program`. Out: a `Fused`: a function that, bound to the memory of one mini-batch, launches batch b.

Ops fall into phases, see `phases`. Kernel p stores what the torch ops of phase p read, and every result that is known
by then. Operands are gathered inside the kernels, row by row; results and saved values are written where they belong;
gradients of operands are added to the rows they came from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from edbatch.cells import blas
from edbatch.cells.blocks import find_blocks
from edbatch.cells.body import Body, Op, Val
from edbatch.cells.emit import Forms, add_up
from edbatch.cells.fused_memory import FusedMemory
from edbatch.cells.kernel import Reads
from edbatch.cells.kernel_text import FIRST_ARGUMENTS, Kernel, Memory
from edbatch.cells.loops import Loops
from edbatch.cells.native import compile_kernels
from edbatch.cells.phases import Phases
from edbatch.cells.pointwise import DTYPES
from edbatch.cells.program import Place, Program
from edbatch.cells.row_products import Matrix, find_row_products
from edbatch.cells.rules import batched, shared
from edbatch.cells.walking import is_product
from edbatch.spec import Spec

aten = torch.ops.aten


@dataclass(frozen=True)
class Fused:
    """`bind(binding)` gives `launch(b)`; `source` is its Python, `kernels` that of the loops it calls.

    products: those that run without torch, as (how many blocks, [B, length] × [length, columns] each).
    scatters: the operands whose gradients kernels write, row by row.
    """

    bind: Callable[[Any], Callable[[int], None]]
    source: str
    kernels: tuple[str, ...]
    products: tuple[tuple[int, int, int], ...]
    scatters: tuple[int, ...]


def fuse(body: Body, program: Program, reads: Reads, exact_math: bool, name: str) -> Fused:
    """Emit a program.

    Args:
        reads: how each row operand is found.
        name: of the cell, for the message while its kernels are compiled.
    """
    return _Fuser(body, program, reads, exact_math).emit(name)


class _Fuser(FusedMemory):
    def __init__(self, body: Body, program: Program, reads: Reads, exact_math: bool) -> None:
        super().__init__(body, program, reads, Phases(body, program, exact_math))
        self.exact_math, self.level = exact_math, self.phases.level
        self.kernels: list[Kernel] = []
        self.waiting: dict[int, list[str]] = {}  # products that run together next: their numbers, see `_blas.c`
        self.waiting_rows: dict[int, list[list[str]]] = {}  # the same of products of matrices of rows
        self.products: list[tuple[int, int, int]] = []
        self.places: dict[int, list[Place]] = {}  # where a value must end
        for place, value in program.dests.items():
            self.places.setdefault(self.phases.behind_reshapes(value.index), []).append(
                place._replace(shape=body.spec(value).shape)
            )
        self.gradients = {  # of operands whose rows kernels know: slot -> value
            slot: value.index
            for slot, value in enumerate(program.returns or ())
            if value is not None and self._is_indexed(slot)
        }
        self.scatters = tuple(self.gradients)
        self.row_products = {
            index: product
            for index, product in find_row_products(body, self.phases, self.places).items()
            if blas.gemm(body.spec(Val(index)).dtype)
        }
        self.blocks = find_blocks(body, program, self.soft, self._as_tensors())

    def _as_tensors(self) -> set[int]:
        """The values that must lie in memory row by row: results, and what torch ops read."""
        found = self.phases.read_by_torch(but_for=self.row_products) | set(self.places)
        for product in self.row_products.values():
            found |= {matrix.base for *pair, _ in product.pairs for matrix in pair}
        for slot, value in enumerate(self.program.returns or ()):
            if value is not None and not self._is_indexed(slot):
                found.add(self.phases.root(value.index))
        return found

    # ---- emission

    def emit(self, name: str) -> Fused:
        wanted = self._as_tensors()
        stored = [i for i in self.program.ops if i in self.soft and i in wanted]
        for phase in range(max(self.level.values(), default=0) + 1):
            self._emit_kernel(phase, [i for i in stored if self.level[i] == phase])
            for index in self.phases.hard:
                if self.level[index] == phase and not self._take_product(index) and not self._take_by_rows(index):
                    self._emit_products()
                    self._emit_torch(index)
            self._emit_products()
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
        self._run(loops)
        self.home.update(homes)  # from now on they are read, not computed

    def _emit_torch(self, index: int) -> None:
        value, op = Val(index), self.body.op(index)
        assert op is not None
        if index in self.blocks:
            self._emit_blocks(index, op)
            return
        code = batched(self, op) if self.body.is_row[index] else shared(self, op)
        shape = code.form or self._own_form(index)
        home = self._goes_to(index)
        if home is not None:
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
        count, length, step, per_piece, blocks = self._weights(index, op)
        assert per_piece == 1 or step == 0, "see `blocks`"
        width = self.blocks[index]
        self.home[index] = "scratch"
        self._scratch(index, (count * width,))
        result = f"{self._scratch_tensor(index)}.as_strided(({count}, B, {width}), (B * {width}, {width}, 1))"
        rows = self._spread(op.args[0], count, length, step)
        self.lines.append(f"{self.object(torch.bmm)}({rows}, {blocks}, out={result})")

    def _weights(self, index: int, op: Op) -> tuple[int, int, int, int, str]:
        """How many blocks a product has, how long a piece of a row is that it multiplies, how far the next one is from
        it, how many blocks multiply the same piece, and the weights as [count, length, width]."""
        weight, whole = op.args[1], self.raw(op.args[1])
        *counts, length, columns = self.body.spec(weight).shape
        width = self.blocks.get(index, columns)
        count = columns // width
        if counts and count == 1:
            return counts[0], length, length, 1, whole
        if counts:
            text = f"{whole}.unflatten(2, ({count}, {width})).transpose(1, 2).flatten(0, 1)"
            return counts[0] * count, length, length, count, self._bound(f"{whole}_blocks{count}", text)
        text = f"{whole}.unflatten(1, ({count}, {width})).transpose(0, 1)"
        return count, length, 0, 1, self._bound(f"{whole}_blocks{count}", text)

    def _take_product(self, index: int) -> bool:
        """Let a product run with others of its phase, without torch; False if that cannot be done, see `blas`."""
        op = self.body.op(index)
        if op is None or not (index in self.blocks or is_product(self.body, index)):
            return False
        if not blas.gemm(self.body.spec(Val(index)).dtype) or 0 in self.body.spec(op.args[1]).shape:
            return False
        row = op.args[0].index
        is_waited_for = self.phases.root(row) in (*self.waiting, *self.waiting_rows)
        if is_waited_for or len(self.waiting) == blas.MOST_PRODUCTS:
            self._emit_products()
        count, length, step, per_piece, blocks = self._weights(index, op)
        base, offset = self._behind_pieces(row)
        memory = None if base in self.blocks else self.find(base)
        if memory is None or count > blas.MOST_BLOCKS // blas.MOST_PRODUCTS:
            return False
        assert offset + (count // per_piece - 1) * step + length <= memory.width, "a product reads beyond its rows"
        width = math.prod(self.body.spec(Val(index)).shape) // count
        weights = self._bound(f"weights_{blocks}", f"x.weights({blocks})")
        numbers = map(str, (memory.width, offset, step, per_piece, count, length, width))
        self.waiting[index] = [
            *self._operand(base, memory), *numbers, *[f"{weights}[{i}]" for i in range(4)], *self._result(index)
        ]  # fmt: skip
        self.products.append((count, length, width))
        return True

    def _take_by_rows(self, index: int) -> bool:
        """Let a product run without torch of which every row has its own matrices; see `row_products`."""
        product = self.row_products.get(index)
        if product is None:
            return False
        operands = [matrix for *pair, _ in product.pairs for matrix in pair]
        if any(self.phases.root(matrix.base) in (*self.waiting, *self.waiting_rows) for matrix in operands):
            self._emit_products()
        m, n, pairs = product
        address, is_own = self._result(index)
        out = [is_own, address, "0", str(m * n), "0", str(n), "0"]
        self.waiting_rows[index] = [
            [*map(str, (m, n, length, int(i > 0))), *self._matrix(left), *self._matrix(right), *out]
            for i, (left, right, length) in enumerate(pairs)
        ]
        return True

    def _matrix(self, matrix: Matrix) -> list[str]:
        """Where the matrices of an operand lie: the fields of `Matrix` in `_blas.c`."""
        if not self.body.is_row[matrix.base]:
            whole = self.raw(Val(matrix.base))
            found = self._bound(f"matrix_{whole}_{matrix.offset}", f"x.matrix({whole}, {matrix.offset})")
            return ["3", f"{found}[0]", "0", "0", "0", f"{found}[1]", f"{found}[2]"]
        memory = self.find(matrix.base)
        assert memory is not None, "rows of matrices lie in memory"
        rows = {"local": "0", "own": "1", "index": "2"}[memory.rows]
        numbers = map(str, (memory.width, matrix.offset, matrix.stride, int(matrix.is_transposed)))
        return [rows, memory.name, memory.start or "0", *numbers]

    def _operand(self, base: int, memory: Memory) -> list[str]:
        """Where the rows of a value lie: the first fields of `Product` in `_blas.c`."""
        if memory.rows != "index":
            return [str(int(memory.rows == "own")), memory.name, *["0"] * 4]
        home = self.home[base]
        assert isinstance(home, Place)
        rows = self._bound(f"rows{home.number}", f"x.rows({home.number})")
        return [f"{rows}[{i}]" for i in range(6)]

    def _result(self, index: int) -> tuple[str, str]:
        """Where a product is to lie, and whether that is the memory of all batches: the last fields."""
        home, shape = self._goes_to(index), self.body.spec(Val(index)).shape
        self.home[index] = home or "scratch"
        if home is not None:
            return self._own(home, 0, "").name, "1"
        self._scratch(index, (math.prod(shape),) if index in self.blocks else shape)
        return self._scratch_address(index), "0"

    def _goes_to(self, index: int) -> Place | None:
        """The buffer that a hard value is computed into: its own place, or that of the only result that is made of it,
        element by element, which then overwrites it; None for scratch memory."""
        if places := self.places.get(index):
            return places.pop(0)
        is_one = isinstance(self.body.specs[index], Spec)
        last = self.phases.end_of_chain(index) if is_one and index not in self.blocks else -1
        if last not in self.places or self.places[last][0] in self.home.values():
            return None
        return self.places[last][0] if self.body.spec(Val(last)).dtype == self.body.spec(Val(index)).dtype else None

    def _emit_products(self) -> None:
        by_dtype: dict[torch.dtype, list[list[str]]] = {}
        for index, numbers in self.waiting.items():
            by_dtype.setdefault(self.body.spec(Val(index)).dtype, []).append(numbers)
        for dtype, products in by_dtype.items():
            self._call_products(blas.products, dtype, products)
        by_dtype = {}
        for index, pairs in self.waiting_rows.items():
            by_dtype.setdefault(self.body.spec(Val(index)).dtype, []).extend(pairs)
        for dtype, pairs in by_dtype.items():
            self._call_products(blas.row_products, dtype, pairs)
        self.waiting, self.waiting_rows = {}, {}

    def _call_products(self, function: Any, dtype: torch.dtype, products: list[list[str]]) -> None:
        gemm = f"{self.object(blas.gemm)}({self.object(dtype)})"
        numbers = [number for product in products for number in product]
        self._call(self.object(function), [gemm, str(dtype.itemsize), str(len(products)), *numbers])

    def _spread(self, row: Val, count: int, length: int, step: int) -> str:
        """Rows as [count, B, length] without a copy: pieces of them, `step` elements apart."""
        base, begin = self._behind_pieces(row.index)
        home = self.home.get(base)
        if base in self.blocks or home is None or (isinstance(home, Place) and home.group in ("rows", "pro")):
            if step:
                return f"{self.row(row, (count, length))}.transpose(0, 1)"
            return f"{self.flat(row, length)}.expand({count}, B, {length})"
        buffer, first = (self._scratch_tensor(base), "") if home == "scratch" else (self._buffer(home), "w * ")  # type: ignore[arg-type]
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
        self._run(loops)
        for slot, value in enumerate(self.program.returns or ()):
            if value is not None and not self._is_indexed(slot):
                add = self._bound(f"add{slot}", f"x.adder({slot})")
                self.lines.append(f"{add}(b, {self.raw(value)})")
        for key, value in self.program.sums:
            self.lines.append(f"{self.object(add_up)}({self._bound('sums', 'x.sums')}, {key}, {self.row(value)})")

    def _scatter(self, loops: Loops, slot: int) -> None:
        spec = self.body.rows[slot]
        target = self._bound(f"gradient{slot}", f"x.gradient({slot}).data_ptr()")
        width, dtype = math.prod(spec.shape), DTYPES[spec.dtype]
        memory = Memory(target, "index", width, dtype, f"x.start({slot})", f"x.way({slot})")
        loops.scatter(self.gradients.pop(slot), memory)

    def _run(self, loops: Loops) -> None:
        if not loops.is_empty:
            kernel = loops.kernel()
            self._call(f"kernel{len(self.kernels)}", kernel.arguments)
            self.kernels.append(kernel)

    def _call(self, function: str, arguments: Sequence[str]) -> None:
        """A kernel's arguments are written down once per mini-batch, but for addresses that are only known here."""
        later = {at: text for at, text in enumerate(arguments) if text.isidentifier() and text not in self.prelude}
        texts = ["0" if at in later else text for at, text in enumerate(arguments)]
        number = sum(name.startswith("given") for name in self.prelude)
        given = self._bound(f"given{number}", f"x.arguments({', '.join(texts)})")
        address = self._bound(f"p{number}", f"{given}.buffer_info()[0]")
        self.lines += [f"{given}[{FIRST_ARGUMENTS + at}] = {text}" for at, text in later.items()]
        self.lines.append(f"{function}(b, {address})")

    def _bind(self, name: str) -> Fused:
        before = "".join(f"    {k} = {text}\n" for k, text in self.prelude.items())
        lines = "".join(f"        {line}\n" for line in self.lines or ["pass"])
        sizes = "        B, w = n[b], own[b]\n" if re.search(r"\b[Bw]\b", lines) else ""
        source = (
            f"def bind(x):\n    n, own = x.sizes, x.own\n{before}    def launch(b):\n{sizes}{lines}"
            "    launch.memory = x  # addresses keep nothing alive\n    return launch\n"
        )
        functions = compile_kernels([k.source for k in self.kernels], name)
        namespace = dict(self.namespace) | {f"kernel{i}": f for i, f in enumerate(functions)}
        exec(compile(source, f"<{self.program.name} of {name}>", "exec"), namespace)
        kernels = tuple(k.source for k in self.kernels)
        return Fused(namespace["bind"], source, kernels, tuple(self.products), self.scatters)
