"""Ops that only move elements, such as slices and padding: which range of elements of their source or result it is.

In: an op of a body. Out: (begin, width) of a range of flattened elements, or None where it is not a single range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from edbatch.cells.body.body import Body, Op, Val
from edbatch.spec import Spec

aten = torch.ops.aten


def _flat_from(shape: Sequence[int], dim: int) -> bool:
    """Whether a range along a dimension is a single range of the flattened elements."""
    return all(s == 1 for s in shape[:dim])


def _flat_range(shape: Sequence[int], dim: int, part: slice) -> tuple[int, int] | None:
    """The flattened elements that a slice along a dimension takes, as (begin, width), if they are one range."""
    dim %= len(shape)
    first, last, step = part.indices(shape[dim])
    inner = math.prod(shape[dim + 1 :])
    return (first * inner, max(last - first, 0) * inner) if step == 1 and _flat_from(shape, dim) else None


def _item(shape: Sequence[int], dim: int, place: int) -> slice:
    place %= shape[dim]
    return slice(place, place + 1)


def _slice_range(body: Body, op: Op) -> tuple[int, int] | None:
    given: list[Any] = [*op.args[1:], *(0, None, None, 1)[len(op.args) - 1 :]]
    dim, start, stop, step = given
    return _flat_range(body.spec(op.args[0]).shape, dim, slice(start, stop, step))


def _select_range(body: Body, op: Op) -> tuple[int, int] | None:
    shape, (_, dim, place) = body.spec(op.args[0]).shape, op.args
    return _flat_range(shape, dim, _item(shape, dim, place))


def _slice_backward_range(body: Body, op: Op) -> tuple[int, int] | None:
    _, shape, dim, start, stop, step = op.args
    return _flat_range(shape, dim, slice(start, stop, step))


def _select_backward_range(body: Body, op: Op) -> tuple[int, int] | None:
    _, shape, dim, place = op.args
    return _flat_range(shape, dim, _item(shape, dim, place))


def _whole(body: Body, op: Op) -> tuple[int, int] | None:
    return 0, math.prod(body.spec(op.args[0]).shape)


def _one_element(body: Body, op: Op) -> tuple[int, int] | None:
    return (0, 1) if math.prod(body.spec(op.args[0]).shape) == 1 else None


def _along_rows(body: Body, op: Op) -> tuple[int, int] | None:
    assert isinstance(op.spec, Spec)
    return (0, 0) if _flat_from(op.spec.shape, op.args[1] % len(op.spec.shape)) else None


SHIFTS: dict[Any, Callable[[Body, Op], tuple[int, int] | None]] = {
    aten.view.default: _whole, aten.slice.Tensor: _slice_range, aten.select.int: _select_range,
}  # fmt: skip
PADDING: dict[Any, Callable[[Body, Op], tuple[int, int] | None]] = {
    aten.slice_backward.default: _slice_backward_range, aten.select_backward.default: _select_backward_range,
}  # fmt: skip
RANGES = {**SHIFTS, **PADDING, aten.cat.default: _along_rows, aten.expand.default: _one_element}


def behind_shifts(body: Body, value: Val, is_known: Callable[[int], bool]) -> tuple[int, int]:
    """The value of whose elements an operand is one range, and where that begins. The search ends at known values."""
    begin, op = 0, body.op(value)
    while not is_known(value.index) and op is not None and op.target in SHIFTS:
        found = SHIFTS[op.target](body, op)
        if found is None:
            break
        begin, value = begin + found[0], op.args[0]
        op = body.op(value)
    return value.index, begin
