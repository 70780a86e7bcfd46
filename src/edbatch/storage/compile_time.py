"""How long the present thread has compiled or loaded machine code: stages subtract it, since code is made when it is
first needed, in whatever stage that is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any


class _Clock(threading.local):
    seconds = 0.0
    depth = 0  # functions that compile what they call are counted once


_clock = _Clock()


def seconds_compiling() -> float:
    """Of this thread, so far."""
    return _clock.seconds


def counted(compile: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the time that it takes counted."""

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
