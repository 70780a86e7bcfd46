"""A floor for the time of a mini-batch: the matrix products of its batches, and nothing else.

In: an `Execution` that has run. Out: every product of its cells, in the order in which they run, and `ProductsAlone`,
which computes them into memory that was made before, by a plain torch.mm each (a cell may do better: see
`cells/fused/blocks.py`). Weights lie in memory as the cells' do. All products of one op use the same memory, as in a
cell's scratch memory, so that it is in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edbatch.cells.body.body import Body, Op, Val
from edbatch.cells.body.linear import MATRICES, PRODUCT, PRODUCTS
from edbatch.cells.body.program import Program
from edbatch.cells.body.split import prologue
from edbatch.cells.eager import EagerKernel
from edbatch.cells.in_order import InOrder
from edbatch.runtime.execution import Execution

aten = torch.ops.aten


class Product(NamedTuple):
    """`number` products [rows, inner] × [inner, columns]; operands marked as `turned` are transposed in memory."""

    number: int
    rows: int
    inner: int
    columns: int
    dtype: torch.dtype
    turned: tuple[bool, bool] = (False, False)

    @property
    def num_flops(self) -> int:
        return 2 * self.number * self.rows * self.inner * self.columns


class Launched(NamedTuple):
    """A product and its op: the number of the type, the name of the program, the number of the op."""

    op: tuple[int, str, int]
    product: Product


def launched(execution: Execution) -> list[Launched]:
    """The products of a mini-batch: of forward and, in training, of backward and the gradients of weights."""
    programs = [_ProgramsOfType(execution, t) for t in range(len(execution.types))]
    batches = list(enumerate(execution.operands.batch_types))
    found = [item for p in programs for item in p.products("prologue", 1)]
    found += [item for b, t in batches for item in programs[t].products("forward", execution.sizes[b])]
    found += [item for b, t in reversed(batches) for item in programs[t].products("backward", execution.sizes[b])]
    return found + [item for p, size in zip(programs, execution.type_sizes, strict=True)
                    for item in p.products("finish", size)]  # fmt: skip


def left_out(execution: Execution) -> list[str]:
    """The types whose products are unknown, since their functions are called as the user wrote them."""
    return [node_type.name for node_type in execution.types if isinstance(node_type.kernel, EagerKernel | InOrder)]


class _ProgramsOfType:
    """The programs of a type of node that ran; kernels without a body have none."""

    def __init__(self, execution: Execution, t: int) -> None:
        self.type = t
        self.programs: dict[str, tuple[Body, Program]] = {}
        split = execution.programs[t].split
        if split is not None:
            head = split.body.head()
            self.programs["prologue"] = head, prologue(head)
            named = {"forward": split.forward, "backward": split.backward, "finish": split.finish}
            self.programs |= {name: (split.body, program) for name, program in named.items() if program is not None}

    def products(self, name: str, num_rows: int) -> Iterator[Launched]:
        if name in self.programs:
            body, program = self.programs[name]
            for index, product in products_of(body, program, num_rows):
                yield Launched((self.type, name, index), product)


def products_of(body: Body, program: Program, num_rows: int) -> Iterator[tuple[int, Product]]:
    """The products of a program on so many rows, each with the number of its op."""
    for index in program.ops:
        op = body.op(index)
        assert op is not None
        if op.target in _RULES:
            product = _RULES[op.target](body, op, num_rows)
            if product is None:
                continue
            if op.target is aten.bmm.default and not body.is_row[op.args[1].index]:  # one product per shared matrix
                yield from [(index, product._replace(number=1))] * product.number
            else:
                yield index, product


def _matrices(body: Body, op: Op, num_rows: int) -> Product | None:
    """Rows times a shared matrix are one product over all rows; a shared matrix times rows is one product per row; see
    `cells/torch_ops/products.py`."""
    left, right = op.args[-2:]
    (m, k), n = body.spec(left).shape, body.spec(right).shape[1]
    dtype, are_rows = body.spec(left).dtype, (body.is_row[left.index], body.is_row[right.index])
    if are_rows == (True, True) and k == 1:
        return None  # an outer product runs elementwise
    if are_rows == (True, True) and n == 1 and m > 1:
        return Product(num_rows, 1, k, m, dtype, (False, not _is_turned(body, left)))
    if are_rows == (True, True):
        return Product(num_rows, m, k, n, dtype)
    if are_rows == (False, True) and n > 1:
        return Product(num_rows, m, k, n, dtype)
    if are_rows == (False, True):
        return Product(1, num_rows * n, k, m, dtype, (False, not _is_turned(body, left)))
    return Product(1, num_rows * m if are_rows[0] else m, k, n, dtype, (False, _is_turned(body, right)))


def _lists_of_matrices(body: Body, op: Op, num_rows: int) -> Product:
    left, right = op.args[-2:]
    (count, m, k), n = body.spec(left).shape, body.spec(right).shape[2]
    dtype, are_rows = body.spec(left).dtype, (body.is_row[left.index], body.is_row[right.index])
    if are_rows == (True, False):
        return Product(count, num_rows * m, k, n, dtype, (False, _is_turned(body, right)))
    return Product(count * (num_rows if any(are_rows) else 1), m, k, n, dtype)


def _summed(body: Body, op: Op, num_rows: int) -> Product:
    """The sum over all rows of leftᵀ × right."""
    (height, m), n = body.spec(op.args[0]).shape, body.spec(op.args[1]).shape[1]
    return Product(1, m, num_rows * height, n, body.spec(op.args[0]).dtype, (True, False))


def _summed_matrices(body: Body, op: Op, num_rows: int) -> Product:
    """The sum over all rows of left × right, both matrices; transposed if that makes the result high, not wide."""
    (m, k), n = body.spec(op.args[0]).shape, body.spec(op.args[1]).shape[1]
    return Product(num_rows, max(m, n), k, min(m, n), body.spec(op.args[0]).dtype)


def _summed_lists(body: Body, op: Op, num_rows: int) -> Product:
    (count, m, k), n = body.spec(op.args[0]).shape, body.spec(op.args[1]).shape[2]
    return Product(count, m, num_rows * k, n, body.spec(op.args[0]).dtype)


def _is_turned(body: Body, value: Val) -> bool:
    op = body.op(value)
    return op is not None and op.target is aten.permute.default


_RULES: dict[Any, Callable[[Body, Op, int], Product | None]] = {
    aten.mm.default: _matrices, aten.addmm.default: _matrices,
    aten.bmm.default: _lists_of_matrices, aten.baddbmm.default: _lists_of_matrices,
    PRODUCT: _summed, PRODUCTS: _summed_lists, MATRICES: _summed_matrices,
}  # fmt: skip


class ProductsAlone:
    """Computes products, one after the other, into memory that was made before. Every op has its own memory."""

    def __init__(self, found: Iterable[Launched]) -> None:
        by_op: dict[tuple[int, str, int], list[Product]] = {}
        found = list(found)
        for op, product in found:
            by_op.setdefault(op, []).append(product)
        memory = {op: _ProductMemory(products) for op, products in by_op.items()}
        self.calls = [memory[op].call(product) for op, product in found]

    def __call__(self) -> None:
        with torch.inference_mode():
            for multiply, left, right, result in self.calls:
                multiply(left, right, out=result)


class _ProductMemory:
    """The operands and the result of an op, as large as its largest product needs."""

    def __init__(self, products: Sequence[Product]) -> None:
        dtype = products[0].dtype
        self.left = torch.randn(max(p.number * p.rows * p.inner for p in products), dtype=dtype)
        self.right = torch.randn(max(p.number * p.inner * p.columns for p in products), dtype=dtype)
        self.result = torch.empty(max(p.number * p.rows * p.columns for p in products), dtype=dtype)

    def call(self, p: Product) -> tuple[Callable[..., Tensor], Tensor, Tensor, Tensor]:
        left = _matrix(self.left, p.number, p.rows, p.inner, p.turned[0])
        right = _matrix(self.right, p.number, p.inner, p.columns, p.turned[1])
        result = _matrix(self.result, p.number, p.rows, p.columns)
        return (torch.mm, left[0], right[0], result[0]) if p.number == 1 else (torch.bmm, left, right, result)


def _matrix(memory: Tensor, count: int, height: int, width: int, is_turned: bool = False) -> Tensor:
    """The first numbers of a memory as matrices."""
    numbers = memory[: count * height * width]
    return numbers.view(count, width, height).mT if is_turned else numbers.view(count, height, width)
