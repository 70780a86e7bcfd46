"""Compilation of generated kernels by numba. Machine code is kept on disk, see `storage.machine_code`.

In: the texts of kernels. Out: compiled functions. A later process generates the texts again and finds the machine code
by a hash of everything that it depends on.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from edbatch.storage.machine_code import MachineCode, digest
from edbatch.torch_state.surroundings import inside

_LOCK = threading.RLock()
_FUNCTIONS: dict[str, list[Callable[..., None]]] = {}  # by the text of their module
# No fast-math flags, since they change results: with `contract`, x * x - y * y is not 0 for equal x and y; with
# `reassoc`, (x + y) - y is x.
_OPTIONS: dict[str, Any] = {"no_cfunc_wrapper": True, "nogil": True, "error_model": "numpy"}
_HEADER = """from numpy import bool_, float32, float64, inf, int64, nan, sqrt

from edbatch.cells.fused.library.memory_access import *
from edbatch.cells.fused.library.fast_math import *
from edbatch.cells.fused.library.integer_math import *
from edbatch.cells.fused.library.row_math import *

globals().update({f"{name}_f32": function for name, function in FUNCTIONS32.items()})
globals().update({f"{name}_f64": function for name, function in FUNCTIONS64.items()})
"""


def compile_kernels(sources: Sequence[str], name: str) -> list[Callable[..., None]]:
    """The functions of some kernel sources, each `def kernel(...)` of int64 parameters; c0, c1, … are float64.

    Args:
        name: of their cell, for the message while they are compiled.
    """
    if not sources:
        return []
    kernels = [source.replace("def kernel(", f"def kernel{i}(", 1) for i, source in enumerate(sources)]
    text = "\n\n".join([_HEADER, *kernels])
    return inside((_LOCK,), _functions, text, [_signature(source) for source in sources], name)


def _functions(text: str, signatures: Sequence[str], name: str) -> list[Callable[..., None]]:
    if text not in _FUNCTIONS:
        _FUNCTIONS[text] = _compile(text, signatures, name)
    return list(_FUNCTIONS[text])


def _signature(source: str) -> str:
    parameters = source.partition("(")[2].partition(")")[0].split(", ")
    return f"void({', '.join('float64' if p.startswith('c') else 'int64' for p in parameters)})"


def _compile(text: str, signatures: Sequence[str], name: str) -> list[Callable[..., None]]:
    key = hashlib.sha256((text + _runtime()).encode()).hexdigest()
    module = ModuleType(f"kernels_{key[:24]}")
    sys.modules[module.__name__] = module  # numba looks for it there
    exec(compile(text, f"<{module.__name__}>", "exec"), module.__dict__)
    code = MachineCode(f"the kernels of {name}", sources=key)
    return [code.function(getattr(module, f"kernel{i}"), s, **_OPTIONS) for i, s in enumerate(signatures)]


@cache
def _runtime() -> str:
    """A hash of everything that kernels import."""
    return digest(Path(__file__).parent.glob("*.py"))
