"""Outside torch.compile: a batched call is not traced by dynamo, and what is compiled inside it runs as it is written.

Dynamo looks at every Python frame and cannot follow a recording; lazy values and captured cells are nothing to compile.
Nothing here imports dynamo, which takes seconds: without it nothing is compiled.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

import torch

from edbatch.torch_insides.compiler import (
    MODULE,
    get_frame_callback,
    keep_out,
    put_back_stance,
    set_frame_callback,
    skip_frames_of,
    stance,
)
from edbatch.torch_state.surroundings import inside

P = ParamSpec("P")
T = TypeVar("T")


class _Compiling:
    """A context after which dynamo looks at frames, and compiles, as before.

    Dynamo's stance is one for all threads: the first call under way changes it, the last one puts it back.
    """

    _lock: ClassVar = threading.RLock()
    _calls: ClassVar[set[int]] = set()  # that are under way
    _stance: ClassVar[Any] = None  # as it was before them

    def __enter__(self) -> None:
        self._frames = get_frame_callback()

    def begin(self) -> None:
        set_frame_callback(None)
        inside((_Compiling._lock,), self._change)

    def _change(self) -> None:
        if not _Compiling._calls:
            _Compiling._stance = stance()
        _Compiling._calls.add(id(self))
        torch.compiler.set_stance("force_eager")

    def __exit__(self, *error: Any) -> None:
        inside((_Compiling._lock,), self._put_back)
        set_frame_callback(self._frames)

    def _put_back(self) -> None:
        if _Compiling._calls == {id(self)}:
            put_back_stance(_Compiling._stance)
        _Compiling._calls.discard(id(self))


def _eagerly(compiling: _Compiling, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    compiling.begin()
    return function(*args, **kwargs)


def outside_compile(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run outside torch.compile, with everything in it that is compiled taken as plain Python."""

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
