"""What lazy values do not allow: to be written in place, and to be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edbatch.cells.in_place import IN_PLACE_OPERATORS, is_in_place
from edbatch.errors import InPlaceError, RecordingError, ValueReadError


def refuse(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises if a call, which has lazy values among its arguments, can have no meaning; says what to write instead."""
    name = getattr(func, "__name__", "")
    if func is torch.tensor and args and isinstance(args[0], list | tuple):
        raise ValueReadError(
            "torch.tensor reads its values, but lazy values have none while examples are recorded; use "
            "torch.stack(values)"
        )
    if func is torch.Tensor.backward:
        raise RecordingError(
            "backward was called inside the batched function, where values do not exist yet; return the loss, and call "
            "backward on what the batched function returns"
        )
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
