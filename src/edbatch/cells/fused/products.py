"""Matrix products in a fused program: where possible by MKL, all products of a phase in one call, else by torch.

In: a product of a body. Out: lines of the program. A product that can run without torch waits for others of its phase
(`take`). Where its operands and its result lie is written down as numbers: the fields of `Product` and `RowProduct` in
`_blas.c`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from edbatch.cells.body.body import Op, Val
from edbatch.cells.body.program import Place, Program
from edbatch.cells.body.rewriting import is_product
from edbatch.cells.fused.blocks import find_blocks
from edbatch.cells.fused.library import blas
from edbatch.cells.fused.loops.kernel_text import RowMemory
from edbatch.cells.fused.memory import FusedMemory
from edbatch.cells.fused.row_products import Matrix, find_row_products


class Products:
    """`counted`: the products that run without torch, as (how many blocks, length, columns)."""

    def __init__(self, memory: FusedMemory, program: Program) -> None:
        self._memory, self._program, self._body, self._text = memory, program, memory.body, memory.text
        found = find_row_products(self._body, memory.phases, memory.places)
        self._by_rows = {index: p for index, p in found.items() if blas.gemm(self._body.spec(Val(index)).dtype)}
        memory.blocks.update(find_blocks(self._body, program, memory.phases.soft, self.as_tensors()))
        self.counted: list[tuple[int, int, int]] = []
        self._waiting: dict[int, list[str]] = {}  # products that will run together: their numbers
        self._waiting_rows: dict[int, list[list[str]]] = {}  # the same, of `row_products`

    def as_tensors(self) -> set[int]:
        """The values that must lie in memory row by row: results, and what torch ops and products read."""
        found = self._memory.phases.read_by_torch(but_for=self._by_rows) | set(self._memory.places)
        for product in self._by_rows.values():
            found |= {matrix.base for *pair, _ in product.pairs for matrix in pair}
        for slot, value in enumerate(self._program.returns or ()):
            if value is not None and not self._memory.is_indexed(slot):
                found.add(self._memory.phases.root(value.index))
        return found

    def take(self, index: int) -> bool:
        """Let a product run with others of its phase, without torch; False if that cannot be done."""
        return self._take_product(index) or self._take_by_rows(index)

    def _wait_for(self, *values: int) -> None:
        """If a value is the result of a waiting product, run the waiting products now."""
        if any(self._memory.phases.root(value) in (*self._waiting, *self._waiting_rows) for value in values):
            self.emit_waiting()

    def _take_product(self, index: int) -> bool:
        """Rows times shared weights; see `blas`."""
        op = self._body.op(index)
        if op is None or not (index in self._memory.blocks or is_product(self._body, index)):
            return False
        if not blas.gemm(self._body.spec(Val(index)).dtype) or 0 in self._body.spec(op.args[1]).shape:
            return False
        row = op.args[0].index
        self._wait_for(row)
        if len(self._waiting) == blas.MOST_PRODUCTS:
            self.emit_waiting()
        count, length, step, per_piece = self._parts_of_rows(index, op)
        base, offset = self._memory.behind_ranges(row)
        memory = None if base in self._memory.blocks else self._memory.find(base)
        if memory is None or count > blas.MOST_BLOCKS // blas.MOST_PRODUCTS:
            return False
        assert offset + (count // per_piece - 1) * step + length <= memory.width, "a product reads beyond its rows"
        width = math.prod(self._body.spec(Val(index)).shape) // count
        text = f"x.weights({self._memory.shared(op.args[1])}, {self._num_blocks(index, op)})"
        weights = self._text.bound(f"weights{index}", text)
        numbers = map(str, (memory.width, offset, step, per_piece, count, length, width))
        self._waiting[index] = [
            *self._operand(base, memory), *numbers, *[f"{weights}[{i}]" for i in range(4)], *self._result(index)
        ]  # fmt: skip
        self.counted.append((count, length, width))
        return True

    def _take_by_rows(self, index: int) -> bool:
        """Products of matrices that differ per row; see `row_products`."""
        product = self._by_rows.get(index)
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

    def emit_waiting(self) -> None:
        """Run the waiting products: one call for each dtype and kind."""
        by_dtype: dict[torch.dtype, list[list[str]]] = {}
        for index, numbers in self._waiting.items():
            by_dtype.setdefault(self._body.spec(Val(index)).dtype, []).append(numbers)
        for dtype, products in by_dtype.items():
            self._call_products(blas.products, dtype, products)
        by_dtype = {}
        for index, pairs in self._waiting_rows.items():
            by_dtype.setdefault(self._body.spec(Val(index)).dtype, []).extend(pairs)
        for dtype, pairs in by_dtype.items():
            self._call_products(blas.row_products, dtype, pairs)
        self._waiting, self._waiting_rows = {}, {}

    def _call_products(self, function: Any, dtype: torch.dtype, products: list[list[str]]) -> None:
        gemm = f"{self._text.launch.object(blas.gemm)}({self._text.launch.object(dtype)})"
        numbers = [number for product in products for number in product]
        self._text.call(self._text.launch.object(function), [gemm, str(dtype.itemsize), str(len(products)), *numbers])

    def _num_blocks(self, index: int, op: Op) -> int:
        """Into how many blocks of columns the weights of a product are divided."""
        columns = self._body.spec(op.args[1]).shape[-1]
        return columns // self._memory.blocks.get(index, columns)

    def _parts_of_rows(self, index: int, op: Op) -> tuple[int, int, int, int]:
        """Of an op as a batched product: the number of single products, the length of the slice of a row that each
        reads, the distance from one slice to the next, and how many products read the same slice."""
        *counts, length, _ = self._body.spec(op.args[1]).shape
        count = self._num_blocks(index, op)
        return (counts[0] * count, length, length, count) if counts else (count, length, 0, 1)

    def _operand(self, base: int, memory: RowMemory) -> list[str]:
        """Where the rows of a value lie: the first fields of `Product` in `_blas.c`."""
        if memory.rows != "index":
            return [blas.ROWS[memory.rows], memory.name, *["0"] * 4]
        home = self._memory.home[base]
        assert isinstance(home, Place)
        rows = self._text.bound(f"rows{home.number}", f"x.rows({home.number})")
        return [f"{rows}[{i}]" for i in range(6)]

    def _matrix(self, matrix: Matrix) -> list[str]:
        """Where the matrices of an operand lie: the fields of `Matrix` in `_blas.c`."""
        if not self._body.is_row[matrix.base]:
            text = f"x.matrix({self._memory.shared(Val(matrix.base))}, {matrix.offset})"
            found = self._text.bound(f"matrix{matrix.base}_{matrix.offset}", text)
            assert not matrix.is_transposed, "that is for the tensor to say"
            return [blas.ROWS["shared"], f"{found}[0]", "0", "0", "0", f"{found}[1]", f"{found}[2]"]
        memory = self._memory.find(matrix.base)
        assert memory is not None, "rows of matrices lie in memory"
        numbers = map(str, (memory.width, matrix.offset, matrix.stride, int(matrix.is_transposed)))
        return [blas.ROWS[memory.rows], memory.name, memory.start or "0", *numbers]

    def _result(self, index: int) -> tuple[str, str]:
        """The last fields of `Product`: the address of the result, and "1" if that memory is for all batches."""
        home, shape = self._memory.goes_to(index), self._body.spec(Val(index)).shape
        self._memory.home[index] = home or "scratch"
        if home is not None:
            return self._memory.own(home, 0, "").name, "1"
        self._memory.put_in_scratch(index, (math.prod(shape),) if index in self._memory.blocks else shape)
        return self._memory.scratch_address(index), "0"

    def emit_blocks(self, index: int, op: Op) -> None:
        """A product as blocks of columns, or several of one shape as one batched product, by torch; see `blocks`."""
        count, length, step, per_piece = self._parts_of_rows(index, op)
        assert per_piece == 1 or step == 0, "see `blocks`"
        blocks = self._memory.tensors.raw(op.args[1])
        if step == 0:
            text = f"{blocks}.unflatten(1, ({count}, -1)).transpose(0, 1)"
            blocks = self._text.bound(f"{blocks}_blocks{count}", text)
        width = self._memory.blocks[index]
        self._memory.home[index] = "scratch"
        self._memory.put_in_scratch(index, (count * width,))
        result = f"{self._memory.scratch_tensor(index)}.as_strided(({count}, B, {width}), (B * {width}, {width}, 1))"
        rows = self._spread(op.args[0], count, length, step)
        self._text.launch.line(f"{self._text.launch.object(torch.bmm)}({rows}, {blocks}, out={result})")

    def _spread(self, row: Val, count: int, length: int, step: int) -> str:
        """Slices of rows, `step` elements apart, as [count, B, length], if possible without a copy."""
        memory = self._memory
        base, begin = memory.behind_ranges(row.index)
        home = memory.home.get(base)
        if base in memory.blocks or home is None or (isinstance(home, Place) and home.group in ("rows", "pro")):
            if step:
                return f"{memory.tensors.row(row, (count, length))}.transpose(0, 1)"
            return f"{memory.tensors.flat(row, length)}.expand({count}, B, {length})"
        buffer, first = (memory.buffer(home), "w * ") if isinstance(home, Place) else (memory.scratch_tensor(base), "")
        width = math.prod(self._body.spec(Val(base)).shape)
        offset = self._text.bound(f"at_{buffer}_{begin}", f"{buffer}.storage_offset() + {begin}")
        offset = f"{offset} + {first}{width}" if first else offset
        return f"{buffer}.as_strided(({count}, B, {length}), ({step}, {width}, 1), {offset})"
