"""Stand-ins: while a cell is captured, its real tensors (parameters, buffers, closures) are replaced by fake ones.

A torch-function mode sees every torch call of the function and swaps its tensor arguments; calls that cannot run
without data are replaced by equal ones that can. Attributes that the function changes are set back: a stand-in must not
stay in a module.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from edbatch.cells.capture.decompose import EQUAL_CALLS
from edbatch.cells.capture.in_place import is_in_place
from edbatch.errors import CaptureError, InPlaceError, RecordingError
from edbatch.spec import is_tensor
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction
from edbatch.torch_state.belongings import Belongings
from edbatch.torch_state.modules import modules_of

DEPTH = 4  # how many closures within closures are searched for modules
HOOKING = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)


class Lend(TorchFunctionMode):
    """Replaces real tensors by stand-ins, and calls that do not work on fake tensors by equal ones."""

    def __init__(self, stand_in: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.stand_in = stand_in
        self.given: Sequence[torch.Tensor] = ()  # the cell's arguments
        self.sparse: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_in_place(func) and args and is_tensor(args[0]) and self.stand_in(args[0]) is not args[0]:
            raise CaptureError("the body writes into a parameter or buffer in place")
        if func in (torch.Tensor.backward, torch.autograd.backward):
            raise RecordingError(
                "backward was called inside a cell, where gradients cannot be added up; return the loss, and call "
                "backward on what the batched function returns, or use torch.autograd.grad"
            )
        if func in HOOKING and self._is_from_outside(args[0]):
            raise RecordingError(
                "a cell puts a hook on its argument or on a parameter, but sees only the part of the gradient that "
                "comes through itself; put the hook on the value outside of cells, or on a value computed in the cell"
            )
        is_ended = func is torch.Tensor.requires_grad_ and False in (*args[1:], *(kwargs or {}).values())
        if is_ended and self._is_from_outside(args[0]):
            raise RecordingError("a cell calls requires_grad_(False) of its argument or a parameter; use detach()")
        if kwargs and any(out is t for out in pytree.tree_leaves(kwargs.get("out")) for t in self.given):
            raise InPlaceError("a cell writes its argument by out=…; compute a new value and return it")
        args, kwargs = pytree.tree_map_only(is_tensor, self.stand_in, (args, kwargs or {}))
        if func is torch.nn.functional.group_norm and not args[0].numel():
            raise CaptureError("torch gives no number as gradient of a group norm of nothing")
        if func in EQUAL_CALLS:
            return EQUAL_CALLS[func](*args, **kwargs)
        if func in (torch.nn.functional.embedding, torch.embedding):
            args, kwargs = self._dense(func, args, kwargs)
        return func(*args, **kwargs)

    def _is_from_outside(self, tensor: torch.Tensor) -> bool:
        return tensor is not self.stand_in(tensor) or any(tensor is t for t in self.given)

    def _dense(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments with sparse=False, since fake tensors have no sparse gradients; remembers the table."""
        place, weight = (4, 0) if func is torch.embedding else (6, 1)
        if kwargs.get("sparse") or (len(args) > place and args[place]):
            self.sparse.append(args[weight] if len(args) > weight else kwargs["weight"])
            return args[:place], kwargs | {"sparse": False}
        return args, kwargs


def lend_applied(
    stand_in: Callable[[torch.Tensor], torch.Tensor],
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    applied: Callable[[Callable[[], Any]], Any] = operator.call,
) -> Any:
    """Calls `autograd.Function.apply`, which torch-function modes do not see, on stand-ins.

    `applied(call)` makes the call and may change its result.
    """
    with DisableTorchFunction():
        args, kwargs = pytree.tree_map_only(is_tensor, stand_in, (args, kwargs))
    return applied(lambda: function(*args, **kwargs))


class Unassigned:
    """A context for running a function. If it has changed attributes of its modules, they are set back at the end and
    an error is raised: fake tensors must not stay there, and a captured body would not change them again."""

    def __init__(self, function: Any):
        self._modules = modules_of(_modules(function, DEPTH))

    def __enter__(self) -> None:
        self._before = Belongings(self._modules)

    def __exit__(self, *error: Any) -> None:
        changed = self._before.put_back()
        if changed:
            raise CaptureError(f"the body assigns the attribute {changed[0]!r}, or changes what it holds")


def _modules(value: Any, depth: int) -> list[torch.nn.Module]:
    """The modules of a function: itself, the one it is a method of, those it closes over or was given."""
    if isinstance(value, torch.nn.Module):
        return [value]
    if depth == 0:
        return []
    parts = [cell.cell_contents for cell in getattr(value, "__closure__", None) or () if _is_filled(cell)]
    parts += [getattr(value, "__self__", None), *(value if isinstance(value, tuple | list) else ())]
    return [module for part in parts for module in _modules(part, depth - 1)]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
