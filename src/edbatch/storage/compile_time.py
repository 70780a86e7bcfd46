"""Measures how long the present thread has spent compiling or loading machine code.

In: functions that compile (`counted`). Out: seconds (`seconds_compiling`). Code is made when it is first needed, in
whatever stage of a call that is, so the time is subtracted from that of the stage.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any


class _Clock(threading.local):
    seconds = 0.0
    depth = 0  # compiling a function may compile what it calls: only the outermost is counted


_clock = _Clock()


def seconds_compiling() -> float:
    """The seconds of this thread so far."""
    return _clock.seconds


def counted(compile: Callable[..., Any]) -> Callable[..., Any]:
    """The function, changed so that the time it takes is counted."""

    @wraps(compile)
    def run(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        _clock.depth += 1
        try:
            return compile(*args, **kwargs)
        finally:
            _clock.depth -= 1
            if _clock.depth == 0:
                _clock.seconds += time.perf_counter() - begin

    return run
