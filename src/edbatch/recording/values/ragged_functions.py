"""Torch functions of `Ragged` (stacks of any number of lazy values) that are batched across different lengths.

These are sum, mean, max, logsumexp, softmax and log-softmax over the rows, functions and modules that treat each row
alike, functions of the other dimensions, `rows @ v` and `w @ rows`. In: a call on `Ragged`. Out: its result, or
NotImplemented; then the caller gives the rows a fixed length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from edbatch.cells.segments import PER_ROW, mean_kernel, segment_kernel
from edbatch.layout.layout import Slot
from edbatch.recording.types.type_set import NodeType
from edbatch.recording.values.lazy import Lazy, Ragged, own_key
from edbatch.recording.values.ragged import check_owner, is_list, listed, name_of, operand, stack
from edbatch.recording.values.sums import sum_entry
from edbatch.spec import Spec, float_bits, is_tensor

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder

ELEMENTWISE = {
    "add", "sub", "mul", "div", "truediv", "rsub", "radd", "rmul", "neg", "abs", "exp", "log", "log1p", "expm1",
    "sqrt", "rsqrt", "square", "tanh", "sigmoid", "relu", "gelu", "silu", "elu", "leaky_relu", "softplus",
    "logsigmoid", "clamp", "dropout", "sin", "cos", "where",
}  # fmt: skip

OF_DIMENSIONS = {  # functions along dimensions, which are the second argument
    "sum", "mean", "prod", "var", "std", "max", "min", "amax", "amin", "argmax", "argmin", "logsumexp", "softmax",
    "log_softmax", "cumsum", "squeeze", "unsqueeze",
}  # fmt: skip
OF_ALL = ("sum", "mean", "amax")  # without `dim` they reduce all numbers: if rows are numbers, that is over the rows


def torch_function(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a torch function of rows so that it is batched across lengths; NotImplemented if that is not possible."""
    name = getattr(func, "__name__", "").strip("_")
    if name == "stack":
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        rows = stack(recorder, args[0]) if dim == 0 and args else None
        return NotImplemented if rows is None else rows
    if not args:
        return NotImplemented
    if name in REDUCTIONS and type(args[0]) is Ragged and _over_rows(name, args, kwargs):
        return reduce(recorder, name, args[0])
    if name in ("matmul", "mv") and not kwargs:
        return _product(recorder, *args)
    if (
        name == "linear"
        and type(args[0]) is Ragged
        and args[0].ndim > 1
        and not any(isinstance(a, Lazy) for a in args[1:])
    ):
        return recorder.row_wise(func, args, kwargs)
    if name in ELEMENTWISE and _is_row_wise(args, kwargs):
        return recorder.row_wise(func, args, kwargs)
    of_one = _of_one_row(name, args, kwargs) if name in OF_DIMENSIONS else None
    return NotImplemented if of_one is None else recorder.of_one_row(func, *of_one)


def is_over_rows(name: str, rows: Ragged, dim: Any = None, *rest: Any) -> bool:
    """`_over_rows` for the commonest ways to give a dimension."""
    if dim is None:
        return not rest and name in OF_ALL and not rows.kind.spec.shape
    return not rest and type(dim) is int and dim == 0


def _over_rows(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a reduction goes over the rows, and over nothing else."""
    rest = {k: v for k, v in kwargs.items() if k not in ("dim", "axis", "_stacklevel") and v not in (None, False)}
    dims = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
    if isinstance(dims, tuple | list) and len(dims) == 1:
        dims = dims[0]
    if rest or len(args) > 2:
        return False
    ndim = args[0].ndim
    if dims is None:
        return ndim == 1 and name in OF_ALL
    return type(dims) is int and dims in (0, -ndim)


def _is_row_wise(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an elementwise function broadcasts nothing along the dimension of the stack."""
    rows = [a for a in args if type(a) is Ragged]
    others = [a for a in (*args, *kwargs.values()) if isinstance(a, Lazy | torch.Tensor) and type(a) is not Ragged]
    if not rows or any(r.length != rows[0].length for r in rows) or any(isinstance(a, list | tuple) for a in args):
        return False
    least = min(r.ndim for r in rows)
    return all(r.ndim == least for r in rows) and all(a.ndim < least for a in others)


def _of_one_row(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """The arguments of the same call on a single row; None if the call is along the dimension of the stack."""
    rows, *rest = args
    keyword = next((k for k in ("dim", "axis") if k in kwargs), None)
    if type(rows) is not Ragged or (keyword is None and not rest):
        return None
    given = rest.pop(0) if keyword is None else kwargs[keyword]
    dims, ndim = given if isinstance(given, tuple | list) else [given], rows.ndim + (name == "unsqueeze")
    if not dims or not all(type(dim) is int and -ndim <= dim < ndim and dim % ndim for dim in dims):
        return None
    found = [dim % ndim - 1 for dim in dims]
    of_one = tuple(found) if isinstance(given, tuple | list) else found[0]
    return ((rows, of_one, *rest), kwargs) if keyword is None else ((rows, *rest), kwargs | {keyword: of_one})


def is_index_of_rows(rows: Ragged, index: tuple[Any, ...]) -> bool:
    """Whether an index takes the same of every row, like `rows[:, 0]` and `rows[..., 0]`."""
    if len(index) < 2 or not all(i is None or type(i) in (int, slice) for i in index[1:]):
        return False
    first, *rest = index
    if first is Ellipsis:
        return sum(i is not None for i in rest) < rows.ndim
    return type(first) is slice and first == slice(None)


def _product(recorder: Recorder, left: Any, right: Any) -> Any:
    if type(left) is Ragged and left.ndim == 2 and type(right) is not Ragged:
        if right.ndim == 1 or (right.ndim == 2 and is_tensor(right) and right in recorder.shared):
            return recorder.row_wise(torch.matmul, (left, right), {})
    elif type(left) is Ragged and type(right) is Ragged and left.ndim == 1 and right.length == left.length:
        return _sum(recorder, recorder.row_wise(scale, (right, left), {}))
    return NotImplemented


def scale(row: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One row times its weight. `torch.mul` of a stack and as many numbers would broadcast in another way."""
    return row * weight


def _sum(recorder: Recorder, rows: Ragged) -> Any:
    kind = rows.kind.one
    if kind.pending is None:
        return NotImplemented
    slot, flat = _sum_operand(recorder, rows)
    entry = recorder.entries.get(kind.sum_key) if slot is Slot.SUM else None
    return recorder.add(entry or sum_entry(recorder, kind, slot, recorder.context), flat)


def _mean(recorder: Recorder, rows: Ragged) -> Any:
    spec = rows.kind.spec
    if not spec.dtype.is_floating_point or spec.dtype.itemsize == 2:  # 16 bits would round the number of rows
        total = _sum(recorder, rows)
        return total if total is NotImplemented else total / rows.length
    number = Spec((), spec.dtype, spec.device)

    def make() -> NodeType:
        name = name_of(recorder, "mean of", slot, spec)
        kernel = mean_kernel(spec, grad=recorder.context.grad)
        return NodeType(name, kernel, (slot, Slot.DATA), (spec, number), (), (False,))

    slot, flat = _sum_operand(recorder, rows)
    return recorder.add(recorder.entry(own_key("mean", rows.kind, slot), make), [*flat, float_bits(rows.length)])


def _sum_operand(recorder: Recorder, rows: Ragged) -> tuple[Slot, list[int]]:
    return (Slot.SUM, listed(rows)) if is_list(recorder, rows) else (Slot.SUM_ROWS, [rows.ref])


def _segment(name: str) -> Callable[[Recorder, Ragged], Any]:
    def reduce(recorder: Recorder, rows: Ragged) -> Any:
        spec = rows.kind.spec

        def make() -> NodeType:
            kernel = segment_kernel(name, spec, grad=recorder.context.grad)
            per_row = (name in PER_ROW,) * len(kernel.outputs)
            return NodeType(
                name_of(recorder, f"{name} of", slot, spec), kernel, (slot, Slot.OFFSETS), (spec, None), (), per_row
            )

        if not spec.dtype.is_floating_point:
            return NotImplemented
        slot, flat = operand(recorder, rows)
        return recorder.add(recorder.entry(own_key(name, rows.kind, slot), make), flat, rows.length)

    return reduce


REDUCTIONS: dict[str, Callable[[Recorder, Ragged], Any]] = {
    "sum": _sum,
    "mean": _mean,
    "max": _segment("max"),
    "amax": _segment("amax"),
    "logsumexp": _segment("logsumexp"),
    "softmax": _segment("softmax"),
    "log_softmax": _segment("log_softmax"),
}
NAME_OF_REDUCTION = {
    function: name for name in REDUCTIONS for function in (getattr(torch, name), getattr(torch.Tensor, name))
}


def reduce(recorder: Recorder, name: str, rows: Ragged) -> Any:
    """A reduction over all rows; NotImplemented where there is none, as for integers."""
    check_owner(recorder, rows)
    return REDUCTIONS[name](recorder, rows)
