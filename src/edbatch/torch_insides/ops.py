"""Ops of ATen: their schemas, what they decompose into, and two whose functions have no public name."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
import torch._decomp
from torch._ops import OpOverload as OpOverload  # what is captured: an op with the types of its arguments

softmax: Any = torch._softmax  # takes `out`, which torch.softmax does in another dtype only
log_softmax: Any = torch._log_softmax  # likewise
schema_of: Callable[[OpOverload], Any] = attrgetter("_schema")  # whether an op writes, makes a tensor, or gives a view
overload_of: Callable[[OpOverload], str] = attrgetter("_overloadname")  # to find squeeze.dim of squeeze_.dim


def schema_if_any(target: Any) -> Any:
    """The schema of what a body calls; None if that is no op."""
    return getattr(target, "_schema", None)


def is_composite(op: Any) -> bool:
    """Whether an op carries a decomposition that is its definition, which capture then follows."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return key in op.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def core_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """torch's core decompositions; without those of composite ops, which ops carry themselves, if that is possible:
    collecting them takes a fifth of a second. The quick table is known since torch 2.7."""
    quick = getattr(torch._decomp, "_core_aten_decompositions_post_autograd", None)
    return dict(quick() if quick is not None else torch._decomp.core_aten_decompositions())
