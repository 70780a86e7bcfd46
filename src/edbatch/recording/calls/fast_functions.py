"""A short cut for torch functions whose arguments are like those of an earlier call.

In: a call. Out: its result, or None if it needs a closer look; then it goes the usual way, by `Parts` (`signature.py`).
The keys that are looked up must be those that `Parts` builds. Cells have a short cut of their own, in C: `fast_cells`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from edbatch.layout.layout import Slot
from edbatch.recording.values.lazy import Lazy, Ragged
from edbatch.recording.values.ragged_functions import NAME_OF_REDUCTION, is_over_rows, reduce
from edbatch.spec import float_bits

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder

ADD = {operator.add, torch.add, torch.Tensor.add, torch.Tensor.__add__}
ARITHMETIC = ADD | {
    operator.sub, operator.mul, operator.truediv, torch.sub, torch.mul, torch.div, torch.Tensor.sub, torch.Tensor.mul,
    torch.Tensor.div, torch.Tensor.__sub__, torch.Tensor.__mul__, torch.Tensor.__truediv__, torch.Tensor.__radd__,
    torch.Tensor.__rmul__, torch.Tensor.__rsub__,
}  # fmt: skip


def known(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call whose signature this recording has seen; None for any other."""
    key: list[Any] = [func]
    flat: list[int] = []
    for a in args:
        if type(a) is Lazy:  # as in `_take`, without calling it
            key.append(a.kind)
            flat.append(a.ref)
        elif type(a) is Ragged:
            return None if kwargs else known_rows(recorder, func, args)
        elif not _take(a, key, flat, are_data=func in ARITHMETIC):
            return None
    if kwargs:
        key.append(("keywords", *kwargs))
        if not all(_take(a, key, flat, are_data=False) for a in kwargs.values()):
            return None
    entry = recorder.entries.get(tuple(key))
    if entry is None or not recorder.is_open:
        return None
    return recorder.add(entry, flat) if entry.is_plain else None


def _take(value: Any, key: list[Any], flat: list[int], *, are_data: bool) -> bool:
    """Take an argument as `Parts.take` would; False if it needs a closer look. `are_data`: numbers are data."""
    kind = type(value)
    if kind is Lazy:
        key.append(value.kind)
        flat.append(value.ref)
    elif kind is nn.Parameter:
        key.append(id(value))
    elif kind is tuple or kind is list:
        key += (kind, len(value))
        return all(_take(a, key, flat, are_data=are_data) for a in value)
    elif kind is bool or value is None:
        key.append(value)
    elif kind is not int and kind is not float:
        return False
    elif are_data:
        key.append(kind)
        flat.append(value if kind is int else float_bits(value))
    else:
        key.append((kind, value if kind is int else float_bits(value)))
    return True


def known_rows(recorder: Recorder, func: Any, args: tuple[Any, ...]) -> Any:
    """Like `known`, for stacks of any length: reductions over the rows, and functions that treat each row alike."""
    if not recorder.is_open:
        return None
    reduction = NAME_OF_REDUCTION.get(func)
    if reduction is not None:
        if type(args[0]) is not Ragged or not is_over_rows(reduction, *args):
            return None
        found = reduce(recorder, reduction, args[0])
        return None if found is NotImplemented else found
    key: list[Any] = [torch.matmul if func is operator.matmul else func]
    flat = []
    length = None
    for a in args:
        if type(a) is Ragged and a.ref is not None and length in (None, a.length):
            key += (a.kind, Slot.ROWS)
            length = a.length
        elif type(a) is Lazy:
            key += (a.kind, Slot.REPEAT)
        else:
            return None
        flat.append(a.ref)
    entry = recorder.entries.get(tuple(key))
    return recorder.add(entry, flat, length) if entry is not None and entry.is_plain else None
