"""Contexts that put back the state around a call when it ends, whatever interrupts it.

Ctrl-C may come between any two instructions of Python: also between a change and the `try` that would take it back, or
at the end of a `with`. `inside(contexts, function, …)` is a `with` statement written in C, which no interrupt can
split. A context that is written in Python must allow for two things. Its `__exit__` may be called again, if the first
call raised. And if its `__enter__` is interrupted, `__exit__` is not called: so `__enter__` only looks and remembers,
and changes are made later, inside the function. Installations without a C compiler use an ordinary `with`, in which
Ctrl-C at a bad moment may leave a change behind.
"""

from __future__ import annotations

import operator
import signal
import threading
from contextvars import ContextVar
from typing import Any

import torch

from edbatch.torch_insides.modes import (
    dispatch_modes,
    functionalize,
    get_function_state,
    is_functionalizing,
    num_dispatch_modes,
    num_function_modes,
    pop_function_mode,
    put_back_dispatch_modes,
    set_function_state,
    set_grad_enabled,
)
from edbatch.torch_insides.transforms import num_transforms, pop_transform

try:
    from edbatch.torch_state._inside import Made, Scope, Stay, inside
except ImportError:
    from edbatch.torch_state.inside_in_python import Made, Scope, Stay, inside  # type: ignore[assignment]

__all__ = [
    "Made",
    "Patience",
    "Scope",
    "Stay",
    "Surroundings",
    "Undrawn",
    "has_grad",
    "inside",
    "undrawn",
]
DEVICES = ("cpu", "cuda")
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)]
_DRAWING = threading.RLock()


def has_grad() -> bool:
    """Whether torch records gradients. In inference mode it does not, whatever grad mode says."""
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


class Surroundings:
    """A context that puts back the modes of torch in this thread, and context variables.

    Modes are: grad mode, autocast, the default dtype, functionalization, the modes that see torch's functions or ops,
    whether `__torch_function__` is disabled, and transforms of torch.func.
    """

    def __init__(self, *variables: ContextVar[Any]):
        self._variables = variables

    def __enter__(self) -> None:
        self._values = [variable.get() for variable in self._variables]
        self._num_modes = num_function_modes()
        self._functions = get_function_state()
        self._dispatch_modes = dispatch_modes() if num_dispatch_modes() else []
        self._num_transforms = num_transforms()
        self._grad = torch.is_grad_enabled()
        self._dtype = torch.get_default_dtype()
        self._autocast = _autocast()
        self._depth = _autocast_depth()
        self._functionalizes = is_functionalizing()

    def __exit__(self, *error: Any) -> None:
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.set(value)
        while num_function_modes() > self._num_modes:
            pop_function_mode()
        set_function_state(self._functions)
        if num_dispatch_modes() or self._dispatch_modes:
            now = dispatch_modes()
            if [id(mode) for mode in now] != [id(mode) for mode in self._dispatch_modes]:
                put_back_dispatch_modes(self._dispatch_modes)
        while num_transforms() > self._num_transforms:
            pop_transform()
        functionalize(self._functionalizes)
        if torch.is_grad_enabled() != self._grad:
            set_grad_enabled(self._grad)
        if torch.get_default_dtype() is not self._dtype:
            torch.set_default_dtype(self._dtype)
        if _autocast() != self._autocast:
            torch.set_autocast_cache_enabled(self._autocast[0])
            for device, (is_on, dtype) in zip(DEVICES, self._autocast[1:], strict=True):
                torch.set_autocast_enabled(device, is_on)
                torch.set_autocast_dtype(device, dtype)
        while _autocast_depth() > self._depth:
            torch.autocast_decrement_nesting()
        if not self._depth:  # else cached casts of weights would outlive an update of the weights
            torch.clear_autocast_cache()


class Patience:
    """A context that makes signals wait for its end, once its `begin` was called.

    These are Ctrl-C, SIGTERM and SIGALRM, if they have handlers in Python. A second signal of a kind does not wait.
    """

    def __enter__(self) -> None:
        self._handlers: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
        self._waiting: list[int] = []

    def begin(self) -> None:
        if threading.current_thread() is threading.main_thread():  # the one that handles signals
            for number, handle in self._handlers.items():
                if callable(handle):
                    signal.signal(number, self._wait)

    def _wait(self, number: int, frame: Any) -> None:
        if number in self._waiting:
            self._handlers[number](number, frame)
        self._waiting.append(number)

    def __exit__(self, *error: Any) -> None:
        for number, handle in self._handlers.items():
            if signal.getsignal(number) == self._wait:
                signal.signal(number, handle)
        while self._waiting:
            number = self._waiting.pop()
            self._handlers[number](number, None)


class Undrawn:
    """A context that puts back the states of random generators: it is as if nothing was drawn."""

    def __init__(self, *generators: torch.Generator):
        self._generators = generators

    def __enter__(self) -> None:
        self._states = [generator.get_state() for generator in self._generators]

    def __exit__(self, *error: Any) -> None:
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)


def undrawn() -> tuple[Any, ...]:
    """Contexts that put back torch's default generator, with a lock, because all threads share it."""
    return _DRAWING, Undrawn(torch.default_generator)


def _autocast() -> tuple[Any, ...]:
    return torch.is_autocast_cache_enabled(), *[
        (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in DEVICES
    ]


def _autocast_depth() -> int:
    """How many autocasts are nested here; torch tells only those who enter or leave one."""
    # Both calls are made in C, so that no interrupt comes between them.
    _, depth = map(operator.call, (torch.autocast_increment_nesting, torch.autocast_decrement_nesting))
    return depth
