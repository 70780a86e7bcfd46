"""Outside torch.compile: a batched call is not traced by dynamo, and what is compiled inside it runs as it is written.

Dynamo looks at every Python frame and cannot follow a recording; lazy values and captured cells are nothing to compile.
Nothing here imports dynamo, which takes seconds: without it nothing is compiled.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

import torch

from edbatch.torch_state.surroundings import inside

P = ParamSpec("P")
T = TypeVar("T")
_dynamo: Any = torch._C._dynamo.eval_frame


def _skip(code: CodeType) -> None:
    """Dynamo is not to look at frames of this code; how to say so without importing it depends on torch's version."""
    if hasattr(_dynamo, "skip_code"):
        _dynamo.skip_code(code)
    else:
        action = _dynamo._FrameAction
        _dynamo.set_code_exec_strategy(code, _dynamo._FrameExecStrategy(action.SKIP, action.DEFAULT))


class _Compiling:
    """A context after which dynamo looks at frames, and compiles, as before.

    Dynamo's stance is one for all threads: the first call under way changes it, the last one puts it back.
    """

    _lock: ClassVar = threading.RLock()
    _calls: ClassVar[set[int]] = set()  # that are under way
    _stance: ClassVar[Any] = None  # as it was before them

    def __enter__(self) -> None:
        self._frames = _dynamo.get_eval_frame_callback()

    def begin(self) -> None:
        _dynamo.set_eval_frame(None)
        inside((_Compiling._lock,), self._change)

    def _change(self) -> None:
        if not _Compiling._calls:
            _Compiling._stance = torch._dynamo.eval_frame._stance
        _Compiling._calls.add(id(self))
        torch.compiler.set_stance("force_eager")

    def __exit__(self, *error: Any) -> None:
        inside((_Compiling._lock,), self._put_back)
        _dynamo.set_eval_frame(self._frames)

    def _put_back(self) -> None:
        if _Compiling._calls == {id(self)}:
            torch._dynamo.eval_frame._stance = _Compiling._stance
        _Compiling._calls.discard(id(self))


def _eagerly(compiling: _Compiling, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    compiling.begin()
    return function(*args, **kwargs)


def outside_compile(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run outside torch.compile, with everything in it that is compiled taken as plain Python."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        compiling = _Compiling()
        return cast(T, inside((compiling,), _eagerly, compiling, function, *args, **kwargs))

    functions: list[Any] = [run, _eagerly, *[f for f in vars(_Compiling).values() if isinstance(f, FunctionType)]]
    for own in functions:
        _skip(own.__code__)
    functools.update_wrapper(run, function)
    run._torchdynamo_disable = True  # type: ignore[attr-defined]  # code that calls it is compiled up to here, and from here on
    run._torchdynamo_disable_msg = "edbatch runs outside torch.compile"  # type: ignore[attr-defined]
    return run
