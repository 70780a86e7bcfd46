"""A short cut for calls of cells that are like earlier ones: the hot path of recording, which is written in C.

A cell is mostly called with few signatures (kinds of values, places of numbers). From the second call of a signature
on, a recording knows its key: `_calls.c` then compares the arguments with the key, adds the node and makes its outputs.
Where the package was installed without a C compiler, all calls go the usual way instead.
"""

from __future__ import annotations

import os
from array import array
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from edbatch.recording.calls.fast_functions import ARITHMETIC
from edbatch.recording.values.lazy import Kind, Lazy, PendingSum, Ragged
from edbatch.recording.values.ragged import materialise
from edbatch.spec import float_bits, is_tensor
from edbatch.torch_insides.modes import num_function_modes

try:
    from edbatch.recording._calls import KnownCalls, ModuleCall, Named, Numbers, named_stack, set_up

    RECORDS_IN_C = True
    _TORCH = nn.Parameter, torch.Tensor, torch.Size, torch.dtype, torch.device
    set_up(Lazy, PendingSum, Ragged, Kind, *_TORCH, materialise, num_function_modes, frozenset(ARITHMETIC))
except ImportError:
    RECORDS_IN_C = False
    Named = named_stack = None  # type: ignore[assignment, misc]
    Numbers = partial(array, "q")  # type: ignore[assignment, misc]

    class KnownCalls:  # type: ignore[no-redef]
        def __init__(self, *args: Any) -> None:
            """Knows nothing."""

        def learn(self, *args: Any) -> None:
            """Learns nothing."""

        def pass_by(self, module: nn.Module) -> None:
            """Does nothing: `call_module` sees such modules again."""

        def forget(self) -> None:
            """There is nothing to forget."""

        def record(self, function: Any, args: Any, keywords: Any, otherwise: Any) -> Any:
            """No call is known."""
            return otherwise(function, args, keywords or {})

        def within(self, context: Any, is_usual: bool) -> None:
            """Does nothing."""

        def close(self) -> None:
            """Does nothing."""

        def begin(self, *args: Any) -> None:
            """Does nothing: without C, nobody looks at frames."""

        def enter(self) -> None:
            """Does nothing."""

        def end(self) -> None:
            """Does nothing."""

    def ModuleCall(active: Any, otherwise: Any) -> Any:  # type: ignore[no-redef]
        return otherwise


if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_ROOMS = "recording", "replay", "cells", "torch_state", "pipeline.py", "batched.py"
OWN = (os.path.dirname(torch.__file__), *[os.path.join(_ROOT, room) for room in _ROOMS])  # files not of the user

__all__ = [
    "OWN",
    "RECORDS_IN_C",
    "KnownCalls",
    "ModuleCall",
    "Named",
    "Numbers",
    "as_value",
    "named_stack",
    "signature_of",
]


class _NoValue:
    kind = None


def as_value(recorder: Recorder, part: Any) -> Any:
    """A pending sum, or a plain tensor such as a learned initial state, as a lazy value with a reference.

    For anything else the result has no kind.
    """
    if type(part) is PendingSum:
        return recorder.resolve(part)
    return recorder.outside(part) if is_tensor(part) else _NoValue


def signature_of(recorder: Recorder, module: nn.Module, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int]]:
    """Key and data of a call of a cell, as `signature.Parts` makes them; the key is empty if only `Parts` can."""
    key: list[Any] = [recorder.key_of(module)]
    flat: list[int] = []
    for a in args:
        parts: tuple[Any, ...] = (a,)
        if type(a) is tuple:
            key += (tuple, len(a))
            parts = a
        for part in parts:
            kind = type(part)
            if kind is int or kind is float:
                key.append(kind)
                flat.append(part if kind is int else float_bits(part))
                continue
            value = part if kind is Lazy else as_value(recorder, part)
            if value.kind is None:
                return (), flat
            key.append(value.kind)
            flat.append(value.ref)
    return tuple(key), flat
