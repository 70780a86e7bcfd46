"""Calls that torch makes past its own functions and modes, so that they would meet lazy values unprepared.

`torch.vmap` inside of a batched function, functions of TorchScript, and `torch.distributions`, which check numbers that
do not exist yet. The methods that they go through are replaced while anybody records (see `torch_state/hooks.py`):
calls with lazy values become nodes like calls of other functions, and checks are made when the numbers are there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from edbatch.errors import RecordingError
from edbatch.recording.calls.shared import flatten
from edbatch.recording.program.attributes import SCALARS
from edbatch.recording.program.marking import CellOptions, active
from edbatch.recording.types.kernel_cache import Cell
from edbatch.recording.values.lazy import Lazy
from edbatch.recording.values.lazy import original as function_of_torch
from edbatch.torch_insides.libraries import SCRIPT_OPS, SCRIPTED, parameters_of_method
from edbatch.torch_insides.transforms import VMAP
from edbatch.torch_state.hooks import replaces

SCRIPT = "TorchScript runs its methods by itself"


@dataclass(frozen=True)
class UnderVmap:
    """A function under `torch.vmap`. Two are equal if their code, what it closes over, and all settings are."""

    inner: Callable[..., Any] = field(compare=False)
    settings: tuple[Hashable, ...]
    keywords: tuple[str, ...]

    def __call__(self, *args: Any) -> Any:
        in_dims, out_dims, randomness, chunk_size = self.settings[1:]
        num = len(args) - len(self.keywords)
        mapped: Any = torch.vmap(self.inner, in_dims, out_dims, randomness, chunk_size=chunk_size)  # type: ignore[arg-type]
        return mapped(*args[:num], **dict(zip(self.keywords, args[num:], strict=True)))

    @property
    def __name__(self) -> str:
        return f"vmap({getattr(self.inner, '__name__', 'function')})"


def _identity(function: Any) -> Hashable:
    """What tells a function from others; one that is made anew for every example is the same."""
    code = getattr(function, "__code__", None)
    if code is None:
        return (function,)
    contents = tuple([cell.cell_contents for cell in function.__closure__ or ()])
    if any(isinstance(content, Lazy) for content in contents):
        raise RecordingError(
            "a function under torch.vmap uses a lazy value of its closure; give it as an argument, with in_dims=None"
        )
    of_contents = [(type(c), c) if isinstance(c, SCALARS) else id(c) for c in contents]  # alive as long as the key
    return (code, *of_contents, *map(repr, function.__defaults__ or ()))


def _recording_vmap(original: Any) -> Any:
    @functools.wraps(original)
    def vmap(function: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = active.get()
        if recorder is None or not any(isinstance(v, Lazy) for v in flatten(args, kwargs)):
            return original(function, *args, **kwargs)
        settings, args = args[:4], args[4:]
        mapped = UnderVmap(function, (_identity(function), *settings), tuple(kwargs))
        return recorder.record_op(mapped, (*args, *kwargs.values()))

    return vmap


def _recording_script(original: Any) -> Any:
    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = active.get()
        if recorder is None or not any(isinstance(v, Lazy) for v in flatten(args, kwargs)):
            return original(function, *args, **kwargs)
        if isinstance(function, torch.jit.ScriptFunction):
            return recorder.torch_function(function, args, kwargs)
        parameters = tuple(parameters_of_method(function))
        state = (function.name, function.owner.__hash__(), *map(id, parameters))
        cell = Cell(CellOptions(), frozenset(), state, SCRIPT, parameters, (), is_marked=False)
        return recorder.record_cell(Scripted(function, state), args, kwargs, cell)

    return call


@dataclass(frozen=True)
class Scripted:
    """A method of a TorchScript module. Torch makes it anew for every call; those of one module and name are equal."""

    method: Any = field(compare=False)
    state: tuple[Hashable, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return str(self.method.name)


def _of_original(original: Any) -> Any:
    """How TorchScript, by which torch makes some derivatives at first use, finds an op of its own by the identity of a
    function: what stands in torch's namespaces for a function is that function."""

    @functools.wraps(original)
    def find(function: Any) -> Any:
        return original(function_of_torch(function))

    return find


def _checking(original: Any) -> Any:
    """A method of a distribution that checks numbers. Those that do not exist yet are taken for valid until they do."""

    @functools.wraps(original)
    def method(distribution: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = active.get()
        if recorder is None:
            return original(distribution, *args, **kwargs)
        before, recorder.assuming = recorder.assuming, f"{type(distribution).__name__}: invalid parameters or values"
        try:
            return original(distribution, *args, **kwargs)
        finally:
            recorder.assuming = before

    return method


for _holder, _name, _make in (
    (*VMAP, _recording_vmap),
    *[(kind, "__call__", _recording_script) for kind in SCRIPTED],
    (*SCRIPT_OPS, _of_original),
    (torch.distributions.Distribution, "__init__", _checking),
    (torch.distributions.Distribution, "_validate_sample", _checking),
):
    replaces(_holder, _name, _make)
