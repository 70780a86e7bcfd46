"""Writing in place is refused, because lazy values cannot be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edbatch.cells.in_place import IN_PLACE_OPERATORS, is_in_place
from edbatch.errors import InPlaceError


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
