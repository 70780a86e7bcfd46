"""Which of torch's functions write in place, by their names, and which functions give the same result without that."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
IN_PLACE_OPERATORS = {f"__i{name}__" for name in OPERATORS}
RESIZING = {"resize_", "resize_as_", "set_", "share_memory_"}  # change the memory itself
DESCRIBING = {"requires_grad_", "retain_grad_", "rename_"}  # they end in _ but write no data


def out_of_place(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """The function that returns what `func` would write into its first argument; None if there is none."""
    name = getattr(func, "__name__", "")
    if not is_in_place(func) or name in ("__setitem__", "__set__"):
        return None
    if name in IN_PLACE_OPERATORS:
        return getattr(operator, name.replace("__i", "__", 1))  # type: ignore[no-any-return]
    if name in RESIZING:
        return None
    found = [getattr(holder, name[:-1], None) for holder in (torch.Tensor, torch.nn.functional, torch)]
    return next(filter(callable, found), None)


def is_in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    if getattr(func, "__module__", None) == "_operator" or name in DESCRIBING:  # operator.and_ and or_ write nothing
        return False
    return (
        name in ("__setitem__", "__set__")
        or (name.endswith("_") and not name.endswith("__"))
        or name in IN_PLACE_OPERATORS
    )
