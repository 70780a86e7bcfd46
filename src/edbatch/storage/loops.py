"""Loops over the arrays of graphs and recordings, compiled by numba and kept from process to process.

The compiled code of a function includes what it calls in other files: so all rooms that have such loops take part in
the key under which code is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from edbatch.storage.machine_code import MachineCode, digest

F = TypeVar("F", bound=Callable[..., Any])
ROOMS = ("scheduling", "layout", "rewriting", "replay")


def sources(package: Path) -> str:
    """A hash of all sources of a package that take part."""
    return digest(path for room in ROOMS for path in (package / room).glob("*.py"))


_CODE = MachineCode("edbatch's own planning functions, some 20 s", sources=sources(Path(__file__).parents[1]))
# Entry points that nobody calls are not compiled: that shortens the first use.
_OPTIONS: dict[str, Any] = {"no_cfunc_wrapper": True}


def loop(function: F) -> F:
    return cast(F, _CODE.function(function, **_OPTIONS))


def inner_loop(function: F) -> F:
    """For functions that only other loops call."""
    return cast(F, _CODE.function(function, **_OPTIONS, no_cpython_wrapper=True))
