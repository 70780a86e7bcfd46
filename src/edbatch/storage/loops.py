"""Decorators for loops over the arrays of graphs and recordings: numba compiles them, and the code is kept on disk.

In: Python functions. Out: functions that numba compiles when they are first called. The compiled code of a function
includes what it calls in other files. So the key under which code is kept is a hash of all folders that have such loops
(`ROOMS`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from edbatch.storage.machine_code import MachineCode, digest

F = TypeVar("F", bound=Callable[..., Any])
ROOMS = ("scheduling", "layout", "rewriting", "replay")


def sources(package: Path) -> str:
    """A hash of all sources of a package that may have loops."""
    return digest(path for room in ROOMS for path in (package / room).glob("*.py"))


_CODE = MachineCode("edbatch's own loops that this call needs, up to 20 s", sources=sources(Path(__file__).parents[1]))
# Entry points for C are not compiled: nobody calls them, and the first use is shorter.
_OPTIONS: dict[str, Any] = {"no_cfunc_wrapper": True}


def loop(function: F) -> F:
    return cast(F, _CODE.function(function, **_OPTIONS))


def inner_loop(function: F) -> F:
    """For functions that only other loops call: Python cannot call them."""
    return cast(F, _CODE.function(function, **_OPTIONS, no_cpython_wrapper=True))
