"""Kernels for nodes (recorded calls) that read any number of values: stacks and sums as copies, and reductions.

In: the name of a reduction and the spec of a value. Out: a kernel. A reduction reads `rows = [x, offsets]`: x holds the
values of all nodes of the batch, and node b's segment is `x[offsets[b]:offsets[b + 1]]`. Forward and backward are
written by hand here. Nodes of different lengths run in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from edbatch.cells.kernel import Form, Launch, Lender, Mask, Programs, Read, Take
from edbatch.cells.tensor_programs import TensorBackward, TensorForward
from edbatch.spec import Spec
from edbatch.switches import Switches

if TYPE_CHECKING:
    from edbatch.runtime.binding import Binding

QUICK = (torch.float32, torch.float64)  # dtypes of the compiled loops
MAX_KERNELS = 1000  # so many are kept, for later calls to find the same kernel and all that was made for it


@dataclass(frozen=True)
class SegmentKernel:
    """A reduction (or softmax) over the segment of each node, from the table below. It runs the same on any device.

    reads: which operands `gradient` reads. reads_outs: whether it reads outputs.
    """

    name: str
    outputs: tuple[Spec, ...]
    run: Callable[[Any, Any], None]
    gradient: Callable[[Any, Any, Any], Any]
    reads: Mask = (True, True)
    reads_outs: bool = True
    grad: bool = True
    enclosed: tuple[Tensor, ...] = ()
    reason: str | None = None
    is_current: bool = True
    num_ops: int = 2  # the stack of rows and what is made of it
    is_pure: bool = True
    wanting: None = None
    writes: tuple[int, ...] = ()
    changes: tuple[Tensor, ...] = ()
    same: tuple[int | None, ...] = ()
    views: tuple[frozenset[int], ...] = ()

    def unflatten(self, values: Sequence[Any]) -> Any:
        return torch.return_types.max(values) if self.name == "max" else values[0]  # type: ignore[arg-type]

    def differentiable(self, need_rows: Mask, need_shared: Mask) -> Mask:
        return tuple(self.grad and need_rows[0] and spec.is_float for spec in self.outputs)

    def hoisted(self, recurrent: Mask) -> None:
        return None

    def form(self, reads: tuple[Read, ...], switches: Switches) -> Form:
        is_quick = self.name == "copy" and switches.move_rows and self.outputs[0].dtype in QUICK
        return COPY_FORM if is_quick and self.outputs[0].device.type == "cpu" else self

    def give_up(self) -> Form | None:
        return None

    def prologue(self, shared: Sequence[Tensor], take: Take = Spec.empty) -> None:
        return None

    def prologue_of_inference(self, shared: Sequence[Tensor], memory: Lender) -> None:
        return None

    @cached_property
    def infer(self) -> Programs:
        def forward(B: int, rows: Any, pro: Any, outs: Any, saved: Any) -> None:
            self.run(rows, outs)

        return Programs(TensorForward(forward))

    def training(self, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> Programs:
        return self._training

    @cached_property
    def _training(self) -> Programs:
        def backward(B: int, rows: Any, outs: Any, saved: Any, pro: Any, out_grads: Any, *_: Any) -> Any:
            return (self.gradient(rows, outs, out_grads),)

        reads_outs = (self.reads_outs,) * len(self.outputs)
        return replace(self.infer, backward=TensorBackward(backward, self.reads, reads_outs))


class Copy:
    """Copies the only operand to the output, by compiled loops that read its rows themselves."""

    def bind(self, x: Binding) -> Launch:
        return x.copier()


class CopyBack:
    """Adds gradients to the rows of the only operand."""

    def bind(self, x: Binding) -> Launch:
        return x.copier_back()


class CopyForm:
    """Copies of floats on the CPU."""

    is_pure = True
    infer = Programs(Copy())
    _training = replace(infer, backward=CopyBack())

    def training(self, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> Programs:
        return self._training

    def prologue(self, shared: Sequence[Tensor], take: Take = Spec.empty) -> None:
        return None

    def prologue_of_inference(self, shared: Sequence[Tensor], memory: Lender) -> None:
        return None

    def give_up(self) -> Form | None:
        return None


COPY_FORM = CopyForm()


@lru_cache(MAX_KERNELS)
def copy_kernel(spec: Spec, *, grad: bool) -> SegmentKernel:
    """Copies its only operand to the output: a stack of values, or a sum, which is formed when the operand is read."""

    def run(rows: Any, outs: Any) -> None:
        outs[0].copy_(rows[0])

    return SegmentKernel(
        "copy", (spec,), run, lambda rows, outs, grads: grads[0], reads=(False,), reads_outs=False, grad=grad
    )


@lru_cache(MAX_KERNELS)
def mean_kernel(spec: Spec, *, grad: bool) -> SegmentKernel:
    """Divides its first operand, a sum that is formed when the operand is read, by its second, the number of terms."""

    def run(rows: Any, outs: Any) -> None:
        torch.div(rows[0], _like(rows[1], rows[0]), out=outs[0])

    def gradient(rows: Any, outs: Any, grads: Any) -> Any:
        return grads[0] / _like(rows[1], grads[0])

    return SegmentKernel("mean", (spec,), run, gradient, reads=(False, True), reads_outs=False, grad=grad)


@lru_cache(MAX_KERNELS)
def segment_kernel(name: str, spec: Spec, *, grad: bool) -> SegmentKernel:
    """The kernel that reduces rows of `spec` over each segment: max, amax, logsumexp, softmax or log_softmax."""
    run, gradient = _TABLE[name]
    index = (Spec(spec.shape, torch.int64, spec.device),) if name == "max" else ()
    return SegmentKernel(name, (spec, *index), run, gradient, reads=(name not in PER_ROW, True), grad=grad)


def segment_ids(offsets: Tensor, num_rows: int) -> Tensor:
    """For every row of x the number of its segment."""
    numbers = torch.arange(offsets.shape[0] - 1, device=offsets.device)
    return torch.repeat_interleave(numbers, offsets.diff(), output_size=num_rows)


def _like(ids: Tensor, x: Tensor) -> Tensor:
    return ids.view(-1, *[1] * (x.dim() - 1)).expand_as(x)


def _reduce(x: Tensor, ids: Tensor, num: int, how: str) -> Tensor:
    return x.new_zeros(num, *x.shape[1:]).scatter_reduce_(0, _like(ids, x), x, how, include_self=False)


def _amax(rows: Any, outs: Any) -> None:
    x, offsets = rows
    outs[0].copy_(_reduce(x, segment_ids(rows[1], len(rows[0])), offsets.shape[0] - 1, "amax"))


def _amax_gradient(rows: Any, outs: Any, grads: Any) -> Any:
    ids = segment_ids(rows[1], len(rows[0]))
    hit = (rows[0] == outs[0].index_select(0, ids)).to(grads[0].dtype)
    share = grads[0] / torch.zeros_like(grads[0]).index_add_(0, ids, hit)
    return share.index_select(0, ids) * hit


def _local(rows: Any, ids: Tensor) -> Tensor:
    """The position of every row inside its segment."""
    x, offsets = rows
    local = torch.arange(x.shape[0], device=offsets.device) - offsets[:-1].index_select(0, ids)
    return _like(local, x)


def _max(rows: Any, outs: Any) -> None:
    x, offsets = rows
    ids = segment_ids(rows[1], len(rows[0]))
    top = _reduce(x, ids, offsets.shape[0] - 1, "amax")
    outs[0].copy_(top)
    hit = (x == top.index_select(0, ids)) | x.isnan()
    place = torch.where(hit, _local(rows, ids), x.shape[0])
    outs[1].copy_(_reduce(place, ids, offsets.shape[0] - 1, "amin"))


def _max_gradient(rows: Any, outs: Any, grads: Any) -> Any:
    ids = segment_ids(rows[1], len(rows[0]))
    hit = _local(rows, ids) == outs[1].index_select(0, ids)
    return torch.where(hit, grads[0].index_select(0, ids), 0.0)


def _sum(x: Tensor, ids: Tensor, num: int) -> Tensor:
    """The sum of each segment; float32 is added up in float64, or long segments would lose digits."""
    wide = torch.float64 if x.dtype is torch.float32 else x.dtype
    return x.new_zeros(num, *x.shape[1:], dtype=wide).index_add_(0, ids, x.to(wide)).to(x.dtype)


def _below_top(rows: Any, *, finite: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """x - top; top, the maximum of each segment; the segment of each row of x. With `finite`, infinite tops are 0."""
    x, offsets = rows
    ids = segment_ids(offsets, len(x))
    top = _reduce(x, ids, offsets.shape[0] - 1, "amax")
    if finite:
        top.masked_fill_(top.isinf(), 0.0)
    return x - top.index_select(0, ids), top, ids


def _logsumexp(rows: Any, outs: Any) -> None:
    """As in torch, an infinite maximum is not subtracted (it counts as 0), so that the result is that infinity."""
    below, top, ids = _below_top(rows, finite=True)
    torch.add(_sum(below.exp_(), ids, len(top)).log_(), top, out=outs[0])


def _logsumexp_gradient(rows: Any, outs: Any, grads: Any) -> Any:
    ids = segment_ids(rows[1], len(rows[0]))
    share = (rows[0] - outs[0].index_select(0, ids)).exp_()
    return share.mul_(grads[0].index_select(0, ids))


def _softmax(rows: Any, outs: Any) -> None:
    below, top, ids = _below_top(rows)
    exponentials = below.exp_()
    torch.div(exponentials, _sum(exponentials, ids, len(top)).index_select(0, ids), out=outs[0])


def _softmax_gradient(rows: Any, outs: Any, grads: Any) -> Any:
    ids = segment_ids(rows[1], len(outs[0]))
    total = _sum(grads[0] * outs[0], ids, len(rows[1]) - 1)
    return (grads[0] - total.index_select(0, ids)).mul_(outs[0])


def _log_softmax(rows: Any, outs: Any) -> None:
    below, top, ids = _below_top(rows)
    torch.sub(below, _sum(below.exp(), ids, len(top)).log_().index_select(0, ids), out=outs[0])


def _log_softmax_gradient(rows: Any, outs: Any, grads: Any) -> Any:
    ids = segment_ids(rows[1], len(outs[0]))
    total = _sum(grads[0], ids, len(rows[1]) - 1)
    return grads[0] - outs[0].exp().mul_(total.index_select(0, ids))


PER_ROW = ("softmax", "log_softmax")  # as many results as operands, which their gradients do not read
_TABLE: dict[str, tuple[Callable[[Any, Any], None], Callable[[Any, Any, Any], Any]]] = {
    "amax": (_amax, _amax_gradient),
    "max": (_max, _max_gradient),
    "logsumexp": (_logsumexp, _logsumexp_gradient),
    "softmax": (_softmax, _softmax_gradient),
    "log_softmax": (_log_softmax, _log_softmax_gradient),
}
