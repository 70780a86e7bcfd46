"""What modules keep in tables of their own: parameters, buffers, children, hooks. The public ways walk the whole tree,
leave out what occurs twice, or do not tell of hooks at all."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.modules import batchnorm as _batchnorm
from torch.nn.modules import module as _module

T = TypeVar("T")
_Table = Callable[[nn.Module], dict[str, T]]

BatchNorm = _batchnorm._BatchNorm  # what all kinds of it are: they mix examples in training
PARAMETERS, BUFFERS, CHILDREN = "_parameters", "_buffers", "_modules"  # entries of a module's __dict__, read by look-up
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # a cell with any runs alone
TABLES = (PARAMETERS, BUFFERS, CHILDREN, *HOOKS)  # a change of one of these is a change of the module
REGISTERED = (PARAMETERS, BUFFERS, CHILDREN, "_non_persistent_buffers_set")  # a Batched shares these with its model
INTERNAL = frozenset(nn.Module().__dict__)  # attributes that every module has: none of these is a setting of the user's
CALL = "_call_impl"  # a call with hooks, without torch.compile: of modules that are no cells; `_calls.c` knows it too

parameters_in: _Table[nn.Parameter | None] = attrgetter(PARAMETERS)  # of the module alone, also those that occur twice
buffers_in: _Table[Tensor | None] = attrgetter(BUFFERS)  # likewise; what a recording assigns there is put back
children_in: _Table[Any] = attrgetter(CHILDREN)  # likewise; modules, or None
hooks_in: Callable[[nn.Module], tuple[dict[int, Any], ...]] = attrgetter(*HOOKS)  # tables, in the order of HOOKS
compiled_call_of: Callable[[nn.Module], Any] = attrgetter("_compiled_call_impl")  # None unless module.compile() made it


def backward_hooks_in(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """The tables of hooks that torch calls in a backward of its own: only cells may have any."""
    return hooks_in(module)[2:]


def hooks_of_all() -> list[Any]:
    """The hooks of all modules, such as register_module_forward_hook adds: cells run alone while there are any."""
    forward = _module._global_forward_pre_hooks, _module._global_forward_hooks
    backward = _module._global_backward_pre_hooks, _module._global_backward_hooks
    return [hook for table in (*forward, *backward) if table for hook in table.values()]
