"""The tables in which a module keeps its parameters, buffers, children and hooks.

Torch's public functions walk the whole tree of modules, leave out what occurs twice, or do not tell of hooks at all.
The functions here read the tables of one module.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.modules import batchnorm as _batchnorm
from torch.nn.modules import module as _module

T = TypeVar("T")
_Table = Callable[[nn.Module], dict[str, T]]

BatchNorm = _batchnorm._BatchNorm  # the base of all batch norms, which mix examples in training
PARAMETERS, BUFFERS, CHILDREN = "_parameters", "_buffers", "_modules"  # entries of a module's __dict__, read by look-up
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # cells with any: one by one
TABLES = (PARAMETERS, BUFFERS, CHILDREN, *HOOKS)  # a change of one of these is a change of the module
REGISTERED = (PARAMETERS, BUFFERS, CHILDREN, "_non_persistent_buffers_set")  # a Batched shares these with its model
INTERNAL = frozenset(nn.Module().__dict__)  # attributes that every module has: none of these is a setting of the user's
CALL = "_call_impl"  # a call with hooks, not compiled: for modules that are no cells; `_calls.c` has the name, too

parameters_in: _Table[nn.Parameter | None] = attrgetter(PARAMETERS)  # of this module only, also those that occur twice
buffers_in: _Table[Tensor | None] = attrgetter(BUFFERS)  # likewise; lazy values that are assigned there are taken out
children_in: _Table[Any] = attrgetter(CHILDREN)  # likewise; modules, or None
hooks_in: Callable[[nn.Module], tuple[dict[int, Any], ...]] = attrgetter(*HOOKS)  # tables, in the order of HOOKS
compiled_call_of: Callable[[nn.Module], Any] = attrgetter("_compiled_call_impl")  # None unless module.compile() made it


def backward_hooks_in(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """The tables of backward hooks. Torch calls them in its own backward pass, so only cells may have any."""
    return hooks_in(module)[2:]


def hooks_of_all() -> list[Any]:
    """The hooks of all modules, such as register_module_forward_hook adds: cells run one by one while there are any."""
    forward = _module._global_forward_pre_hooks, _module._global_forward_hooks
    backward = _module._global_backward_pre_hooks, _module._global_backward_hooks
    return [hook for table in (*forward, *backward) if table for hook in table.values()]


def remove_forward_pre_hook(module: nn.Module, hook: Callable[..., Any]) -> None:
    """Remove a hook by what it calls: the handle that torch gave would not survive a copy of the module."""
    for number in [n for n, other in module._forward_pre_hooks.items() if other is hook]:
        del module._forward_pre_hooks[number]
        module._forward_pre_hooks_with_kwargs.pop(number, None)
