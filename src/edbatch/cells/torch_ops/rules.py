"""How each op runs on all rows of a batch at once: a table with one rule per op.

In: an op of a body (on one example) and the names of its operands in the code. Out: a `Code`: one call on the whole
batch. A value that differs between rows has a further first dimension B; a shared value has not. Ops without a rule run
by torch.func.vmap.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from edbatch.cells.body.body import Across, Body, Op, Val, constant
from edbatch.cells.body.program import Program
from edbatch.cells.torch_ops import products
from edbatch.cells.torch_ops.across import ACROSS
from edbatch.cells.torch_ops.rule_types import (
    Code,
    OperandNames,
    Rule,
    Verbatim,
    along,
    by_vmap,
    call,
    leading,
    pointwise,
)
from edbatch.spec import Spec
from edbatch.torch_insides.ops import log_softmax, softmax

aten = torch.ops.aten
USUAL = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool}  # all kernels take them


def batched(n: OperandNames, op: Op) -> Code:
    """The code of an op whose result differs between rows."""
    return _ruled(n, op) or by_vmap(n, op)


def _ruled(n: OperandNames, op: Op) -> Code | None:
    rule = RULES.get(op.target)
    if rule is None and torch.Tag.pointwise in getattr(op.target, "tags", ()):
        rule = pointwise(op.target)
    return rule(n, op) if rule else None


def has_rules(body: Body, program: Program) -> bool:
    """Whether all ops of a program have rules and its values have usual dtypes, so that it can surely be made later.

    Else vmap may refuse an op, which shows only when it runs.
    """
    names = _NoNames(body)
    return all(map(_is_usual, body.specs)) and all(
        not body.is_row[index] or op.target is aten.view.default or _ruled(names, op) is not None
        for index in program.ops
        if (op := body.op(index)) is not None
    )


def _is_usual(spec: Any) -> bool:
    if isinstance(spec, tuple):
        return all(map(_is_usual, spec))
    return not isinstance(spec, Spec) or (spec.dtype in USUAL and 0 not in spec.shape)


class _NoNames:
    """Answers the questions of rules before any code is written."""

    def __init__(self, body: Body) -> None:
        self.body = body

    def is_row(self, value: Val) -> bool:
        return self.body.is_row[value.index]

    def spec(self, value: Val) -> Spec:
        return self.body.spec(value)

    def row(self, value: Val, shape: Sequence[int] | None = None) -> str:
        return ""

    def flat(self, value: Val, width: int) -> str:
        return ""

    def every(self, value: Val) -> str:
        return ""

    def raw(self, tree: Any) -> str:
        return ""

    def object(self, thing: Any) -> str:
        return ""


def shared(n: OperandNames, op: Op) -> Code:
    """The code of an op whose result is the same for all rows: the op as it is, or a sum across rows."""
    if isinstance(op.target, Across):
        code = ACROSS[op.target](n, op)
        assert code is not None
        return code
    if op.target is aten.cat.default:
        return Code(f"{n.object(torch.cat)}({n.raw(op.args[0])}, {op.args[1]})", out="out")
    if op.target is constant:
        return Code(f"{n.object(constant)}({n.object(op.args[0])})", view=True)
    if op.target is aten.permute.default:  # of weights, in every call; the method takes a third of the time of the op
        return Code(f"{n.raw(op.args[0])}.permute({tuple(op.args[1])!r})")
    if op.target is aten.slice.Tensor:  # likewise
        return Code(f"{n.raw(op.args[0])}{_range(n, op, 0)}")
    return call(n, op.target, *op.args, **dict(op.kwargs))


def _permute(n: OperandNames, op: Op) -> Code:
    return Code(f"{n.row(op.args[0])}.permute({', '.join(map(str, (0, *(d + 1 for d in op.args[1]))))})", view=True)


def _expand(n: OperandNames, op: Op) -> Code:
    shape = n.spec(op.args[0]).shape
    padded = n.row(op.args[0], (1,) * (len(op.args[1]) - len(shape)) + shape)
    return Code(f"{padded}.expand({', '.join(['B', *map(str, op.args[1])])})", view=True)


def _slice(n: OperandNames, op: Op) -> Code:
    return Code(f"{n.row(op.args[0])}{_range(n, op, 1)}", view=True)


def _range(n: OperandNames, op: Op, before: int) -> str:
    """The index, such as [:, 2:5], for a slice of a tensor with `before` dimensions before those of the operand."""
    given: list[Any] = [*op.args[1:], *(0, None, None, 1)[len(op.args) - 1 :]]
    shape = n.spec(op.args[0]).shape
    dim, start, stop, step = given[0] % len(shape), *given[1:]
    first, _, _ = slice(start, stop, step).indices(shape[dim])
    if step == 1 and isinstance(op.spec, Spec):
        return f".narrow({dim + before}, {first}, {op.spec.shape[dim]})"
    return f"[{':, ' * (dim + before)}{start or 0}:{'' if stop is None else stop}:{step}]"


def _reversed_difference(n: OperandNames, op: Op) -> Code | None:
    """1 - x, which torch cannot write into given memory unless 1 is a tensor."""
    x, number = op.args[:2]
    if len(op.args) > 2 or op.kwargs or not isinstance(op.spec, Spec) or n.spec(x).dtype != op.spec.dtype:
        return None
    flat = (math.prod(op.spec.shape),)
    one = n.object(torch.tensor(number, dtype=op.spec.dtype))
    return Code(f"{n.object(torch.sub)}({one}, {n.row(x, flat)})", flat, "out", local=True)


def _select(n: OperandNames, op: Op) -> Code:
    rank = len(n.spec(op.args[0]).shape)
    return Code(f"{n.row(op.args[0])}.select({op.args[1] % rank + 1}, {op.args[2]})", view=True)


def _cat(n: OperandNames, op: Op) -> Code:
    items = ", ".join(n.every(v) for v in op.args[0])
    return Code(f"{n.object(torch.cat)}(({items},), {op.args[1] + 1})", out="out")


def _item(n: OperandNames, op: Op) -> Code:
    return Code(f"{n.raw(op.args[0])}[{op.args[1]}]", view=True)


def _to_copy(n: OperandNames, op: Op) -> Code:
    kwargs = ", ".join(f"{k}={n.raw(v)}" for k, v in op.kwargs)
    return Code(f"{n.row(op.args[0])}.to({kwargs})")


def _arg(function: Any) -> Rule:
    def rule(n: OperandNames, op: Op) -> Code | None:
        if len(op.args) > 1 and op.args[1] is not None:
            return along(function)(n, op)
        flat = n.row(op.args[0], (math.prod(n.spec(op.args[0]).shape),))
        keep = len(op.args) > 2 and op.args[2]
        return None if keep else Code(f"{n.object(function)}({flat}, 1)")

    return rule


def _random(n: OperandNames, op: Op) -> Code:
    args = [Verbatim(n.every(a)) if isinstance(a, Val) else a for a in op.args]
    if not op.operands:
        args[_SIZE_AT[op.target]] = Verbatim(f"({', '.join(['B', *map(str, op.args[_SIZE_AT[op.target]])])},)")
    return call(n, op.target, *args, **dict(op.kwargs))


def _gelu_backward(n: OperandNames, op: Op) -> Code | None:
    """Elementwise, but without torch's broadcasting."""
    if all(map(n.is_row, op.operands)):
        return pointwise(op.target, "grad_input", aten.gelu_backward.grad_input)(n, op)
    return call(n, op.target, *[Verbatim(n.every(a)) if isinstance(a, Val) else a for a in op.args], **dict(op.kwargs))


_OUT = {
    aten.add.Tensor: torch.add, aten.sub.Tensor: torch.sub, aten.mul.Tensor: torch.mul, aten.div.Tensor: torch.div,
    aten.sigmoid.default: torch.sigmoid, aten.tanh.default: torch.tanh, aten.exp.default: torch.exp,
    aten.log.default: torch.log, aten.neg.default: torch.neg, aten.sqrt.default: torch.sqrt,
    aten.rsqrt.default: torch.rsqrt, aten.sin.default: torch.sin, aten.cos.default: torch.cos,
    aten.erf.default: torch.erf, aten.abs.default: torch.abs, aten.maximum.default: torch.maximum,
    aten.minimum.default: torch.minimum, aten.pow.Tensor_Scalar: torch.pow, aten.pow.Tensor_Tensor: torch.pow,
    aten.where.self: torch.where,
    aten.lerp.Tensor: torch.lerp, aten.lerp.Scalar: torch.lerp, aten.addcmul.default: torch.addcmul,
    aten.clamp.default: torch.clamp, aten.log1p.default: torch.log1p, aten.expm1.default: torch.expm1,
    aten.reciprocal.default: torch.reciprocal, aten.logical_and.default: torch.logical_and,
}  # fmt: skip
_BACKWARD = aten.sigmoid_backward, aten.tanh_backward, aten.threshold_backward, aten.silu_backward
_PLAIN = {aten.relu.default: torch.relu, aten.masked_fill.Scalar: torch.masked_fill}
_ALONG = {
    aten.sum.dim_IntList: torch.sum, aten.mean.dim: torch.mean, aten.amax.default: torch.amax,
    aten.amin.default: torch.amin, aten.logsumexp.default: torch.logsumexp, aten.cumsum.default: torch.cumsum,
}  # fmt: skip
_ALONG_PLAIN = (
    aten.max.dim, aten.min.dim, aten.any.dim, aten.all.dim, aten.prod.dim_int, aten.flip.default, aten.sort.default,
    aten.cumprod.default, aten.any.dims, aten.all.dims, aten.var.correction,
)  # fmt: skip
_SIZE_AT = {
    aten.rand.default: 0, aten.randn.default: 0, aten.randint.default: 1, aten.randint.low: 2,
}  # fmt: skip
_RANDOM = (
    *_SIZE_AT, aten.native_dropout.default, aten.bernoulli.default, aten.bernoulli.p, aten.rand_like.default,
    aten.randn_like.default, aten.uniform.default, aten.normal_functional.default, aten.randint_like.default,
    aten.randint_like.low_dtype,
)  # fmt: skip
RULES: dict[Any, Rule] = {
    **{target: pointwise(function, out="out") for target, function in _OUT.items()},
    **{target: pointwise(function) for target, function in _PLAIN.items()},
    **{op.default: pointwise(op.default, "grad_input", op.grad_input) for op in _BACKWARD},
    **{target: along(function, out="out") for target, function in _ALONG.items()},
    **{target: along(target) for target in _ALONG_PLAIN},
    **dict.fromkeys(_RANDOM, _random),
    aten._softmax.default: along(softmax, out="out"),
    aten._log_softmax.default: along(log_softmax, out="out"),
    aten._softmax_backward_data.default: along(aten._softmax_backward_data.default, place=2),
    aten._log_softmax_backward_data.default: along(aten._log_softmax_backward_data.default, place=2),
    aten.topk.default: along(aten.topk.default, place=2),
    aten.gather.default: along(torch.gather, out="out"),
    aten.scatter.src: along(torch.scatter), aten.scatter.value: along(torch.scatter),
    aten.scatter_add.default: along(torch.scatter_add),
    aten.argmax.default: _arg(torch.argmax), aten.argmin.default: _arg(torch.argmin),
    aten.native_layer_norm.default: leading(torch.native_layer_norm, fixed=(2, 3)),
    aten.native_layer_norm_backward.default: leading(
        aten.native_layer_norm_backward.default, fixed=(5, 6), dense=(3, 4)
    ),
    aten.gelu_backward.default: _gelu_backward,
    aten.constant_pad_nd.default: leading(torch.constant_pad_nd),
    aten.tril.default: leading(torch.tril), aten.triu.default: leading(torch.triu),
    aten.select_backward.default: leading(aten.select_backward.default, sizes=1, dim=2),
    aten.slice_backward.default: leading(aten.slice_backward.default, sizes=1, dim=2),
    aten.rsub.Scalar: _reversed_difference,
    aten.permute.default: _permute, aten.expand.default: _expand, aten.slice.Tensor: _slice, aten.select.int: _select,
    aten.cat.default: _cat, operator.getitem: _item, aten._to_copy.default: _to_copy, aten.mm.default: products.mm,
    aten.addmm.default: products.addmm, aten.bmm.default: products.bmm, aten.embedding.default: products.embedding,
    aten.index_select.default: products.index_select, aten.index.Tensor: products.index,
}  # fmt: skip
