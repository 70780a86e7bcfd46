"""Products in a fused program: by MKL, all of a phase together, where that is possible, else by torch.

A product that may run without torch waits for others of its phase (`take`); what it reads and where its result lies is
written down as numbers, the fields of `Product` and `RowProduct` in `_blas.c`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from edbatch.cells.body.body import Body, Op, Val
from edbatch.cells.body.program import Place, Program
from edbatch.cells.body.rewriting import is_product
from edbatch.cells.fused.blocks import find_blocks
from edbatch.cells.fused.library import blas
from edbatch.cells.fused.loops.kernel_text import FIRST_ARGUMENTS, Memory
from edbatch.cells.fused.memory import FusedMemory
from edbatch.cells.fused.phases import Phases
from edbatch.cells.fused.row_products import Matrix, find_row_products
from edbatch.cells.kernel import Reads
from edbatch.spec import Spec


class FusedProducts(FusedMemory):
    def __init__(self, body: Body, program: Program, reads: Reads, phases: Phases) -> None:
        super().__init__(body, program, reads, phases)
        self.places: dict[int, list[Place]] = {}  # where a value must end
        for place, value in program.dests.items():
            self.places.setdefault(phases.behind_reshapes(value.index), []).append(
                place._replace(shape=body.spec(value).shape)
            )
        self.row_products = {
            index: product
            for index, product in find_row_products(body, phases, self.places).items()
            if blas.gemm(body.spec(Val(index)).dtype)
        }
        self.blocks = find_blocks(body, program, self.soft, self._as_tensors())
        self.products: list[tuple[int, int, int]] = []
        self._waiting: dict[int, list[str]] = {}  # products that run together next: their numbers
        self._waiting_rows: dict[int, list[list[str]]] = {}  # the same of products of matrices of rows
        self._calls: list[list[str]] = []  # the arguments of kernels and products, by call

    def _as_tensors(self) -> set[int]:
        """The values that must lie in memory row by row: results, and what torch ops and products read."""
        found = self.phases.read_by_torch(but_for=self.row_products) | set(self.places)
        for product in self.row_products.values():
            found |= {matrix.base for *pair, _ in product.pairs for matrix in pair}
        for slot, value in enumerate(self.program.returns or ()):
            if value is not None and not self._is_indexed(slot):
                found.add(self.phases.root(value.index))
        return found

    def _take(self, index: int) -> bool:
        """Let a product run with others of its phase, without torch; False if that cannot be done."""
        return self._take_product(index) or self._take_by_rows(index)

    def _wait_for(self, *values: int) -> None:
        """Products that others read run first."""
        if any(self.phases.root(value) in (*self._waiting, *self._waiting_rows) for value in values):
            self._emit_products()

    def _take_product(self, index: int) -> bool:
        """Rows times shared weights; see `blas`."""
        op = self.body.op(index)
        if op is None or not (index in self.blocks or is_product(self.body, index)):
            return False
        if not blas.gemm(self.body.spec(Val(index)).dtype) or 0 in self.body.spec(op.args[1]).shape:
            return False
        row = op.args[0].index
        self._wait_for(row)
        if len(self._waiting) == blas.MOST_PRODUCTS:
            self._emit_products()
        count, length, step, per_piece = self._pieces(index, op)
        base, offset = self._behind_pieces(row)
        memory = None if base in self.blocks else self.find(base)
        if memory is None or count > blas.MOST_BLOCKS // blas.MOST_PRODUCTS:
            return False
        assert offset + (count // per_piece - 1) * step + length <= memory.width, "a product reads beyond its rows"
        width = math.prod(self.body.spec(Val(index)).shape) // count
        text = f"x.weights({self._shared(op.args[1])}, {self._num_blocks(index, op)})"
        weights = self._bound(f"weights{index}", text)
        numbers = map(str, (memory.width, offset, step, per_piece, count, length, width))
        self._waiting[index] = [
            *self._operand(base, memory), *numbers, *[f"{weights}[{i}]" for i in range(4)], *self._result(index)
        ]  # fmt: skip
        self.products.append((count, length, width))
        return True

    def _take_by_rows(self, index: int) -> bool:
        """Matrices of which every row has its own; see `row_products`."""
        product = self.row_products.get(index)
        if product is None:
            return False
        m, n, pairs = product
        self._wait_for(*(matrix.base for *pair, _ in pairs for matrix in pair))
        address, is_own = self._result(index)
        out = [is_own, address, "0", str(m * n), "0", str(n), "0"]
        self._waiting_rows[index] = [
            [*map(str, (m, n, length, int(i > 0))), *self._matrix(left), *self._matrix(right), *out]
            for i, (left, right, length) in enumerate(pairs)
        ]
        return True

    def _emit_products(self) -> None:
        """Those that wait run now: one call for each dtype and kind."""
        by_dtype: dict[torch.dtype, list[list[str]]] = {}
        for index, numbers in self._waiting.items():
            by_dtype.setdefault(self.body.spec(Val(index)).dtype, []).append(numbers)
        for dtype, products in by_dtype.items():
            self._call_products(blas.products, dtype, products)
        by_dtype = {}
        for index, pairs in self._waiting_rows.items():
            by_dtype.setdefault(self.body.spec(Val(index)).dtype, []).extend(pairs)
        for dtype, pairs in by_dtype.items():
            self._call_products(blas.row_products, dtype, pairs)
        self._waiting, self._waiting_rows = {}, {}

    def _call_products(self, function: Any, dtype: torch.dtype, products: list[list[str]]) -> None:
        gemm = f"{self.object(blas.gemm)}({self.object(dtype)})"
        numbers = [number for product in products for number in product]
        self._call(self.object(function), [gemm, str(dtype.itemsize), str(len(products)), *numbers])

    def _num_blocks(self, index: int, op: Op) -> int:
        """Into how many blocks of columns the weights of a product are parted."""
        columns = self.body.spec(op.args[1]).shape[-1]
        return columns // self.blocks.get(index, columns)

    def _pieces(self, index: int, op: Op) -> tuple[int, int, int, int]:
        """How many products there are, how long a piece of a row is that one multiplies, how far the next piece is from
        it, and how many products multiply the same piece."""
        *counts, length, _ = self.body.spec(op.args[1]).shape
        count = self._num_blocks(index, op)
        return (counts[0] * count, length, length, count) if counts else (count, length, 0, 1)

    def _operand(self, base: int, memory: Memory) -> list[str]:
        """Where the rows of a value lie: the first fields of `Product` in `_blas.c`."""
        if memory.rows != "index":
            return [blas.ROWS[memory.rows], memory.name, *["0"] * 4]
        home = self.home[base]
        assert isinstance(home, Place)
        rows = self._bound(f"rows{home.number}", f"x.rows({home.number})")
        return [f"{rows}[{i}]" for i in range(6)]

    def _matrix(self, matrix: Matrix) -> list[str]:
        """Where the matrices of an operand lie: the fields of `Matrix` in `_blas.c`."""
        if not self.body.is_row[matrix.base]:
            text = f"x.matrix({self._shared(Val(matrix.base))}, {matrix.offset})"
            found = self._bound(f"matrix{matrix.base}_{matrix.offset}", text)
            assert not matrix.is_transposed, "that is for the tensor to say"
            return [blas.ROWS["shared"], f"{found}[0]", "0", "0", "0", f"{found}[1]", f"{found}[2]"]
        memory = self.find(matrix.base)
        assert memory is not None, "rows of matrices lie in memory"
        numbers = map(str, (memory.width, matrix.offset, matrix.stride, int(matrix.is_transposed)))
        return [blas.ROWS[memory.rows], memory.name, memory.start or "0", *numbers]

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
        last = self.phases.end_of_chain(index, self.places) if is_one and index not in self.blocks else -1
        if last not in self.places or self.places[last][0] in self.home.values():
            return None
        return self.places[last][0] if self.body.spec(Val(last)).dtype == self.body.spec(Val(index)).dtype else None

    def _emit_blocks(self, index: int, op: Op) -> None:
        """A product as blocks of columns, or products of one shape as one; see `blocks`."""
        count, length, step, per_piece = self._pieces(index, op)
        assert per_piece == 1 or step == 0, "see `blocks`"
        blocks = self.raw(op.args[1])
        if step == 0:
            text = f"{blocks}.unflatten(1, ({count}, -1)).transpose(0, 1)"
            blocks = self._bound(f"{blocks}_blocks{count}", text)
        width = self.blocks[index]
        self.home[index] = "scratch"
        self._scratch(index, (count * width,))
        result = f"{self._scratch_tensor(index)}.as_strided(({count}, B, {width}), (B * {width}, {width}, 1))"
        rows = self._spread(op.args[0], count, length, step)
        self.lines.append(f"{self.object(torch.bmm)}({rows}, {blocks}, out={result})")

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

    def _call(self, function: str, arguments: Sequence[str]) -> None:
        """A kernel's arguments are written down once per mini-batch, but for addresses that are only known here."""
        later = {at: text for at, text in enumerate(arguments) if text.isidentifier() and text not in self.prelude}
        first = self._num_given() + FIRST_ARGUMENTS
        self.lines += [f"given[{first + at}] = {text}" for at, text in later.items()]
        self.lines.append(f"{function}(b, p{len(self._calls)})")
        self._calls.append(["0" if at in later else text for at, text in enumerate(arguments)])

    def _num_given(self) -> int:
        return sum(FIRST_ARGUMENTS + len(arguments) for arguments in self._calls)

    def _given(self) -> list[str]:
        """Lines that write the arguments of all calls down, one behind the other."""
        if not self._calls:
            return ["given = ()"]
        first, addresses = 0, []
        for number, arguments in enumerate(self._calls):
            addresses.append(f"p{number} = p0 + {8 * first}" if number else "p0 = given.buffer_info()[0]")
            first += FIRST_ARGUMENTS + len(arguments)
        numbers = ", ".join(f"*head, {', '.join(arguments)}" for arguments in self._calls)
        return ["head = x.head", f"given = {self.object(array)}('q', ({numbers}))", *addresses]
