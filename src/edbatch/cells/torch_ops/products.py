"""How matrix products and lookups run on whole batches. In: an op of a body. Out: its code, or None for vmap.

With a shared weight or table, all rows of a batch together are one GEMM or one gather, whatever their shape.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from edbatch.cells.body.body import Op, Val
from edbatch.cells.torch_ops.rule_types import Code, OperandNames


def mm(n: OperandNames, op: Op) -> Code:
    a, b = op.args
    (m, k), (_, width) = n.spec(a).shape, n.spec(b).shape
    if n.is_row(a) and n.is_row(b):
        return _two_rows(n, a, b)
    mm = n.object(torch.mm)
    if n.is_row(a):
        return Code(f"{mm}({n.flat(a, k)}, {n.raw(b)})", form=_flat(m, width), out="out")
    if width == 1:
        return Code(f"{mm}({n.flat(b, k)}, {n.raw(a)}.t())", form=(m,), out="out")
    return Code(f"{n.object(torch.bmm)}({n.raw(a)}.expand(B, {m}, {k}), {n.row(b)})", out="out")


def _two_rows(n: OperandNames, a: Val, b: Val) -> Code:
    """The product of two matrices that both differ per row. BLAS is slow with vectors: a matrix times a column takes
    four to eight times as long as a line times the transposed matrix, an outer product three times as long as by
    broadcasting.
    """
    (m, k), (_, width) = n.spec(a).shape, n.spec(b).shape
    if k == 1:
        return Code(f"{n.object(torch.mul)}({n.row(a)}, {n.row(b)})", out="out")
    if width == 1 and m > 1:
        return Code(f"{n.object(torch.bmm)}({n.row(b, (1, k))}, {n.row(a)}.mT)", form=(1, m), out="out")
    return Code(f"{n.object(torch.bmm)}({n.row(a)}, {n.row(b)})", out="out")


def _flat(lines: int, width: int) -> tuple[Any, ...]:
    return (width,) if lines == 1 else ("flat", width)


def addmm(n: OperandNames, op: Op) -> Code | None:
    bias, a, b = op.args
    (m, k), width = n.spec(a).shape, n.spec(b).shape[1]
    shape = n.spec(bias).shape
    extra = "".join(f", {key}={value!r}" for key, value in op.kwargs)
    one_gemm = n.is_row(a) and not n.is_row(b) and (m == 1 or shape in ((m, width), (width,), (1, width)))
    if (
        one_gemm
        and (not n.is_row(bias) or math.prod(shape) == m * width)
        and (n.is_row(bias) or shape != (m, width) or m == 1)
    ):
        first = n.flat(bias, width) if n.is_row(bias) else n.raw(bias)
        text = f"{n.object(torch.addmm)}({first}, {n.flat(a, k)}, {n.raw(b)}{extra})"
        return Code(text, form=_flat(m, width), out="out")
    if n.is_row(a) and n.is_row(b):
        first = n.row(bias, (1,) * (2 - len(shape)) + shape) if n.is_row(bias) else n.raw(bias)
        return Code(f"{n.object(torch.baddbmm)}({first}, {n.row(a)}, {n.row(b)}{extra})", out="out")
    return None


def bmm(n: OperandNames, op: Op) -> Code:
    return Code(f"{n.object(torch.matmul)}({', '.join(n.raw(v) for v in op.args)})", out="out")


def embedding(n: OperandNames, op: Op) -> Code | None:
    return _lookup(n, op.args[0], op.args[1])


def _lookup(n: OperandNames, table: Val, index: Val) -> Code | None:
    if n.is_row(table) or len(n.spec(table).shape) != 2 or not n.is_row(index):
        return None
    count = math.prod(n.spec(index).shape)
    at = n.row(index, ()) if count == 1 else f"{n.row(index)}.reshape(-1)"
    width = n.spec(table).shape[1]
    return Code(f"{n.object(torch.index_select)}({n.raw(table)}, 0, {at})", form=_flat(count, width), out="out")


def index_select(n: OperandNames, op: Op) -> Code | None:
    x, dim, index = op.args
    if n.is_row(index) or not n.spec(x).shape:
        return _lookup(n, x, index) if dim == 0 and len(n.spec(index).shape) == 1 else None
    return Code(
        f"{n.object(torch.index_select)}({n.row(x)}, {dim % len(n.spec(x).shape) + 1}, {n.raw(index)})", out="out"
    )


def index(n: OperandNames, op: Op) -> Code | None:
    x, indices = op.args
    if n.is_row(x) or any(i is None for i in indices):
        return None
    rank = max(len(n.spec(i).shape) for i in indices)
    texts = []
    for i in indices:
        shape = n.spec(i).shape
        texts.append(n.row(i, (1,) * (rank - len(shape)) + shape) if n.is_row(i) else n.raw(i))
    return Code(f"{n.object(operator.getitem)}({n.raw(x)}, ({', '.join(texts)},))")
