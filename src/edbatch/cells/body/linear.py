"""Which ops of a body are linear, and two uses of it. In: a body's draft. Out: further ops in the draft.

Outputs without a gradient have a zero tangent, and linear ops of zeros need not be computed (`without_tangents`). The
gradient of a shared input, such as a weight, is a sum over all rows of a mini-batch. It moves inwards through linear
ops until it meets a product of two values that differ between rows (`Summing`): the sum of such products over all rows
is one matrix product.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from edbatch.cells.body.body import VIEWS, Across, Body, Draft, Op, Val
from edbatch.cells.body.simplify import cast, permute, view
from edbatch.spec import Spec

aten = torch.ops.aten

SUM, TAKE, COUNT = Across("sum_rows"), Across("take_sum"), Across("times_rows")
PRODUCT, PRODUCTS, MATRICES = Across("sum_products"), Across("sum_batched_products"), Across("sum_matrix_products")
EMBED, SPARSE, PUT = Across("sum_embedded"), Across("sparse_embedded"), Across("sum_put")

# target -> the arguments, by place, in each of which the op is linear while the others stay fixed
LINEAR: dict[Any, tuple[int, ...]] = {
    **dict.fromkeys((aten.view.default, aten.permute.default, aten.expand.default, aten.neg.default), (0,)),
    **dict.fromkeys(
        (aten.slice.Tensor, aten.select.int, aten.slice_backward.default, aten.select_backward.default), (0,)
    ),
    **dict.fromkeys((aten.sum.dim_IntList, aten.mean.dim, aten.div.Tensor, aten.div.Scalar, aten.mul.Scalar), (0,)),
    **dict.fromkeys((aten.cumsum.default, aten.flip.default, aten.tril.default, aten.triu.default), (0,)),
    **dict.fromkeys((aten.gather.default, aten.index_select.default, aten.index.Tensor, aten._to_copy.default), (0,)),
    **dict.fromkeys((aten.sigmoid_backward.default, aten.tanh_backward.default, aten.threshold_backward.default), (0,)),
    **dict.fromkeys((aten.gelu_backward.default, aten.silu_backward.default, aten.elu_backward.default), (0,)),
    **dict.fromkeys((aten._softmax_backward_data.default, aten._log_softmax_backward_data.default), (0,)),
    **dict.fromkeys((aten.embedding_dense_backward.default, aten.leaky_relu_backward.default), (0,)),
    **dict.fromkeys((aten.mul.Tensor, aten.mm.default, aten.bmm.default), (0, 1)),
}
JOINT = {aten.add.Tensor, aten.sub.Tensor, aten.cat.default}  # linear in all tensor operands together


def without_tangents(draft: Draft, body: Body, absent: set[int]) -> list[Val | None]:
    """Adds to the draft the body's ops as they are when some tangents are zero.

    Returns for each value the one that stands for it now; None is zero. Ops that do not depend on the absent tangents
    stay as they are: a random op must not draw twice.
    """
    now: list[Val | None] = [None if i in absent else Val(i) for i in range(body.num_inputs)]
    for index, op in enumerate(body.ops, body.num_inputs):
        zeros = [v for v in op.operands if now[v.index] is None]
        if all(now[v.index] == v for v in op.operands):
            now.append(Val(index))
        elif not zeros:
            now.append(draft.add(op.replace(lambda v: now[v.index])))
        elif _vanishes(op, zeros):
            now.append(None)
        elif op.target in (aten.add.Tensor, aten.sub.Tensor) and isinstance(op.args[1], Val):
            now.append(_add_zero(draft, op, now))
        else:
            now.append(draft.add(op.replace(lambda v: now[v.index] or _zeros(draft, body.spec(v)))))
    return now


def _vanishes(op: Op, zeros: list[Val]) -> bool:
    if op.target in JOINT:
        return len(zeros) == len(op.operands)
    return any(op.args[place] in zeros for place in LINEAR.get(op.target, ()) if isinstance(op.args[place], Val))


def _add_zero(draft: Draft, op: Op, now: list[Val | None]) -> Val:
    """What is left of a sum (or difference) with one operand zero."""
    assert isinstance(op.spec, Spec)
    first, second = (now[v.index] for v in op.args)
    left = first or second
    assert left is not None
    scale = dict(op.kwargs).get("alpha", 1) * (-1 if op.target is aten.sub.Tensor else 1) if first is None else 1
    if scale != 1:
        left = draft.call(aten.mul.Scalar, left, scale, spec=draft.spec(left))
    left = cast(draft, left, op.spec.dtype)
    return left if draft.spec(left) == op.spec else draft.call(aten.expand.default, left, op.spec.shape, spec=op.spec)


def _zeros(draft: Draft, spec: Spec) -> Val:
    return draft.call(aten.full.default, spec.shape, 0, spec=spec, dtype=spec.dtype, device=spec.device)


class Summing:
    """Adds the ops to the draft that compute sums over all rows of a mini-batch.

    `available` are the row values that are stored anyway. Call `collect` for every gradient first, then `summed` for
    each. Afterwards `sums` are the row values that backward has to add up batch by batch as it computes them.
    """

    def __init__(self, draft: Draft, available: set[int]) -> None:
        self.draft, self.available = draft, available
        self.sums: list[Val] = []
        self._summed: dict[int, Val] = {}
        self._collected: set[int] = set()
        self._reached: dict[int, bool] = {}

    def collect(self, value: Val) -> None:
        """Finds the products that a gradient is made of: their operands will be stored."""
        if value.index in self._collected:
            return
        self._collected.add(value.index)
        product = self._product(value)
        if product is not None:
            found, _ = product
            self.available |= {base(self.draft, v).index for v in found.operands if self.draft.is_row[v.index]}
        else:
            for operand in self._operands(value):
                self.collect(operand)

    def summed(self, value: Val) -> Val:
        if value.index not in self._summed:
            self._summed[value.index] = self._plan(value)
        return self._summed[value.index]

    def _plan(self, value: Val) -> Val:
        draft, spec = self.draft, self.draft.spec(value)
        if not draft.is_row[value.index]:
            return draft.call(COUNT, value, spec=spec)
        product = self._product(value)
        if product is not None:
            found, finish = product
            total: Val = finish(draft.add(found))
            return total
        if self._is_available(value):
            return draft.call(SUM, value, spec=spec)
        op = draft.op(value)
        if op is not None and any(self._reaches(v) for v in self._operands(value)):
            joint = op.target in JOINT
            return draft.add(op.replace(lambda v: self.summed(v) if joint or draft.is_row[v.index] else v))
        if value not in self.sums:
            self.sums.append(value)
        return draft.call(TAKE, self.sums.index(value), spec=spec)

    def _is_available(self, value: Val) -> bool:
        return base(self.draft, value).index in self.available or value.index in self.available

    def _reaches(self, value: Val) -> bool:
        if value.index not in self._reached:
            done = self._product(value) is not None or self._is_available(value)
            self._reached[value.index] = done or any(self._reaches(v) for v in self._operands(value))
        return self._reached[value.index]

    def _operands(self, value: Val) -> list[Val]:
        """The row operands through which the sum over rows may move inwards; none if the op is not linear in them."""
        op = self.draft.op(value)
        rows = [v for v in op.operands if self.draft.is_row[v.index]] if op is not None else []
        if op is None or (op.target in JOINT and op.target is not aten.cat.default and not isinstance(op.args[1], Val)):
            return []
        if op.target in JOINT:
            return rows
        places = LINEAR.get(op.target, ())
        return rows if len(rows) == 1 and any(op.args[p] == rows[0] for p in places if p < len(op.args)) else []

    def _product(self, value: Val) -> tuple[Op, Any] | None:
        """If the value is a product of row values: the op that sums it over rows, and a function that makes the wanted
        value of that op's result."""
        op = self.draft.op(value)
        if op is None or op.target not in _PRODUCTS or not self.draft.is_row[value.index]:
            return None
        return _PRODUCTS[op.target](self.draft, op)


def base(draft: Draft, value: Val) -> Val:
    """The value behind views."""
    while (op := draft.op(value)) is not None and op.target in VIEWS:
        value = op.args[0]
    return value


def _rows(draft: Draft, *values: Val) -> bool:
    return all(draft.is_row[v.index] for v in values)


def _keep(value: Val) -> Val:
    return value


def _mm(draft: Draft, op: Op) -> tuple[Op, Any] | None:
    a, b = op.args
    if not _rows(draft, a, b):
        return None
    made = draft.op(b)
    if draft.spec(b).shape[0] > 1 and made is not None and made.target is aten.permute.default:
        return Op(MATRICES, (a, b), (), op.spec), _keep  # as one product, both would have to be copied, transposed
    return Op(PRODUCT, (permute(draft, a, (1, 0)), b), (), op.spec), _keep


def _bmm(draft: Draft, op: Op) -> tuple[Op, Any] | None:
    return (Op(PRODUCTS, op.args, (), op.spec), _keep) if _rows(draft, *op.args) else None


def _mul(draft: Draft, op: Op) -> tuple[Op, Any] | None:
    """An outer product: each dimension belongs to one operand only."""
    a, b = op.args
    if not isinstance(b, Val) or not _rows(draft, a, b) or a == b:
        return None
    assert isinstance(op.spec, Spec)
    shape, rank = op.spec.shape, len(op.spec.shape)
    shape_a, shape_b = ((1,) * (rank - len(draft.spec(v).shape)) + draft.spec(v).shape for v in (a, b))
    if any(m != 1 and n != 1 for m, n in zip(shape_a, shape_b, strict=True)):
        return None
    wide, high = math.prod(shape_a), math.prod(shape_b)
    spec = Spec((wide, high), op.spec.dtype, op.spec.device)
    order = [d for d in range(rank) if shape_a[d] != 1] + [d for d in range(rank) if shape_a[d] == 1]

    def finish(product: Val) -> Val:
        shaped = view(draft, product, tuple(shape[d] for d in order))
        return permute(draft, shaped, tuple(order.index(d) for d in range(rank)))

    return Op(PRODUCT, (view(draft, a, (1, wide)), view(draft, b, (1, high))), (), spec), finish


def _embed(draft: Draft, op: Op) -> tuple[Op, Any] | None:
    grad, index, size, padding, _ = op.args
    return (Op(EMBED, (grad, index, size, padding), (), op.spec), _keep) if _rows(draft, grad, index) else None


def _put(draft: Draft, op: Op) -> tuple[Op, Any] | None:
    """The gradient of `weight[i, j]`: values are added into a shared tensor of zeros."""
    target, indices, values = op.args[:3]
    accumulates = len(op.args) > 3 and op.args[3]
    if not accumulates or draft.is_row[target.index] or not _rows(draft, values) or None in indices:
        return None
    shapes = {draft.spec(i).shape for i in indices}
    rest = draft.spec(target).shape[len(indices) :]
    fits = len(shapes) == 1 and draft.spec(values).shape == (*next(iter(shapes)), *rest)
    return (Op(PUT, (target, indices, values), (), op.spec), _keep) if fits and is_zero(draft, target) else None


def is_zero(draft: Draft, value: Val) -> bool:
    op = draft.op(value)
    return op is not None and op.target is aten.full.default and op.args[1] == 0


_PRODUCTS = {
    aten.mm.default: _mm, aten.bmm.default: _bmm, aten.mul.Tensor: _mul, aten.embedding_dense_backward.default: _embed,
    aten.index_put.default: _put,
}  # fmt: skip
