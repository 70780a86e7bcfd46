"""Which ops a body may hold: a table of decompositions, op -> a function of simpler ops with the same result.

These are torch's core decompositions, minus ops with a good batched kernel, plus a few of our own. Nothing here knows
of batches: each decomposition equals its op on one example.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional as F

from edbatch.errors import CaptureError
from edbatch.torch_insides.ops import OpOverload, core_decompositions

aten = torch.ops.aten
_INTS = (torch.int64, torch.int32, torch.int16, torch.int8)  # dtypes of an index; uint8 means a mask there

KEEP = frozenset({
    aten.detach.default,
    aten.sigmoid_backward.default, aten.tanh_backward.default, aten.threshold_backward.default, aten.gelu.default,
    aten.gelu_backward.default, aten.silu.default, aten.silu_backward.default, aten.elu.default,
    aten.elu_backward.default, aten.leaky_relu.default, aten.leaky_relu_backward.default, aten.hardtanh.default,
    aten.hardtanh_backward.default, aten.softplus.default, aten.softplus_backward.default,
    aten.log_sigmoid_forward.default, aten.log_sigmoid_backward.default, aten._softmax.default,
    aten._softmax_backward_data.default, aten._log_softmax.default, aten._log_softmax_backward_data.default,
    aten.native_layer_norm.default, aten.embedding.default, aten.embedding_dense_backward.default,
    aten.native_dropout.default, aten.addmm.default, aten.masked_fill.Scalar, aten.masked_fill.Tensor,
    aten.select_backward.default, aten.slice_backward.default, aten.logsumexp.default, aten.lerp.Scalar,
    aten.lerp.Tensor, aten.stack.default, aten.addcmul.default, aten.addcdiv.default, aten.zeros_like.default,
    aten.ones_like.default, aten.bernoulli.default, aten.bernoulli.p, aten.t.default, aten.transpose.int,
    aten.index_add.default, aten.glu.default, aten.rsub.Scalar, aten.rsub.Tensor, aten.index_select.default,
    aten.trace.default, aten.tril.default, aten.triu.default,
})  # fmt: skip


@lru_cache(maxsize=1)
def _core() -> dict[OpOverload, Callable[..., Any]]:
    return core_decompositions()


@lru_cache(maxsize=1)
def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """The table that capture follows."""
    table = {op: function for op, function in _core().items() if op not in KEEP}
    return table | {
        aten.native_layer_norm_backward.default: _layer_norm_backward,
        aten.embedding_dense_backward.default: _embedding_backward,
        aten.native_dropout_backward.default: lambda grad, mask, scale: grad * mask.to(grad.dtype) * scale,
        aten.nll_loss_forward.default: _nll_loss_forward,
        aten.nll_loss_backward.default: _nll_loss_backward,
        aten.mean.default: lambda x, dtype=None: aten.mean.dim(x, list(range(x.ndim)), False, dtype=dtype),
        aten.max.default: lambda x: aten.amax(x, list(range(x.ndim))),
        aten._trilinear.default: _trilinear,
        aten.baddbmm.default: _baddbmm,
        aten.addmv.default: _addmv,
        aten.split.Tensor: _split,
        aten.mv.default: lambda m, v: aten.mm(m, v.unsqueeze(1)).squeeze(1),
        aten.dot.default: lambda a, b: aten.mm(a.unsqueeze(0), b.unsqueeze(1)).reshape(()),
        aten.min.default: lambda x: aten.amin(x, list(range(x.ndim))),
    }


def _layer_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, shape: Any, mean: torch.Tensor, rstd: torch.Tensor, weight: Any, bias: Any,
    wanted: Any,
) -> Any:  # fmt: skip
    """The input's gradient stays one op; those of weight and bias become sums, which can wait for all rows."""
    if list(wanted) == [True, False, False]:
        return NotImplemented
    leading = list(range(x.ndim - len(shape)))
    dx = dw = db = None
    if wanted[0]:
        first = [True, False, False]
        dx = aten.native_layer_norm_backward.default(grad, x, shape, mean, rstd, weight, bias, first)[0]
    if wanted[1]:
        dw = grad * ((x - mean) * rstd)
        dw = (dw.sum(leading) if leading else dw).to(weight.dtype)
    if wanted[2]:
        db = (grad.sum(leading) if leading else grad).to(bias.dtype)
    return dx, dw, db


def _embedding_backward(grad: torch.Tensor, index: torch.Tensor, size: int, padding: int, by_frequency: bool) -> Any:
    """Frequencies are counted within one example, so the gradient is scaled here, before examples are added up."""
    if not by_frequency:
        return NotImplemented
    flat = index.reshape(-1)
    count = (flat.unsqueeze(0) == flat.unsqueeze(1)).sum(1).reshape(index.shape)
    return aten.embedding_dense_backward.default(grad / count.unsqueeze(-1).to(grad.dtype), index, size, padding, False)


def _nll_loss_forward(x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignored: int) -> Any:
    """One example's loss is one element of its log probabilities; an ignored label gives nan as a mean, else 0."""
    target = target.to(torch.int64)  # from uint8
    if x.ndim != 1 or weight is not None:
        return _core()[aten.nll_loss_forward.default](x, target, weight, reduction, ignored)
    skip = target == ignored
    loss = x.gather(0, target.masked_fill(skip, 0).unsqueeze(0)).squeeze(0).neg()
    return loss.masked_fill(skip, math.nan if reduction == 1 else 0.0), (~skip).to(x.dtype)


def _nll_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignored: int, total: Any
) -> Any:
    target = target.to(torch.int64)
    if x.ndim != 1 or weight is not None:
        core = _core()[aten.nll_loss_backward.default]
        return core(grad, x, target, weight, reduction, ignored, total)
    skip = target == ignored
    at = target.masked_fill(skip, 0).unsqueeze(0)
    return x.new_zeros(x.shape).scatter(0, at, grad.neg().masked_fill(skip, 0.0).unsqueeze(0))


def _split(x: torch.Tensor, size: int, dim: int = 0) -> Any:
    """Like torch's own decomposition, which imports sympy."""
    if size <= 0 or x.shape[dim] == 0:
        return _core()[aten.split.Tensor](x, size, dim)
    starts = range(0, x.shape[dim], size)
    return aten.split_with_sizes.default(x, [min(size, x.shape[dim] - start) for start in starts], dim)


def _baddbmm(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **factors: Any) -> Any:
    """Refuses mixed dtypes, as the op does; torch's own decomposition accepts them."""
    if not x.dtype == a.dtype == b.dtype:
        raise RuntimeError(f"baddbmm of operands of different dtypes: {x.dtype}, {a.dtype}, {b.dtype}")
    return _core()[aten.baddbmm.default](x, a, b, **factors)


def _addmv(x: torch.Tensor, a: torch.Tensor, *args: Any, **factors: Any) -> Any:
    """Of floats and whole numbers torch 2.6 rounds before it adds, and 2.13 refuses; one by one each does so."""
    if x.is_floating_point() != a.is_floating_point():
        raise CaptureError(f"addmv of {x.dtype} and {a.dtype}")
    return NotImplemented


def _trilinear(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, extra_a: Any, extra_b: Any, extra_c: Any, summed: Any, _: int = 1
) -> torch.Tensor:
    """A sum of products of three tensors, each missing some of the dimensions (nn.Bilinear)."""
    rank = a.ndim + len(extra_a)
    terms = [[d for d in range(rank) if d not in extra] for extra in (extra_a, extra_b, extra_c)]
    return torch.einsum(a, terms[0], b, terms[1], c, terms[2], [d for d in range(rank) if d not in summed])


def index_by_tensors(x: torch.Tensor, index: Any) -> torch.Tensor:
    """`x[index]` without reading 0-d integer tensors, which plain torch turns into Python ints. As for ints, these
    dimensions are selected from first, before the rest of the index."""
    items = index if isinstance(index, tuple) else (index,)
    rest, dim, others = [], 0, x.ndim - sum(map(_num_dims, items))
    for item in items:
        if _is_number(item):
            item = item if item.dtype in (torch.int64, torch.int32) else item.to(torch.int64)
            x = aten.index.Tensor(x, [None] * dim + [item])
            continue
        rest.append(item)
        dim += others if item is Ellipsis else _num_dims(item)
    return x[index] if len(rest) == len(items) else x[tuple(rest)] if rest else x


def _is_number(item: Any) -> bool:
    """Whether an item of an index is a 0-d tensor that stands for an int."""
    return isinstance(item, torch.Tensor) and item.ndim == 0 and item.dtype in _INTS


def _num_dims(item: Any) -> int:
    """How many dimensions an item of an index uses up, not counting what an ellipsis stands for."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8) else 1


def _one_hot(index: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Without the check of torch's own, which reads the data."""
    if num_classes <= 0:
        return torch.nn.functional.one_hot(index, num_classes)
    return (index.unsqueeze(-1) == torch.arange(num_classes, device=index.device)).to(torch.int64)


def _lstm_cell(x: Any, state: Any, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> Any:
    """In plain ops. torch's own writes in place on the CPU; on other devices it is a special op with a workspace."""
    h, c = state
    i, f, g, o = (F.linear(x, w_x, b_x) + F.linear(h, w_h, b_h)).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_cell(x: Any, h: Any, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> Any:
    r_x, z_x, n_x = F.linear(x, w_x, b_x).chunk(3, dim=-1)
    r_h, z_h, n_h = F.linear(h, w_h, b_h).chunk(3, dim=-1)
    n = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    return n + torch.sigmoid(z_x + z_h) * (h - n)


def _rnn_cell(activation: Callable[[Any], Any]) -> Callable[..., Any]:
    """Like torch's own, inside which Python code would not see the products (see `cutting`)."""
    return lambda x, h, w_x, w_h, b_x=None, b_h=None: activation(F.linear(x, w_x, b_x) + F.linear(h, w_h, b_h))


# Calls that read data, write in place or differ between devices -> an equal call that does not.
EQUAL_CALLS: dict[Any, Callable[..., Any]] = {
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    torch.rnn_tanh_cell: _rnn_cell(torch.tanh),
    torch.rnn_relu_cell: _rnn_cell(torch.relu),
    torch.Tensor.__getitem__: index_by_tensors,
    torch.nn.functional.one_hot: _one_hot,
}
