"""From a captured body to an equal one with fewer kinds of ops: the form that splitting and emission expect.

Copies vanish: nothing is mutated, so the original will do. All changes of shape become `view`, all transpositions
`permute`, and parts of a split become slices. Operands of mixed dtype are converted first, as torch does inside. Else
results would depend on torch's rule that 0-d tensors do not promote others, and with a batch dimension they are no
longer 0-d.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from edbatch.cells.body.body import Body, Draft, Op, Rewrite, Val, rebuild
from edbatch.spec import Spec

aten = torch.ops.aten


def simplify(body: Body) -> Body:
    """The body in its simple form; dead and repeated ops are gone."""
    return rebuild(rebuild(body, _rewrite)).check()


def _rewrite(draft: Draft, op: Op) -> Val:
    for rule in (_REWRITES.get(op.target), _promote if torch.Tag.pointwise in getattr(op.target, "tags", ()) else None):
        if rule is not None:
            value = rule(draft, op)
            if value is not None:
                return value
    return draft.add(op)


def view(draft: Draft, x: Val, shape: tuple[int, ...]) -> Val:
    """`x` in another shape; a view of a view is made from the original."""
    made = draft.op(x)
    if made is not None and made.target is aten.view.default:
        x = made.args[0]
    spec = draft.spec(x)
    return (
        x if spec.shape == shape else draft.call(aten.view.default, x, shape, spec=Spec(shape, spec.dtype, spec.device))
    )


def permute(draft: Draft, x: Val, dims: tuple[int, ...]) -> Val:
    """`x` with its dimensions in another order; if only dimensions of size one move, that is a view."""
    made = draft.op(x)
    if made is not None and made.target is aten.permute.default:
        x, dims = made.args[0], tuple(made.args[1][d] for d in dims)
    spec = draft.spec(x)
    shape = tuple(spec.shape[d] for d in dims)
    large = [d for d in dims if spec.shape[d] != 1]
    if large == sorted(large):
        return view(draft, x, shape)
    return draft.call(aten.permute.default, x, dims, spec=Spec(shape, spec.dtype, spec.device))


def _same(draft: Draft, op: Op) -> Val | None:
    return op.operands[0]


def _to_copy(draft: Draft, op: Op) -> Val | None:
    given = draft.spec(op.args[0])
    assert isinstance(op.spec, Spec)
    if (given.dtype, given.device) == (op.spec.dtype, op.spec.device):
        return op.operands[0]
    kwargs = tuple((k, v) for k, v in op.kwargs if k in ("dtype", "device"))
    return draft.add(Op(op.target, op.args, kwargs, op.spec))


def _view(draft: Draft, op: Op) -> Val | None:
    assert isinstance(op.spec, Spec)
    return view(draft, op.args[0], op.spec.shape)


def _permute(draft: Draft, op: Op) -> Val | None:
    rank = len(draft.spec(op.args[0]).shape)
    return permute(draft, op.args[0], tuple(d % rank for d in op.args[1]))


def _t(draft: Draft, op: Op) -> Val | None:
    rank = len(draft.spec(op.args[0]).shape)
    return permute(draft, op.args[0], tuple(range(rank))[::-1])


def _transpose(draft: Draft, op: Op) -> Val | None:
    rank = len(draft.spec(op.args[0]).shape)
    dims = list(range(rank))
    if rank:
        a, b = op.args[1] % rank, op.args[2] % rank
        dims[a], dims[b] = dims[b], dims[a]
    return permute(draft, op.args[0], tuple(dims))


def _expand(draft: Draft, op: Op) -> Val | None:
    assert isinstance(op.spec, Spec)
    x = op.args[0]
    if math.prod(op.spec.shape) == math.prod(draft.spec(x).shape):
        return view(draft, x, op.spec.shape)
    return draft.call(aten.expand.default, x, op.spec.shape, spec=op.spec)


def _item(draft: Draft, op: Op) -> Val | None:
    """Parts of a split or of unbind become slices and selections."""
    source = draft.op(op.args[0])
    if source is None or source.target not in (aten.split_with_sizes.default, aten.unbind.int):
        return None
    x, place = source.args[0], op.args[1]
    dim = _argument(source, 2 if source.target is aten.split_with_sizes.default else 1, "dim", 0)
    dim %= len(draft.spec(x).shape)
    if source.target is aten.unbind.int:
        return draft.call(aten.select.int, x, dim, place, spec=op.spec)
    start = sum(source.args[1][:place])
    return draft.call(aten.slice.Tensor, x, dim, start, start + source.args[1][place], spec=op.spec)


def _slice(draft: Draft, op: Op) -> Val | None:
    assert isinstance(op.spec, Spec)
    return op.args[0] if op.spec == draft.spec(op.args[0]) else None


def _bmm(draft: Draft, op: Op) -> Val | None:
    """A batch of one matrix product is a matrix product."""
    assert isinstance(op.spec, Spec)
    a, b = op.args
    if op.spec.shape[0] != 1:
        return None
    flat = Spec(op.spec.shape[1:], op.spec.dtype, op.spec.device)
    product = draft.call(
        aten.mm.default, view(draft, a, draft.spec(a).shape[1:]), view(draft, b, draft.spec(b).shape[1:]), spec=flat
    )
    return view(draft, product, op.spec.shape)


def _sum(draft: Draft, op: Op) -> Val | None:
    """A sum over dimensions of size one is a view; dims become non-negative."""
    x = op.args[0]
    given = draft.spec(x)
    assert isinstance(op.spec, Spec)
    dims = tuple(d % len(given.shape) for d in op.args[1] or range(len(given.shape))) if given.shape else ()
    if op.spec.dtype == given.dtype and all(given.shape[d] == 1 for d in dims):
        return view(draft, x, op.spec.shape)
    kept = len(op.args) > 2 and op.args[2]
    return draft.add(Op(op.target, (x, dims, kept), op.kwargs, op.spec))


def _cat(draft: Draft, op: Op) -> Val | None:
    items: list[Val] = [v for v in op.args[0] if draft.spec(v).shape != (0,)]
    assert isinstance(op.spec, Spec)
    if len(items) == 1 and draft.spec(items[0]) == op.spec:
        return items[0]
    dim = _argument(op, 1, "dim", 0) % len(op.spec.shape)
    return draft.call(op.target, [cast(draft, v, op.spec.dtype) for v in items], dim, spec=op.spec)


def cast(draft: Draft, x: Val, dtype: torch.dtype, device: torch.device | None = None) -> Val:
    spec = draft.spec(x)
    if spec.dtype == dtype and (device is None or spec.device == device):
        return x
    kwargs = {"dtype": dtype} | ({} if device is None or device == spec.device else {"device": device})
    return draft.call(aten._to_copy.default, x, spec=Spec(spec.shape, dtype, device or spec.device), **kwargs)


def _promote(draft: Draft, op: Op) -> Val | None:
    """Converts the operands of an elementwise op to the dtype torch computes in, where they differ."""
    assert isinstance(op.spec, Spec)
    device = op.spec.device
    skip = op.args[0] if op.target is aten.where.self else None
    operands = [v for v in op.operands if v != skip]
    specs = [draft.spec(v) for v in operands]
    if len({(s.dtype, s.device) for s in specs}) <= 1 or op.target in _NO_PROMOTION:
        return None
    common = _result_type(specs)
    dtype_of = dict.fromkeys(operands, common)
    return draft.add(op.replace(lambda v: cast(draft, v, dtype_of.get(v, draft.spec(v).dtype), device)))


def _result_type(specs: list[Spec]) -> torch.dtype:
    """torch's promotion: tensors with dimensions come before 0-d ones of the same or a lower category."""
    ranked = sorted(specs, key=lambda s: not s.shape)
    result = torch.empty(ranked[0].shape, dtype=ranked[0].dtype, device="meta")
    for spec in ranked[1:]:
        other = torch.empty(spec.shape, dtype=spec.dtype, device="meta")
        dtype = torch.result_type(result, other)
        result = torch.empty(result.shape or other.shape, dtype=dtype, device="meta")
    return result.dtype


def _copy(draft: Draft, op: Op) -> Val | None:
    """Functionalized `x[...] = y`: the result is y, with x's shape, dtype and device."""
    assert isinstance(op.spec, Spec)
    value = cast(draft, op.args[1], op.spec.dtype, op.spec.device)
    return (
        value if draft.spec(value) == op.spec else draft.call(aten.expand.default, value, op.spec.shape, spec=op.spec)
    )


def _full_like(draft: Draft, op: Op) -> Val | None:
    """Only the shape of the operand matters, so the result is the same for all rows: shared."""
    assert isinstance(op.spec, Spec)
    value = op.args[1] if op.target is aten.full_like.default else int(op.target is aten.ones_like.default)
    kwargs = {"dtype": op.spec.dtype, "device": op.spec.device}
    return (
        None if isinstance(value, Val) else draft.call(aten.full.default, op.spec.shape, value, spec=op.spec, **kwargs)
    )


def _masked_fill(draft: Draft, op: Op) -> Val | None:
    """Filling with a tensor becomes `where`; the value is converted to the dtype of the filled tensor first."""
    x, mask, value = op.args
    assert isinstance(op.spec, Spec)
    return draft.call(aten.where.self, mask, cast(draft, value, op.spec.dtype, op.spec.device), x, spec=op.spec)


def _argument(op: Op, place: int, name: str, default: Any) -> Any:
    return op.args[place] if len(op.args) > place else dict(op.kwargs).get(name, default)


_NO_PROMOTION = (aten.masked_fill.Scalar, aten._to_copy.default, aten.copy.default)
_REWRITES: dict[Any, Callable[[Draft, Op], Val | None] | Rewrite] = {
    **dict.fromkeys((aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default), _same),
    **dict.fromkeys((aten.lift_fresh.default, aten.contiguous.default, aten.resolve_conj.default), _same),
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.squeeze.dims), _view),
    **dict.fromkeys((aten.flatten.using_ints, aten.squeeze.default, aten.squeeze.dim, aten.unsqueeze.default), _view),
    aten._to_copy.default: _to_copy, aten.permute.default: _permute, aten.t.default: _t, aten.transpose.int: _transpose,
    aten.expand.default: _expand, operator.getitem: _item, aten.slice.Tensor: _slice, aten.bmm.default: _bmm,
    aten.masked_fill.Tensor: _masked_fill, aten.sum.dim_IntList: _sum, aten.cat.default: _cat,
    aten.copy.default: _copy, aten.full_like.default: _full_like,
    aten.zeros_like.default: _full_like, aten.ones_like.default: _full_like, aten.empty_like.default: _full_like,
}  # fmt: skip
