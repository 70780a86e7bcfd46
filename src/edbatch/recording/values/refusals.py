"""Refuses what cannot be done with lazy values, which have no numbers yet, and says what to write instead.

Reading them, most writes in place, and gradients or transforms of torch.func inside a batched function. Also refused:
batched calls inside a transform, and tensors with a tangent (forward-mode gradient).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

from edbatch.cells.capture.in_place import is_in_place
from edbatch.errors import BatchError, InPlaceError, RecordingError
from edbatch.torch_insides.transforms import FILES, innermost_transform, is_forward_mode

TRANSFORMS = (
    "a gradient, or a transform of torch.func or torch.autograd.functional, was asked for inside the batched function, "
    "where values do not exist yet; put all of it into a cell (edbatch.cell), with its values as arguments, or apply "
    "it to single examples, outside"
)

IN_C = (
    "code in C took a lazy value for a tensor, without asking torch's functions; if it is Variable(h), leave Variable "
    "out (it gives h), and put other such calls into a cell (edbatch.cell), with their values as arguments"
)


def explained(error: Exception) -> Exception:
    """The error to show for one of the user's function: the same, or a clear one if a transform was given lazy values.

    Such a call cannot be seen before: torch's transforms look for tensors by themselves, and complain.
    """
    if "Expected a proper Tensor" in str(error):
        return RecordingError(f"{IN_C}. torch says: {error}")
    frames = [frame.f_code.co_filename.replace("\\", "/") for frame, _ in traceback.walk_tb(error.__traceback__)]
    in_cell = any(name.endswith("edbatch/recording/types/kernel_cache.py") for name in frames)
    if TRANSFORMS in str(error) or in_cell or not any(part in name for part in FILES for name in frames):
        return error
    return RecordingError(f"{TRANSFORMS}. torch says: {error}")


def refuse(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if a call on lazy values can have no meaning; the error says what to write instead."""
    name = getattr(func, "__name__", "")
    if func in (torch.Tensor.backward, torch.autograd.backward):
        raise RecordingError(
            "backward was called inside the batched function, where values do not exist yet; return the loss, and call "
            "backward on what the batched function returns"
        )
    if func is torch.autograd.grad:
        raise RecordingError(TRANSFORMS)
    if is_in_place(func):
        raise InPlaceError(
            f"{name} writes in place, and there is no function that gives the same as a new value; make it by other "
            "functions, and rebind the name: x = …"
        )


def refuse_transforms() -> None:
    """Raise if a batched call is inside a transform of torch.func, which would not see what is computed."""
    if innermost_transform() is not None:
        raise BatchError(
            "a batched function was called inside torch.func.vmap, grad, jvp or the like, which cannot see into it; "
            "use batched.one_by_one(...) there, or backward() for gradients"
        )


def refuse_tangents(tensors: Iterable[torch.Tensor]) -> None:
    """Raise if one of the tensors that a batched call reads has a tangent, which would be lost."""
    if not is_forward_mode():
        return
    unpack: Any = forward_ad.unpack_dual
    if any(unpack(tensor).tangent is not None for tensor in tensors):
        raise BatchError(
            "a tensor with a tangent (forward mode of torch.autograd) was given to a batched function, which has "
            "gradients in reverse mode only; use batched.one_by_one(...) there"
        )
