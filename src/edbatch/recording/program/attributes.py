"""What an attribute of a module says, as far as bodies read such things: collections and records of constants by their
contents; tensors, arrays, functions and classes by what object they are; anything else not at all.

Tensors that were computed, such as values that a body leaves in an attribute, say nothing.
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
MAX_PARTS = 300  # of a collection; a larger one is data, a vocabulary perhaps, and not looked into


class Same:
    """An object by its identity. It is kept alive, or another one could take its place."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def mark(constant: Any) -> Hashable:
    """What tells a constant apart from all others, also 1 from True, 0.0 from -0.0, and not NaN from NaN."""
    if isinstance(constant, float):
        return type(constant), float_bits(constant)
    return type(constant), constant.tobytes() if isinstance(constant, np.generic) else constant


class _TooLarge(Exception):
    pass


def describe(value: Any) -> Hashable | None:
    """What an attribute says; None if it says nothing.

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
    """Whether a value is a tensor that was not computed, not even while a body was captured."""
    if type(value) not in (torch.Tensor, nn.Parameter):
        return False
    return value.grad_fn is None and not is_functional(value)


def can_change(value: Any) -> bool:
    """Whether what an attribute says may change although it is the same object."""
    if isinstance(value, tuple | frozenset):
        return any(map(can_change, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return isinstance(value, (dict, list, set, *RECORDS))
    is_frozen = value.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return not is_frozen or any(can_change(getattr(value, f.name, None)) for f in dataclasses.fields(value))


def settings_of(module: nn.Module) -> list[tuple[str, Any]]:
    """The attributes of a module that may hold settings of its own, but for constants."""
    held = list(module.__dict__.items())  # another thread that records may place children there
    return [(k, v) for k, v in held if k not in INTERNAL and not isinstance(v, (nn.Module, *SCALARS))]
