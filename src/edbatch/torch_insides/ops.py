"""ATen ops, of which captured cells consist: their schemas, what they decompose into, and two without public names."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
import torch._decomp
from torch._ops import OpOverload as OpOverload  # an op with the types of its arguments, as capture sees it

softmax: Any = torch._softmax  # takes `out`; torch.softmax takes it only with a dtype
log_softmax: Any = torch._log_softmax  # likewise
schema_of: Callable[[OpOverload], Any] = attrgetter("_schema")  # whether an op writes, makes a tensor, or gives a view
overload_of: Callable[[OpOverload], str] = attrgetter("_overloadname")  # to get from squeeze_.dim to squeeze.dim


def schema_if_any(target: Any) -> Any:
    """The schema of an op; None for any other function that captured code calls."""
    return getattr(target, "_schema", None)


def is_composite(op: Any) -> bool:
    """Whether an op is defined by a decomposition into others; capture then takes those instead."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return key in op.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def core_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """torch's core decompositions; since torch 2.7 without those of composite ops.

    Composite ops carry their decompositions themselves, and collecting these takes a fifth of a second.
    """
    quick = getattr(torch._decomp, "_core_aten_decompositions_post_autograd", None)
    return dict(quick() if quick is not None else torch._decomp.core_aten_decompositions())
