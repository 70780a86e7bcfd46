"""Outside torch.compile: a batched call is not traced by dynamo, and what is compiled inside it runs as it is written.

Dynamo looks at every Python frame and cannot follow a recording; lazy values and captured cells are nothing to compile.
Nothing here imports dynamo, which takes seconds: without it nothing is compiled.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, ParamSpec, TypeVar, cast

import torch

from edbatch.surroundings import inside

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
    """A context after which dynamo looks at frames, and compiles, as before."""

    def __enter__(self) -> None:
        self._frames = _dynamo.get_eval_frame_callback()
        self._stance = torch._dynamo.eval_frame._stance

    def __exit__(self, *error: Any) -> None:
        torch._dynamo.eval_frame._stance = self._stance
        _dynamo.set_eval_frame(self._frames)


def _eagerly(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    _dynamo.set_eval_frame(None)
    torch.compiler.set_stance("force_eager")
    return function(*args, **kwargs)


def outside_compile(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run outside torch.compile, with everything in it that is compiled taken as plain Python."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        return cast(T, inside((_Compiling(),), _eagerly, function, *args, **kwargs))

    for code in (run.__code__, _eagerly.__code__, _Compiling.__enter__.__code__, _Compiling.__exit__.__code__):
        _skip(code)
    functools.update_wrapper(run, function)
    run._torchdynamo_disable = True  # type: ignore[attr-defined]  # code that calls it is compiled up to here, and from here on
    run._torchdynamo_disable_msg = "edbatch runs outside torch.compile"  # type: ignore[attr-defined]
    return run
