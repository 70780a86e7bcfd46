"""Calls that write in place, as calls that give a new value: `x.add_(y)` is `x + y`, and from then on x is the result.

In: a call with a lazy value among its arguments. Out: what the call returns, or NotImplemented if it writes nothing.
Whether the write may be done at all, and what else has to change, is decided in `writes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbatch.cells.capture.in_place import out_of_place
from edbatch.errors import InPlaceError
from edbatch.recording.calls.indexing import put
from edbatch.recording.values.lazy import Lazy, Ragged
from edbatch.recording.values.ragged import stack
from edbatch.recording.writes import is_put_back, set_row
from edbatch.spec import is_tensor

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder


def in_place(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call that writes its first argument, or `out=`; NotImplemented for any other call."""
    if kwargs.get("out") is not None:
        return _to_out(recorder, func, args, kwargs)
    if not args or not isinstance(args[0], Lazy | torch.Tensor):
        return NotImplemented
    target, name = args[0], getattr(func, "__name__", "")
    if name == "__setitem__":
        return _set_item(recorder, target, *args[1:])
    if name in AS_NEW:
        result = AS_NEW[name](*args, **kwargs)
    elif (plain := out_of_place(func)) is not None:
        result = recorder.torch_function(plain, args, kwargs)
    else:
        return NotImplemented
    return _write(recorder, target, result)


def _write(recorder: Recorder, target: Any, result: Any) -> Any:
    if result.dtype != target.dtype and torch.can_cast(result.dtype, target.dtype):
        result = result.to(target.dtype)
    return recorder.write(target, result) if isinstance(target, Lazy) else recorder.overwritten.write(target, result)


def _to_out(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = kwargs["out"]
    if not isinstance(out, Lazy | torch.Tensor):
        raise InPlaceError("out= is given several tensors; use the values that the function returns")
    result = recorder.torch_function(func, args, {key: value for key, value in kwargs.items() if key != "out"})
    if recorder.context.grad and result.requires_grad:
        raise InPlaceError("out= has no gradients in torch, but an argument requires them; use the returned value")
    return _write(recorder, out, result)


def _set_item(recorder: Recorder, target: Any, key: Any, new: Any) -> None:
    """`target[key] = new`."""
    if isinstance(new, np.ndarray | list | tuple):
        new = torch.as_tensor(new)
    if isinstance(new, Lazy | torch.Tensor) and new.dtype != target.dtype:
        new = new.to(target.dtype)  # type: ignore[union-attr]
    if _is_row(recorder, target, key, new):
        row = recorder.resolve(new if isinstance(new, Lazy) else recorder.outside(new.clone()))
        place = range(target.shape[0])[key]
        if is_tensor(target):
            recorder.overwritten.set_row(target, place, row)
        else:
            set_row(recorder, target, place, row)
        return
    index = key if isinstance(key, tuple) else (key,)
    if is_put_back(recorder, target, index, new):
        return
    whole = recorder.outside(target) if is_tensor(target) else target
    result = put(recorder, recorder.resolve(whole), key, new)
    if type(target) is Ragged:
        result = stack(recorder, list(result))
    _write(recorder, target, result)


def _is_row(recorder: Recorder, target: Any, key: Any, new: Any) -> bool:
    """Whether a row of a tensor of rows is written, which may be kept as a list of them."""
    if type(key) is not int or not isinstance(new, Lazy | torch.Tensor) or type(new) is Ragged:
        return False
    is_list = type(target) is Ragged and target.elements is not None and target.context is recorder.context
    if not (is_list or (is_tensor(target) and isinstance(new, Lazy))):
        return False
    is_there = target.ndim > 0 and -target.shape[0] <= key < target.shape[0]
    return bool(is_there and new.shape == target.shape[1:])


def _uniform(x: Any, low: float = 0.0, high: float = 1.0) -> Any:
    return torch.rand_like(x) * (high - low) + low


def _normal(x: Any, mean: float = 0.0, std: float = 1.0) -> Any:
    return torch.randn_like(x) * std + mean


def _filled(x: Any, value: Any) -> Any:
    is_value = isinstance(value, Lazy | torch.Tensor)
    return torch.zeros_like(x) + value.to(x.dtype) if is_value else torch.full_like(x, value)


def _copied(x: Any, source: Any, non_blocking: bool = False) -> Any:
    return source.to(x.dtype).expand(x.shape).clone()


AS_NEW: dict[str, Callable[..., Any]] = {  # methods of which torch has no other form
    "zero_": torch.zeros_like, "fill_": _filled, "copy_": _copied, "uniform_": _uniform, "normal_": _normal,
}  # fmt: skip
