"""Sums over all rows of a mini-batch, such as gradients of weights: the rules of the `Across` ops of a body.

In: an op on values that differ between rows. Out: the code of a call that gives one shared tensor. It runs in `finish`,
once per mini-batch, where B is the number of all rows.
"""

from __future__ import annotations

from typing import Any

import torch

from edbatch.cells.body.body import Across, Op
from edbatch.cells.torch_ops.rule_types import Code, OperandNames, Rule

aten = torch.ops.aten
TOGETHER = 32  # how many rows one product takes; measured: fewer are slower, more need memory


def _sum_rows(n: OperandNames, op: Op) -> Code:
    return Code(f"{n.row(op.args[0])}.sum(0)")


def _take_sum(n: OperandNames, op: Op) -> Code:
    return Code(f"{n.object(dict.__getitem__)}(sums, {op.args[0]})")


def _times_rows(n: OperandNames, op: Op) -> Code:
    return Code(f"{n.object(torch.mul)}({n.raw(op.args[0])}, B)")


def _sum_products(n: OperandNames, op: Op) -> Code:
    a, b = op.args
    left, right = n.flat(a, n.spec(a).shape[1]), n.flat(b, n.spec(b).shape[1])
    return Code(f"{n.object(torch.mm)}({left}.t(), {right})")


def _sum_batched_products(n: OperandNames, op: Op) -> Code:
    return Code(f"{n.object(torch.einsum)}('bhmk,bhkn->hmn', {n.row(op.args[0])}, {n.row(op.args[1])})")


def _sum_matrix_products(n: OperandNames, op: Op) -> Code:
    return Code(f"{n.object(sum_of_products)}({n.row(op.args[0])}, {n.row(op.args[1])})")


def sum_of_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The sum of left[i] @ right[i], many i in one product; `torch.addbmm` would launch one product for each."""
    if left.shape[1] < right.shape[2]:  # for BLAS, results with many rows are a tenth quicker than with many columns
        return sum_of_products(right.mT, left.mT).t()
    total = torch.bmm(left[:TOGETHER], right[:TOGETHER])
    for begin in range(TOGETHER, len(left), TOGETHER):
        rows = slice(begin, begin + TOGETHER)
        total[: len(left[rows])].baddbmm_(left[rows], right[rows])
    return total.sum(0)


def _sum_embedded(n: OperandNames, op: Op) -> Code:
    grad, index, size, padding = op.args
    width = n.spec(grad).shape[-1]
    at = f"{n.row(index)}.reshape(-1)"
    return Code(
        f"{n.object(aten.embedding_dense_backward.default)}({n.flat(grad, width)}, {at}, {size}, {padding}, False)"
    )


def _sparse_embedded(n: OperandNames, op: Op) -> Code:
    grad, index, size, padding = op.args
    width = n.spec(grad).shape[-1]
    at = f"{n.row(index)}.reshape(-1)"
    return Code(f"{n.object(sparse_rows)}({n.flat(grad, width)}, {at}, {size}, {padding})")


def sparse_rows(grad: torch.Tensor, index: torch.Tensor, size: int, padding: int) -> torch.Tensor:
    """The gradient of a lookup with sparse=True, in memory of its own; lookups of the padding row add zeros."""
    grad = grad.masked_fill((index == padding).unsqueeze(1), 0) if padding >= 0 else grad.clone()
    return torch.sparse_coo_tensor(index.clone().unsqueeze(0), grad, (size, grad.shape[1]), check_invariants=False)


def _sum_put(n: OperandNames, op: Op) -> Code:
    target, indices, values = op.args
    at = ", ".join(f"{n.every(i)}.reshape(-1)" for i in indices)
    rest = n.spec(target).shape[len(indices) :]
    flat = f"{n.row(values)}.reshape({', '.join(['-1', *map(str, rest)])})"
    return Code(f"{n.object(torch.index_put)}({n.raw(target)}, ({at},), {flat}, True)")


ACROSS: dict[Any, Rule] = {
    Across("sum_rows"): _sum_rows, Across("take_sum"): _take_sum, Across("times_rows"): _times_rows,
    Across("sum_products"): _sum_products, Across("sum_batched_products"): _sum_batched_products,
    Across("sum_matrix_products"): _sum_matrix_products,
    Across("sum_embedded"): _sum_embedded, Across("sparse_embedded"): _sparse_embedded, Across("sum_put"): _sum_put,
}  # fmt: skip
