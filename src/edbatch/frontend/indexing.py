"""Indexing lazy values: integers are data of the node, everything else belongs to its type."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from edbatch.frontend.lazy import Lazy, Rows
from edbatch.frontend.row_functions import is_index_of_rows
from edbatch.frontend.rows import check_owner
from edbatch.frontend.signature import Parts
from edbatch.spec import Spec

if TYPE_CHECKING:
    from edbatch.frontend.recorder import Recorder


def getitem(recorder: Recorder, value: Lazy, key: Any) -> Any:
    """`value[key]`. Integers, also lazy ones, are operands; slices, None and … belong to the type."""
    index = key if isinstance(key, tuple) else (key,)
    if type(value) is Rows:
        check_owner(recorder, value)
    if type(value) is Rows and len(index) == 1 and type(index[0]) is int and value.elements is not None:
        return value.elements[index[0]]
    if type(value) is Rows and is_index_of_rows(value, index):
        of_one = index if index[0] is Ellipsis else index[1:]
        return recorder.of_one_row(operator.getitem, (value, of_one), {})
    value = recorder.resolve(value)
    has_numbers = any(type(i) is int or isinstance(i, Lazy) for i in index)
    has_tensors = any(isinstance(i, torch.Tensor) or (isinstance(i, Lazy) and _is_mask_or_list(i)) for i in index)
    if has_tensors or not has_numbers:
        return recorder.record_op(operator.getitem, (value, key))
    return recorder.record_op(take_items, (value, *_in_bounds(index, value.shape)), Parts(recorder, is_cell=True))


def is_row_number(key: Any) -> bool:
    """Whether an index picks a row by a number."""
    return type(key) is int or (type(key) is tuple and len(key) > 0 and type(key[0]) is int)


def row_of(recorder: Recorder, table: torch.Tensor, key: Any) -> Any:
    """`parameter[number]`: the number is data. As part of the type it would make every row a type of its own."""
    first, *rest = _in_bounds(key if isinstance(key, tuple) else (key,), table.shape)
    numbers = Spec((), torch.int64, table.device)
    row = recorder.record_op(take_row, (table, first), Parts(recorder, number_like=numbers))
    return row[tuple(rest)] if rest else row


def take_row(table: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """`table[number]` as an embedding, whose gradient is formed once for all rows."""
    return torch.nn.functional.embedding(number, table.reshape(table.shape[0], -1)).reshape(table.shape[1:])


def _is_mask_or_list(index: Lazy) -> bool:
    return bool(index.shape) or index.dtype is torch.bool


def take_items(value: torch.Tensor, *index: Any) -> torch.Tensor:
    """`value[index]` for integers given as 0-d tensors, slices and None."""
    dim = 0
    for i in index:
        if isinstance(i, torch.Tensor):
            i = torch.where(i < 0, i + value.shape[dim], i)
            value = value.index_select(dim, i.reshape(1)).squeeze(dim)
        elif i is None:
            value, dim = value.unsqueeze(dim), dim + 1
        else:
            value, dim = value[(slice(None),) * dim + (i,)], dim + 1
    return value


def _in_bounds(index: tuple[Any, ...], shape: torch.Size) -> list[Any]:
    """An index with `...` written out and integers made non-negative; raises as torch would."""
    if any(i is Ellipsis for i in index):
        at = next(k for k, i in enumerate(index) if i is Ellipsis)
        missing = len(shape) - sum(i is not None for i in index) + 1
        index = (*index[:at], *[slice(None)] * missing, *index[at + 1 :])
    result, dim = [], 0
    for i in index:
        if i is not None and dim >= len(shape):
            raise IndexError(f"too many indices for a value of {len(shape)} dimensions")
        if type(i) is int:
            if not -shape[dim] <= i < shape[dim]:
                raise IndexError(f"index {i} is out of bounds for dimension {dim} with size {shape[dim]}")
            i = i % shape[dim]
        result.append(i)
        dim += i is not None
    return result
