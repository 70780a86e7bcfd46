"""Compiles functions by numba, and keeps the machine code in the cache folder for later processes.

In: Python functions, and a hash of all sources that decide what they compile to. Out: numba's functions. Numba's own
cache is not used: it writes beside the sources, notices no edit of a file that another one calls, executes what anybody
has put there and fails for ever if a file is damaged. Import this module inside functions only, or in modules that are
imported so: numba takes 0.3 s to import.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import sigutils
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from edbatch.storage.cache_folder import cache_folder
from edbatch.storage.compile_time import counted

log = logging.getLogger("edbatch")
_VERSIONS = (numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, getattr(sys, "abiflags", ""))


def digest(paths: Iterable[Path]) -> str:
    """A hash of the contents of some source files."""
    contents = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)]
    return hashlib.sha256(" ".join(contents).encode()).hexdigest()


class MachineCode:
    """Functions that are compiled from the same sources.

    Args:
        what: a name for all of them, for the message when they have to be compiled; if it is empty there is no message.
        sources: a hash of the contents of all sources that take part.
    """

    def __init__(self, what: str, sources: str) -> None:
        self.sources = sources
        self._what = what

    def function(self, function: Callable[..., Any], signature: str | None = None, **options: Any) -> Any:
        """A function that numba compiles with these options: now if a signature is given, else when it is called."""
        assert function.__closure__ is None, "the key would not know what is in it"
        made = numba.njit(**options)(function)
        made._cache = _Kept(self, function, options)
        made.compile = counted(made.compile)
        if signature is not None:
            made.compile(signature)
            made.disable_compile()
        return made

    def announce(self) -> None:
        """Say once that these functions are being compiled."""
        if self._what:
            folder = cache_folder()
            kept = f"once; they are kept in {folder.path}" if folder and folder.can_store else "they cannot be kept"
            log.warning("compiling %s (%s)", self._what, kept)
        self._what = ""


class _Kept(NullCache):
    """The cache of one function: numba asks it for compiled forms, by their signatures, and gives it new ones."""

    def __init__(self, code: MachineCode, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._code = code
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._facts = (_VERSIONS, code.sources, self._name, sorted(options.items()))

    def load_overload(self, signature: Any, target: Any) -> Any:
        target.refresh()
        try:
            found = self._load(signature, target)
        except Exception:  # whatever numba raises about an entry that it cannot use: compile and store it again
            found = None
        if found is None:
            self._code.announce()
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store compiled code, except if it holds addresses, which mean nothing in other processes."""
        folder = cache_folder()
        if folder is not None and not compiled.lifted and not compiled.library.has_dynamic_globals:
            folder.store(*self._entry(signature, compiled.codegen), dumps(compiled._reduce()))

    def _load(self, signature: Any, target: Any) -> Any:
        folder = cache_folder()
        payload = folder and folder.load(*self._entry(signature, target.codegen()))
        return CompileResult._rebuild(target, *pickle.loads(payload)) if payload else None

    def _entry(self, signature: Any, codegen: Any) -> tuple[str, bytes]:
        """Name and key of an entry; the key knows all that decides what the function compiles to, including the CPU."""
        facts = (self._facts, str(sigutils.normalize_signature(signature)), codegen.magic_tuple())
        key = hashlib.sha256(repr(facts).encode()).digest()
        return f"{self._name}-{key.hex()[:24]}", key
