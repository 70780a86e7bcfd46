"""Cells: callables whose calls become one node each when examples are recorded, and are batched as a unit.

`edbatch.cell` marks modules and functions as cells. Torch's own modules that run no user code, such as Linear, are
cells without a mark. A mark is an entry in the module's `__dict__` and a forward pre-hook that turns numbers into 0-d
tensors, so that a marked cell sees the same arguments batched or not. Class, `state_dict`, pickling and `copy.deepcopy`
are untouched (a copy is marked too).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from edbatch.errors import RecordingError
from edbatch.torch_insides.modes import DisableTorchFunction
from edbatch.torch_insides.modules import children_in, remove_forward_pre_hook
from edbatch.torch_state.modules import modules_of, parameters_of

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder

MARK = "_edbatch_cell"
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
# Modules that do the same with every row of an input [n, …]: on a stack of values they run row by row, whatever n is.
ROW_WISE = (
    nn.Linear,
    nn.Embedding,
    nn.LayerNorm,
    nn.Identity,
    nn.Dropout,
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Hardtanh,
    nn.LogSigmoid,
)


# The recorder of this thread, while it records; and whether it runs a plain loop over examples.
active: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
plain_loop: ContextVar[bool] = ContextVar("plain_loop", default=False)
# Whether this thread runs a cell only to learn the shapes of its results; hooks of modules are not called then.
unhooked: ContextVar[bool] = ContextVar("unhooked", default=False)


@dataclass(frozen=True)
class CellOptions:
    static: tuple[str, ...] = ()
    batched: bool = False


def cell(target: Any = None, *, static: tuple[str, ...] | str = (), batched: bool = False) -> Any:
    """Mark a module, a module class or a function as a cell: a static subgraph, one node when called.

    Args:
        target: an `nn.Module`, a class of them (marks every instance) or a function of one example's tensors.
        static: names of arguments that are constants, not data: only calls with equal ones run together.
        batched: the module takes a batch already, as first dimension, and is called once on stacked arguments.

    >>> import torch, edbatch
    >>> linear = edbatch.cell(torch.nn.Linear(2, 3))
    >>> type(linear).__name__, sorted(linear.state_dict())
    ('Linear', ['bias', 'weight'])
    """
    options = CellOptions((static,) if isinstance(static, str) else tuple(static), batched)
    if target is None:
        return functools.partial(cell, static=static, batched=batched)
    if isinstance(target, nn.Module):
        _check_static(target.forward, options)
        _mark(target, options)
        return target
    if isinstance(target, type) and issubclass(target, nn.Module):
        return _mark_class(target, options)
    if callable(target):
        _check_static(target, options)
        return CellFunction(target, options)
    raise RecordingError(f"edbatch.cell takes a module, a module class or a function, not {type(target).__name__}")


def _check_static(function: Callable[..., Any], options: CellOptions) -> None:
    if not options.static:  # torch's functions have no signature, and need none here
        return
    parameters = inspect.signature(function).parameters
    unknown = [name for name in options.static if name not in parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise RecordingError(f"static={unknown} names no argument of the cell; its arguments are {list(parameters)}")


def _mark(module: nn.Module, options: CellOptions) -> None:
    if MARK not in module.__dict__:
        module.register_forward_pre_hook(numbers_to_tensors, prepend=True, with_kwargs=True)
    module.__dict__[MARK] = options


def unmark(module: nn.Module) -> None:
    """Take the mark off a module, if it has one."""
    if module.__dict__.pop(MARK, None) is not None:
        remove_forward_pre_hook(module, numbers_to_tensors)


def _mark_class(cls: type[nn.Module], options: CellOptions) -> type[nn.Module]:
    initialise = cls.__init__

    @functools.wraps(initialise)
    def marked(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        _mark(self, options)

    cls.__init__ = marked  # type: ignore[method-assign]
    return cls


class CellFunction:
    """A function marked as a cell."""

    def __init__(self, function: Callable[..., Any], options: CellOptions):
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = active.get()
        if recorder is not None:
            return recorder.call(self, args, kwargs)
        args, kwargs = convert_numbers(self.function, self.options, args, kwargs, torch.device("cpu"))
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


def options_of(target: Any) -> CellOptions | None:
    """The options of a cell; None for a callable that is no cell."""
    if isinstance(target, CellFunction):
        return target.options
    marked: CellOptions | None = target.__dict__.get(MARK)
    if marked is not None or not is_leaf(target):
        return marked
    return CellOptions()


def is_marked(target: Any) -> bool:
    """Whether the user has marked a module or function."""
    return isinstance(target, CellFunction) or MARK in target.__dict__


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is one of torch's own that holds no user code: Linear, LSTMCell, …, or a Sequential of them."""
    if module.__class__ is nn.Sequential:
        return all(map(is_leaf, children_in(module).values()))
    return module.__class__.__module__.startswith("torch.nn.modules.") and not isinstance(module, CONTAINERS)


def is_row_wise(module: Any, rank: int) -> bool:
    """Whether a module does the same with every row of a stack, if a row has `rank` dimensions."""
    if module.__class__ is nn.Sequential:
        return all(is_row_wise(child, rank) for child in children_in(module).values())
    cls = module.__class__
    least = 1 if cls is nn.Linear else len(module.normalized_shape) if cls is nn.LayerNorm else 0
    return cls in ROW_WISE and rank >= least


def static_positions(target: Any, options: CellOptions) -> frozenset[Hashable]:
    """The positions and names under which the static arguments of a cell may be given."""
    function = target.function if isinstance(target, CellFunction) else target.forward
    names = [name for name, p in inspect.signature(function).parameters.items() if p.kind is not p.KEYWORD_ONLY]
    return frozenset(options.static) | {i for i, name in enumerate(names) if name in options.static}


def numbers_to_tensors(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The forward pre-hook of a marked module: int and float arguments reach `forward` as 0-d tensors."""
    with DisableTorchFunction():  # else our look at a parameter would be recorded
        first = next(iter(parameters_of(modules_of([module]))), None)
        device = torch.device("cpu") if first is None else first.device
    return convert_numbers(module, module.__dict__.get(MARK, CellOptions()), args, kwargs, device)


def convert_numbers(
    target: Any, options: CellOptions, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not any(isinstance(a, int | float | np.number | tuple | list | dict) for a in (*args, *kwargs.values())):
        return args, kwargs
    static = options.static
    if static:
        function = target.forward if isinstance(target, nn.Module) else target
        names = list(inspect.signature(function).parameters)
        args = tuple(a if i < len(names) and names[i] in static else _tensor(a, device) for i, a in enumerate(args))
    else:
        args = tuple(_tensor(a, device) for a in args)
    return args, {k: a if k in static else _tensor(a, device) for k, a in kwargs.items()}


def _tensor(value: Any, device: torch.device) -> Any:
    if isinstance(value, np.number):
        value = value.item()
    kind = type(value)
    if kind is int:
        return torch.tensor(value, dtype=torch.int64, device=device)
    if kind is float:
        return torch.tensor(value, dtype=torch.get_default_dtype(), device=device)
    if kind in (tuple, list):
        return kind(_tensor(v, device) for v in value)
    if kind is dict:
        return {k: _tensor(v, device) for k, v in value.items()}
    return value
