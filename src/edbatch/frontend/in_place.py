"""Writing in place: what is refused, because lazy values cannot be written, and how it is recognised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edbatch.errors import InPlaceError

IN_PLACE_OPERATORS = {
    f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
}


def is_in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    if getattr(func, "__module__", None) == "_operator":  # and_, or_
        return False
    return (
        name in ("__setitem__", "__set__")
        or (name.endswith("_") and not name.endswith("__"))
        or name in IN_PLACE_OPERATORS
    )


def refuse_in_place(func: Callable[..., Any], kwargs: Any) -> None:
    name = getattr(func, "__name__", "")
    if name == "__setitem__":
        raise InPlaceError(
            "a lazy value cannot be written into a plain tensor (buf[i] = value); collect the values in a list and "
            "use torch.stack(values)"
        )
    if is_in_place(func):
        plain = name.strip("_").removeprefix("i") if name in IN_PLACE_OPERATORS else name.strip("_")
        raise InPlaceError(
            f"{name} writes in place, which lazy values do not allow; use {plain} and rebind: x = x.{plain}(…)"
        )
    if kwargs.get("out") is not None:
        raise InPlaceError("out= writes in place, which lazy values do not allow; use the returned value")
