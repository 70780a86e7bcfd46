"""Which of torch's functions write in place, told by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
IN_PLACE_OPERATORS = {f"__i{name}__" for name in OPERATORS}
DESCRIBING = {"requires_grad_", "retain_grad_", "rename_"}  # these write no data


def is_in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    if getattr(func, "__module__", None) == "_operator" or name in DESCRIBING:  # operator.and_ and or_ write nothing
        return False
    return (
        name in ("__setitem__", "__set__")
        or (name.endswith("_") and not name.endswith("__"))
        or name in IN_PLACE_OPERATORS
    )
