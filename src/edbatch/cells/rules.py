"""How each op runs on all rows of a batch at once: one table row per op.

In: an op of the body (one example) and the emitter's names of its operands. Out: a `Code`: one call, batch-first. A value that
differs between rows has a further first dimension B; a shared value has none. Ops without a rule go through torch.func.vmap.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from edbatch.cells.body import Across, Op, Val, constant, swap_vals
from edbatch.errors import CaptureError
from edbatch.spec import Spec

aten = torch.ops.aten


@dataclass(frozen=True)
class Code:
    """One call, as text that ends in its closing bracket.

    `form` is the shape (after the first dimension) in which the result comes; `out` names the keyword
    that takes a destination (None: there is none), `into` the call to use then if it is another one; a `view` shares
    memory with its operand; `local` means that element i of the result needs only elements i of the operands.
    """

    text: str
    form: tuple[Any, ...] | None = None
    out: str | None = None
    view: bool = False
    local: bool = False
    into: str | None = None

    def writing(self, destination: str) -> str:
        """The call that writes its result into a destination."""
        return f"{(self.into or self.text)[:-1]}, {self.out}={destination})"


class Names(Protocol):
    """What a rule may ask of the emitter; see there."""

    def is_row(self, value: Val) -> bool: ...
    def spec(self, value: Val) -> Spec: ...
    def row(self, value: Val, shape: Sequence[int] | None = None) -> str: ...
    def flat(self, value: Val, width: int) -> str: ...
    def every(self, value: Val) -> str: ...
    def raw(self, tree: Any) -> str: ...
    def object(self, thing: Any) -> str: ...


Rule = Callable[[Names, Op], Code | None]


def batched(n: Names, op: Op) -> Code:
    """The code of an op whose result differs between rows."""
    rule = RULES.get(op.target)
    if rule is None and torch.Tag.pointwise in getattr(op.target, "tags", ()):
        rule = pointwise(op.target)
    return (rule(n, op) if rule else None) or _vmap(n, op)


def shared(n: Names, op: Op) -> Code:
    """The code of an op whose result is the same for all rows: the op as it is, or a sum across rows."""
    if isinstance(op.target, Across):
        code = ACROSS[op.target](n, op)
        assert code is not None
        return code
    if op.target is constant:
        return Code(f"{n.object(constant)}({n.object(op.args[0])})", view=True)
    return call(n, op.target, *op.args, **dict(op.kwargs))


def call(n: Names, function: Any, *args: Any, **kwargs: Any) -> Code:
    """A plain call; arguments are already texts (wrapped in `Text`), values or constants."""
    texts = [a.text if isinstance(a, Text) else n.raw(a) for a in args]
    texts += [f"{k}={v.text if isinstance(v, Text) else n.raw(v)}" for k, v in kwargs.items()]
    return Code(f"{n.object(function)}({', '.join(texts)})")


@dataclass(frozen=True)
class Text:
    text: str


def pointwise(function: Any, out: str | None = None, into: Any = None) -> Rule:
    """Elementwise: rows of lower rank get dimensions of size one after B."""

    def rule(n: Names, op: Op) -> Code:
        rank = max((len(n.spec(v).shape) for v in op.operands), default=0)

        def operand(tree: Any) -> str:
            if not isinstance(tree, Val) or not n.is_row(tree):
                return n.raw(tree)
            shape = n.spec(tree).shape
            return n.row(tree, (1,) * (rank - len(shape)) + shape)

        texts = [operand(a) for a in op.args] + [f"{k}={operand(v)}" for k, v in op.kwargs]
        other = f"{n.object(into)}({', '.join(texts)})" if into else None
        return Code(f"{n.object(function)}({', '.join(texts)})", out=out, local=True, into=other)

    return rule


def along(function: Any, place: int = 1, out: str | None = None) -> Rule:
    """An op along dimensions given at `place`: they shift by one."""

    def rule(n: Names, op: Op) -> Code | None:
        rank = len(n.spec(op.args[0]).shape)
        dims = op.args[place] if len(op.args) > place else None
        if rank == 0 or dims is None or dims == ():
            return None
        shifted = tuple(d % rank + 1 for d in dims) if isinstance(dims, tuple) else dims % rank + 1
        args = [Text(n.every(a)) if isinstance(a, Val) else a for a in op.args]
        args[place] = shifted
        code = call(n, function, *args, **dict(op.kwargs))
        return Code(code.text, out=out)

    return rule


def leading(function: Any, sizes: int | None = None, dim: int | None = None, fixed: tuple[int, ...] = ()) -> Rule:
    """An op that lets further first dimensions pass; a size given at `sizes` gets B in front, a `dim` shifts.

    Operands at `fixed` places must be shared.
    """

    def rule(n: Names, op: Op) -> Code | None:
        if any(isinstance(op.args[p], Val) and n.is_row(op.args[p]) for p in fixed):
            return None
        args = [Text(n.every(a)) if isinstance(a, Val) and p not in fixed else a for p, a in enumerate(op.args)]
        if sizes is not None:
            args[sizes] = Text(f"({', '.join(['B', *map(str, op.args[sizes])])},)")
        if dim is not None:
            rank = len(op.args[sizes]) if sizes is not None else len(n.spec(op.args[0]).shape)
            args[dim] = op.args[dim] % rank + 1
        return call(n, function, *args, **dict(op.kwargs))

    return rule


def _permute(n: Names, op: Op) -> Code:
    return Code(f"{n.row(op.args[0])}.permute({', '.join(map(str, (0, *(d + 1 for d in op.args[1]))))})", view=True)


def _expand(n: Names, op: Op) -> Code:
    shape = n.spec(op.args[0]).shape
    padded = n.row(op.args[0], (1,) * (len(op.args[1]) - len(shape)) + shape)
    return Code(f"{padded}.expand({', '.join(['B', *map(str, op.args[1])])})", view=True)


def _slice(n: Names, op: Op) -> Code:
    _, dim, start, stop, step = (*op.args, *(0, None, None, 1)[len(op.args) - 1 :])
    rank = len(n.spec(op.args[0]).shape)
    bounds = ":".join("" if b is None else str(b) for b in (start, stop, step))
    return Code(f"{n.row(op.args[0])}[{':, ' * (dim % rank + 1)}{bounds}]", view=True)


def _select(n: Names, op: Op) -> Code:
    rank = len(n.spec(op.args[0]).shape)
    return Code(f"{n.row(op.args[0])}.select({op.args[1] % rank + 1}, {op.args[2]})", view=True)


def _cat(n: Names, op: Op) -> Code:
    items = ", ".join(n.every(v) for v in op.args[0])
    return Code(f"{n.object(torch.cat)}(({items},), {op.args[1] + 1})", out="out")


def _item(n: Names, op: Op) -> Code:
    return Code(f"{n.raw(op.args[0])}[{op.args[1]}]")


def _to_copy(n: Names, op: Op) -> Code:
    kwargs = ", ".join(f"{k}={n.raw(v)}" for k, v in op.kwargs)
    return Code(f"{n.row(op.args[0])}.to({kwargs})")


def _mm(n: Names, op: Op) -> Code:
    a, b = op.args
    (m, k), (_, width) = n.spec(a).shape, n.spec(b).shape
    if n.is_row(a) and n.is_row(b):
        return Code(f"{n.object(torch.bmm)}({n.row(a)}, {n.row(b)})", out="out")
    mm = n.object(torch.mm)
    if n.is_row(a):
        return Code(f"{mm}({n.flat(a, k)}, {n.raw(b)})", form=_flat(m, width), out="out")
    if width == 1:
        return Code(f"{mm}({n.flat(b, k)}, {n.raw(a)}.t())", form=(m,), out="out")
    columns = f"{n.row(b)}.transpose(1, 2).reshape(-1, {k})"
    return Code(f"{mm}({columns}, {n.raw(a)}.t()).view(B, {width}, {m}).transpose(1, 2)")


def _flat(lines: int, width: int) -> tuple[Any, ...]:
    return (width,) if lines == 1 else ("flat", width)


def _addmm(n: Names, op: Op) -> Code | None:
    bias, a, b = op.args
    (m, k), width = n.spec(a).shape, n.spec(b).shape[1]
    shape = n.spec(bias).shape
    extra = "".join(f", {key}={value!r}" for key, value in op.kwargs)
    one_gemm = n.is_row(a) and not n.is_row(b) and (m == 1 or shape in ((m, width), (width,), (1, width)))
    if one_gemm and (not n.is_row(bias) or math.prod(shape) == m * width) and (n.is_row(bias) or shape != (m, width) or m == 1):
        first = n.flat(bias, width) if n.is_row(bias) else n.raw(bias)
        text = f"{n.object(torch.addmm)}({first}, {n.flat(a, k)}, {n.raw(b)}{extra})"
        return Code(text, form=_flat(m, width), out="out")
    if n.is_row(a) and n.is_row(b):
        first = n.row(bias, (1,) * (2 - len(shape)) + shape) if n.is_row(bias) else n.raw(bias)
        return Code(f"{n.object(torch.baddbmm)}({first}, {n.row(a)}, {n.row(b)}{extra})", out="out")
    return None


def _bmm(n: Names, op: Op) -> Code:
    return Code(f"{n.object(torch.matmul)}({', '.join(n.raw(v) for v in op.args)})", out="out")


def _embedding(n: Names, op: Op) -> Code | None:
    return _lookup(n, op.args[0], op.args[1])


def _lookup(n: Names, table: Val, index: Val) -> Code | None:
    if n.is_row(table) or len(n.spec(table).shape) != 2 or not n.is_row(index):
        return None
    count = math.prod(n.spec(index).shape)
    at = n.row(index, ()) if count == 1 else f"{n.row(index)}.reshape(-1)"
    width = n.spec(table).shape[1]
    return Code(f"{n.object(torch.index_select)}({n.raw(table)}, 0, {at})", form=_flat(count, width), out="out")


def _index_select(n: Names, op: Op) -> Code | None:
    x, dim, index = op.args
    if n.is_row(index) or not n.spec(x).shape:
        return _lookup(n, x, index) if dim == 0 and len(n.spec(index).shape) == 1 else None
    return Code(f"{n.object(torch.index_select)}({n.row(x)}, {dim % len(n.spec(x).shape) + 1}, {n.raw(index)})", out="out")


def _index(n: Names, op: Op) -> Code | None:
    x, indices = op.args
    if n.is_row(x) or any(i is None for i in indices):
        return None
    rank = max(len(n.spec(i).shape) for i in indices)
    texts = []
    for i in indices:
        shape = n.spec(i).shape
        texts.append(n.row(i, (1,) * (rank - len(shape)) + shape) if n.is_row(i) else n.raw(i))
    return Code(f"{n.object(operator.getitem)}({n.raw(x)}, ({', '.join(texts)},))")


def _masked_fill(n: Names, op: Op) -> Code:
    x, mask, value = op.args
    return pointwise(torch.where)(n, Op(aten.where.self, (mask, value, x), (), op.spec))


def _arg(function: Any) -> Rule:
    def rule(n: Names, op: Op) -> Code | None:
        if len(op.args) > 1 and op.args[1] is not None:
            return along(function)(n, op)
        flat = n.row(op.args[0], (math.prod(n.spec(op.args[0]).shape),))
        keep = len(op.args) > 2 and op.args[2]
        return None if keep else Code(f"{n.object(function)}({flat}, 1)")

    return rule


def _random(n: Names, op: Op) -> Code:
    args = [Text(n.every(a)) if isinstance(a, Val) else a for a in op.args]
    if not op.operands:
        args[_SIZE_AT[op.target]] = Text(f"({', '.join(['B', *map(str, op.args[_SIZE_AT[op.target]])])},)")
    return call(n, op.target, *args, **dict(op.kwargs))


def _sum_rows(n: Names, op: Op) -> Code:
    return Code(f"{n.row(op.args[0])}.sum(0)")


def _take_sum(n: Names, op: Op) -> Code:
    return Code(f"{n.object(dict.__getitem__)}(sums, {op.args[0]})")


def _times_rows(n: Names, op: Op) -> Code:
    return Code(f"{n.object(torch.mul)}({n.raw(op.args[0])}, B)")


def _sum_products(n: Names, op: Op) -> Code:
    a, b = op.args
    left, right = n.flat(a, n.spec(a).shape[1]), n.flat(b, n.spec(b).shape[1])
    return Code(f"{n.object(torch.mm)}({left}.t(), {right})")


def _sum_batched_products(n: Names, op: Op) -> Code:
    return Code(f"{n.object(torch.einsum)}('bhmk,bhkn->hmn', {n.row(op.args[0])}, {n.row(op.args[1])})")


def _sum_embedded(n: Names, op: Op) -> Code:
    grad, index, size, padding = op.args
    width = n.spec(grad).shape[-1]
    at = f"{n.row(index)}.reshape(-1)"
    return Code(f"{n.object(aten.embedding_dense_backward.default)}({n.flat(grad, width)}, {at}, {size}, {padding}, False)")


def _sparse_embedded(n: Names, op: Op) -> Code:
    grad, index, size, padding = op.args
    width = n.spec(grad).shape[-1]
    at = f"{n.row(index)}.reshape(-1)"
    return Code(f"{n.object(sparse_rows)}({n.flat(grad, width)}, {at}, {size}, {padding})")


def sparse_rows(grad: torch.Tensor, index: torch.Tensor, size: int, padding: int) -> torch.Tensor:
    """The gradient of a lookup with sparse=True; lookups of the padding row add zeros."""
    if padding >= 0:
        grad = grad.masked_fill((index == padding).unsqueeze(1), 0)
    return torch.sparse_coo_tensor(index.unsqueeze(0), grad, (size, grad.shape[1]), check_invariants=False)


def _sum_put(n: Names, op: Op) -> Code:
    target, indices, values = op.args
    at = ", ".join(f"{n.every(i)}.reshape(-1)" for i in indices)
    rest = n.spec(target).shape[len(indices) :]
    flat = f"{n.row(values)}.reshape({', '.join(['-1', *map(str, rest)])})"
    return Code(f"{n.object(torch.index_put)}({n.raw(target)}, ({at},), {flat}, True)")


def _vmap(n: Names, op: Op) -> Code:
    if op.is_random or not op.operands:
        raise CaptureError(f"no rule for {op.name}")
    levels = tuple(0 if n.is_row(v) else None for v in op.operands)
    return Code(f"{n.object(Mapped(op, levels))}({', '.join(n.raw(v) for v in op.operands)})")


class Mapped:
    """An op without a rule: torch.func.vmap of it over the operands that differ between rows."""

    def __init__(self, op: Op, in_dims: tuple[int | None, ...]) -> None:
        self.op, self.__name__ = op, "vmap_" + str(op.name).replace(".", "_")
        self.in_dims = in_dims
        self.mapped = torch.func.vmap(self._one, in_dims=in_dims)

    def _one(self, *operands: torch.Tensor) -> Any:
        given = iter(operands)
        args, kwargs = swap_vals((self.op.args, [v for _, v in self.op.kwargs]), lambda _: next(given))
        names = [k for k, _ in self.op.kwargs]
        return self.op.target(*map(_listed, args), **dict(zip(names, map(_listed, kwargs), strict=True)))

    def __call__(self, *operands: torch.Tensor) -> Any:
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # where vmap loops over the rows
        try:
            return self.mapped(*operands)
        finally:
            torch._C._functorch._set_vmap_fallback_warning_enabled(True)


def _listed(argument: Any) -> Any:
    return list(argument) if isinstance(argument, tuple) else argument


ACROSS: dict[Any, Rule] = {
    Across("sum_rows"): _sum_rows, Across("take_sum"): _take_sum, Across("times_rows"): _times_rows,
    Across("sum_products"): _sum_products, Across("sum_batched_products"): _sum_batched_products,
    Across("sum_embedded"): _sum_embedded, Across("sparse_embedded"): _sparse_embedded, Across("sum_put"): _sum_put,
}  # fmt: skip
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
_BACKWARD = (
    aten.sigmoid_backward, aten.tanh_backward, aten.threshold_backward, aten.gelu_backward, aten.silu_backward,
)  # fmt: skip
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
VIEWS = frozenset({
    aten.view.default, aten.permute.default, aten.expand.default, aten.slice.Tensor, aten.select.int,
    aten.diagonal.default, aten.as_strided.default, aten.unfold.default,
})  # fmt: skip
RULES: dict[Any, Rule] = {
    **{target: pointwise(function, out="out") for target, function in _OUT.items()},
    **{target: pointwise(function) for target, function in _PLAIN.items()},
    **{op.default: pointwise(op.default, "grad_input", op.grad_input) for op in _BACKWARD},
    **{target: along(function, out="out") for target, function in _ALONG.items()},
    **{target: along(target) for target in _ALONG_PLAIN},
    **dict.fromkeys(_RANDOM, _random),
    aten._softmax.default: along(torch._softmax, out="out"),
    aten._log_softmax.default: along(torch._log_softmax, out="out"),
    aten._softmax_backward_data.default: along(aten._softmax_backward_data.default, place=2),
    aten._log_softmax_backward_data.default: along(aten._log_softmax_backward_data.default, place=2),
    aten.topk.default: along(aten.topk.default, place=2),
    aten.gather.default: along(torch.gather, out="out"),
    aten.scatter.src: along(torch.scatter), aten.scatter.value: along(torch.scatter),
    aten.scatter_add.default: along(torch.scatter_add),
    aten.argmax.default: _arg(torch.argmax), aten.argmin.default: _arg(torch.argmin),
    aten.native_layer_norm.default: leading(torch.native_layer_norm, fixed=(2, 3)),
    aten.native_layer_norm_backward.default: leading(aten.native_layer_norm_backward.default, fixed=(5, 6)),
    aten.constant_pad_nd.default: leading(torch.constant_pad_nd),
    aten.tril.default: leading(torch.tril), aten.triu.default: leading(torch.triu),
    aten.select_backward.default: leading(aten.select_backward.default, sizes=1, dim=2),
    aten.slice_backward.default: leading(aten.slice_backward.default, sizes=1, dim=2),
    aten.permute.default: _permute, aten.expand.default: _expand, aten.slice.Tensor: _slice, aten.select.int: _select,
    aten.cat.default: _cat, operator.getitem: _item, aten._to_copy.default: _to_copy, aten.mm.default: _mm,
    aten.addmm.default: _addmm, aten.bmm.default: _bmm, aten.embedding.default: _embedding,
    aten.index_select.default: _index_select, aten.index.Tensor: _index, aten.masked_fill.Tensor: _masked_fill,
}  # fmt: skip
