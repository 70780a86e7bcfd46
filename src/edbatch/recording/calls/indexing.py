"""Indexing of lazy values, and of parameters by row.

Integers are data of the recorded call, so that calls with different integers run together. Slices, lists, None and …
decide the shape of the result and belong to the type of the call.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbatch.cells.capture.op_recorder import plain
from edbatch.recording.calls.entries import VIEWING
from edbatch.recording.calls.signature import Parts
from edbatch.recording.values.lazy import Lazy, Ragged, lazy
from edbatch.recording.values.ragged import check_owner
from edbatch.recording.values.ragged_functions import is_index_of_rows
from edbatch.spec import Spec
from edbatch.torch_insides.modes import DisableTorchFunction

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder


def getitem(recorder: Recorder, value: Lazy, key: Any) -> Any:
    """`value[key]`. Integers, also lazy ones, are operands; slices, lists, None and … belong to the type."""
    if type(value) is Ragged:
        check_owner(recorder, value)
        index = key if isinstance(key, tuple) else (key,)
        if len(index) == 1 and type(index[0]) is int and value.elements is not None and _is_element(recorder, value):
            place, element = range(value.length)[index[0]], value.elements[index[0]]
            value.taken = value.taken or {}
            value.taken[place] = value.taken.get(place, 0) + 1
            recorder.lineage.note_element(element)
            return recorder.note_part(value, (place,), lazy(element, value.kind.one))
        if is_index_of_rows(value, index):
            of_one = index if index[0] is Ellipsis else index[1:]
            return recorder.of_one_row(operator.getitem, (value, of_one), {})
    key = with_known_masks(recorder, value.shape, key)
    index = key if isinstance(key, tuple) else (key,)
    value = recorder.resolve(value)
    if not any(type(i) is int or isinstance(i, Lazy) or _is_number(i) for i in index):
        return recorder.record_op(operator.getitem, (value, key))
    items = in_bounds(index, value.shape)
    arrays = bool, _List, Lazy, torch.Tensor
    is_plain = not any(isinstance(i, arrays) and not _is_number(i) for i in items)
    take = take_items if is_plain else take_mixed
    return recorder.note_part(value, items, recorder.record_op(take, (value, *items), Parts(recorder, is_cell=True)))


def _is_element(recorder: Recorder, rows: Ragged) -> bool:
    """Whether an element of rows may be the stacked value itself; not under no_grad, if that has a gradient."""
    is_with_grad = rows.context.grad and recorder.context.grad
    return is_with_grad or not any(map(recorder.lineage.requires_grad, rows.elements or ()))


def with_known_masks(recorder: Recorder, shape: torch.Size, key: Any) -> Any:
    """An index into a value of this shape, with tensors in place of numpy arrays, and positions in place of masks.

    The numbers in a mask, and those that bound a slice, decide the shape of the result, so they are read: they must be
    given, as those of columns are.
    """
    if not isinstance(key, tuple):
        key = with_known_masks(recorder, shape, (key,))
        return key[0] if len(key) == 1 else key
    items = [torch.from_numpy(i) if isinstance(i, np.ndarray) else _with_bounds(i) for i in key]
    if not any(_is_mask(i) for i in items):
        return tuple(items)
    index: list[Any] = []
    dim, others = 0, len(shape) - sum(map(_num_dims, items))
    for i in items:
        if _is_mask(i) and i.shape != shape[dim : dim + i.ndim]:
            raise IndexError(f"a mask of shape {tuple(i.shape)} is an index of dimension {dim} of {tuple(shape)}")
        index += _numbers_of_mask(recorder, i) if _is_mask(i) else [i]
        dim += others if i is Ellipsis else _num_dims(i)
    return tuple(index)


def _with_bounds(item: Any) -> Any:
    """A slice with numbers for bounds; anything else as it is."""
    bounds = (item.start, item.stop, item.step) if isinstance(item, slice) else ()
    if not any(isinstance(bound, Lazy) for bound in bounds):
        return item
    return slice(*[operator.index(bound) if isinstance(bound, Lazy) else bound for bound in bounds])


def masked_select(value: Any, mask: Any) -> Any:
    """`torch.masked_select` as an index by a mask."""
    shape = torch.broadcast_shapes(value.shape, mask.shape)  # type: ignore[no-untyped-call]
    value, mask = [t if t.shape == shape else t.expand(shape) for t in (value, mask)]
    return value[mask] if shape else value[None][mask[None]]


def repeat_interleave(value: Any, repeats: Any = None, dim: int | None = None, *, output_size: Any = None) -> Any:
    """`torch.repeat_interleave` by a tensor of numbers, which are read, as an index."""
    numbers = (value if repeats is None else repeats).reshape(-1).tolist()
    if repeats is not None and dim is None:
        value, dim = value.flatten(), 0
    counts = numbers * value.shape[dim] if repeats is not None and len(numbers) == 1 else numbers
    rows = [i for i, count in enumerate(counts) for _ in range(count)]
    index = torch.tensor(rows, dtype=torch.int64, device=value.device)
    return index if repeats is None else value.index_select(dim, index)


def as_index(func: Any, args: Any, kwargs: Any) -> Any:
    """A call of a function whose result has as many rows as numbers say, by an index; NotImplemented for others."""
    if func in _MASKED_SELECT:
        return masked_select(*args, **kwargs)
    if func in _REPEATS and not isinstance(args[1] if len(args) > 1 else kwargs.get("repeats"), int):
        return repeat_interleave(*args, **kwargs)
    return NotImplemented


_MASKED_SELECT = {torch.masked_select, torch.Tensor.masked_select}
_REPEATS = {torch.repeat_interleave, torch.Tensor.repeat_interleave}


def _numbers_of_mask(recorder: Recorder, mask: Any) -> list[Any]:
    if isinstance(mask, Lazy):
        mask = recorder.read(mask, "as a mask in an index, where torch.where or masked_fill would keep the shape")
    else:
        recorder.changing = "it reads a mask"
    with DisableTorchFunction():
        return list(mask.nonzero(as_tuple=True)) if mask.ndim else [bool(mask)]


def _is_mask(item: Any) -> bool:
    return isinstance(item, Lazy | torch.Tensor) and item.dtype in (torch.bool, torch.uint8)


def _is_number(item: Any) -> bool:
    """Whether an item of an index is a tensor without dimensions, which torch reads as an integer."""
    return isinstance(item, Lazy | torch.Tensor) and not item.ndim and not _is_mask(item)


def _num_dims(item: Any) -> int:
    """How many dimensions of the value an item of an index takes; an ellipsis takes the rest and counts 0."""
    return item.ndim if _is_mask(item) else not (item is None or item is Ellipsis or isinstance(item, bool))


def is_row_number(key: Any) -> bool:
    """Whether an index picks a row by a number."""
    return type(key) is int or (type(key) is tuple and len(key) > 0 and type(key[0]) is int)


def row_of(recorder: Recorder, table: torch.Tensor, key: Any) -> Any:
    """`parameter[number]`: the number is data. As part of the type it would make every row a type of its own."""
    first, *rest = key if isinstance(key, tuple) else (key,)
    (first,) = in_bounds((first,), table.shape)
    numbers = Spec((), torch.int64, table.device)
    row = recorder.record_op(take_row, (table, first), Parts(recorder, number_like=numbers))
    return row[tuple(rest)] if rest else row


def take_row(table: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """`table[number]` as an embedding, whose gradient is formed once for all rows."""
    return torch.nn.functional.embedding(number, table.reshape(table.shape[0], -1)).reshape(table.shape[1:])


@dataclass(frozen=True)
class _List:
    """A list of numbers or flags in an index, as nested tuples; it belongs to the type."""

    items: Any


def _is_constant(items: Any) -> bool:
    return all(_is_constant(i) for i in items) if isinstance(items, list | tuple) else isinstance(items, int)


def take_mixed(value: torch.Tensor, *index: Any) -> torch.Tensor:
    """`value[index]` for integers given as 0-d tensors, and anything else that torch takes."""
    items = [torch.tensor(i.items, device=value.device) if isinstance(i, _List) else i for i in index]
    return value[tuple(i.long() if isinstance(i, torch.Tensor) and not i.numel() else i for i in items)]


def take_items(value: torch.Tensor, *index: Any) -> torch.Tensor:
    """`value[index]` for integers given as 0-d tensors, slices and None."""
    dim = 0
    for i in index:
        if isinstance(i, torch.Tensor):
            i = i.to(torch.int64)
            i = torch.where(i < 0, i + value.shape[dim], i)
            i = i.reshape(1)  # of a vector by gather, whose gradient is fused, and not a call for each row
            value = (value.gather(0, i) if value.dim() == 1 else value.index_select(dim, i)).squeeze(dim)
        elif i is None:
            value, dim = value.unsqueeze(dim), dim + 1
        else:
            value, dim = value[(slice(None),) * dim + (i,)], dim + 1
    return value


VIEWING.extend((take_items, take_row))


def put(recorder: Recorder, value: Any, key: Any, new: Any) -> Any:
    """What `value` is after `value[key] = new`."""
    if _is_mask(key) and getattr(new, "ndim", 0) <= value.ndim - key.ndim:  # numbers of the mask need not be read
        return torch.where(key.bool().reshape(*key.shape, *[1] * (value.ndim - key.ndim)), new, value)
    key = with_known_masks(recorder, value.shape, key)
    items = in_bounds(key if isinstance(key, tuple) else (key,), value.shape)
    return put_at(recorder, value, items, new)


def put_at(recorder: Recorder, value: Lazy, items: Sequence[Any], new: Any) -> Any:
    """The same for the items of an index in the form that `take_items` and `take_mixed` read."""
    return recorder.record_op(put_items, (value, new, *items), Parts(recorder, is_cell=True))


def put_items(value: torch.Tensor, new: Any, *index: Any) -> torch.Tensor:
    """A copy of `value` with `new` at an index."""
    places = torch.arange(value.numel(), device=value.device).reshape(value.shape)
    is_plain = not any(isinstance(i, _List) or (isinstance(i, torch.Tensor) and i.ndim) for i in index)
    places = (take_items if is_plain else take_mixed)(places, *index)
    new = new.to(value.dtype) if isinstance(new, torch.Tensor) else torch.full((), new, dtype=value.dtype)
    new = new.to(value.device)
    new = new.reshape(new.shape[max(new.ndim - places.ndim, 0) :]).expand(places.shape)
    return value.reshape(-1).scatter(0, places.reshape(-1), new.reshape(-1)).reshape(value.shape)


def in_bounds(index: tuple[Any, ...], shape: torch.Size) -> list[Any]:
    """An index with `...` written out, lists in a form that can be compared, and integers made non-negative; raises as
    torch would."""
    others = len(shape) - sum(map(_num_dims, index))
    result: list[Any] = []
    dim = 0
    for i in index:
        if i is Ellipsis:
            result += [slice(None)] * others
            dim += others
            continue
        if dim + _num_dims(i) > len(shape):
            raise IndexError(f"too many indices for a value of {len(shape)} dimensions")
        if type(i) is int:
            if not -shape[dim] <= i < shape[dim]:
                raise IndexError(f"index {i} is out of bounds for dimension {dim} with size {shape[dim]}")
            i = i % shape[dim]
        result.append(_List(plain(i)) if isinstance(i, list) and _is_constant(i) else i)
        dim += _num_dims(i)
    return result
