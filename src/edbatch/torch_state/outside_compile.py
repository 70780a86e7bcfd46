"""Keeps batched calls out of torch.compile: dynamo does not trace them, and compiled code inside runs as plain Python.

Dynamo looks at every Python frame. It cannot follow a recording, and neither lazy values (stand-ins for tensors) nor
the capture of a cell are anything to compile. Nothing here imports dynamo, because that takes seconds; as long as
nobody has imported it, nothing is compiled.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from edbatch.torch_insides.compiler import (
    MODULE,
    keep_out,
    set_frame_callback,
    set_stance,
    skip_frames_of,
    stance,
)
from edbatch.torch_state.hooks import Setting
from edbatch.torch_state.surroundings import inside

P = ParamSpec("P")
T = TypeVar("T")


# Dynamo's stance (to compile, or to run eagerly) is one for all threads.
_STANCE = Setting(stance, lambda: set_stance("force_eager"), set_stance)


class _Compiling:
    """A context after which dynamo looks at frames, and compiles, as before."""

    def __enter__(self) -> None:
        self._looked: list[Any] = []  # the frame callback before `begin`, once that has removed it

    def begin(self) -> None:
        self._looked.extend(map(set_frame_callback, (None,)))  # all in C: an interrupt cannot lose the old callback
        _STANCE.begin(self)

    def __exit__(self, *error: Any) -> None:
        if self._looked:
            _STANCE.end(self)
            set_frame_callback(self._looked[0])


def _eagerly(compiling: _Compiling, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    compiling.begin()
    return function(*args, **kwargs)


def outside_compile(function: Callable[P, T]) -> Callable[P, T]:
    """The same function outside of torch.compile; compiled code that it calls runs as plain Python."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if MODULE not in sys.modules:
            return function(*args, **kwargs)
        compiling = _Compiling()
        return cast(T, inside((compiling,), _eagerly, compiling, function, *args, **kwargs))

    functions: list[Any] = [run, _eagerly, *[f for f in vars(_Compiling).values() if isinstance(f, FunctionType)]]
    for own in functions:
        skip_frames_of(own.__code__)
    functools.update_wrapper(run, function)
    keep_out(run, "edbatch runs outside torch.compile")
    return run
