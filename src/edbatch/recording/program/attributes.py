"""Describes the settings that modules hold in attributes. When one changes, code captured before may be out of date.

In: an attribute. Out: a hashable description, which changes with the setting (`describe`). Collections and records of
constants are described by their contents; tensors, arrays, functions and classes by identity. Anything else is left
out, and so are tensors that were computed, such as values that a cell keeps in an attribute.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
from collections.abc import Hashable
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from edbatch.spec import float_bits
from edbatch.torch_insides.modes import is_functional
from edbatch.torch_insides.modules import INTERNAL

SCALARS = (
    int, float, complex, bool, str, bytes, type(None), enum.Enum, range, np.number, np.bool_, torch.dtype, torch.device,
)  # fmt: skip
OBJECTS = (np.ndarray, FunctionType, BuiltinFunctionType, MethodType, type)
RECORDS = (SimpleNamespace, argparse.Namespace)
MAX_PARTS = 300  # of a collection, with nested ones; a larger one is data, such as a vocabulary, and left out


class Same:
    """An object, compared by identity. It is kept alive, so that no other object gets its id."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def mark(constant: Any) -> Hashable:
    """A constant in a form to compare it by: 1 and True differ, 0.0 and -0.0 differ, NaN equals NaN."""
    if isinstance(constant, float):
        return type(constant), float_bits(constant)
    return type(constant), constant.tobytes() if isinstance(constant, np.generic) else constant


class _TooLarge(Exception):
    pass


def describe(value: Any) -> Hashable | None:
    """The description of an attribute; None if it holds no settings.

    >>> describe({"scale": 2.0, "layers": [1, 2]}) == describe({"scale": 2.0, "layers": [1, 3]})
    False
    """
    try:
        return _describe(value, [MAX_PARTS])
    except _TooLarge:
        return None


def _describe(value: Any, room: list[int]) -> Hashable | None:
    room[0] -= 1
    if room[0] < 0:
        raise _TooLarge
    if isinstance(value, SCALARS):
        return mark(value)
    if isinstance(value, OBJECTS) or _is_given(value):
        return Same(value)
    if isinstance(value, RECORDS):
        return type(value), _describe(vars(value), room)
    if dataclasses.is_dataclass(value):
        return type(value), tuple([_describe(getattr(value, f.name, None), room) for f in dataclasses.fields(value)])
    if isinstance(value, dict):
        items = [(mark(k) if isinstance(k, SCALARS) else Same(k), _describe(v, room)) for k, v in value.items()]
        return type(value), tuple([item for item in items if item[1] is not None])
    if isinstance(value, list | tuple | set | frozenset):
        parts = [says for v in value if (says := _describe(v, room)) is not None]
        return type(value), frozenset(parts) if isinstance(value, set | frozenset) else tuple(parts)
    return None


def _is_given(value: Any) -> bool:
    """Whether a value is a tensor that was not computed, neither with autograd nor while a cell was captured."""
    if type(value) not in (torch.Tensor, nn.Parameter):
        return False
    return value.grad_fn is None and not is_functional(value)


def can_change(value: Any) -> bool:
    """Whether the description of an attribute may change while it stays the same object."""
    if isinstance(value, tuple | frozenset):
        return any(map(can_change, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return isinstance(value, (dict, list, set, *RECORDS))
    is_frozen = value.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return not is_frozen or any(can_change(getattr(value, f.name, None)) for f in dataclasses.fields(value))


def settings_of(module: nn.Module) -> list[tuple[str, Any]]:
    """The attributes of a module that may hold settings, without those that are a single constant."""
    held = list(module.__dict__.items())  # another thread that records may place children there
    return [(k, v) for k, v in held if k not in INTERNAL and not isinstance(v, (nn.Module, *SCALARS))]
