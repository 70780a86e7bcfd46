"""What torch keeps private about tensors: how often they were written, whose memory they share, whether a subclass
computes in its own way. And `differentiate`, which is torch.autograd.grad without slow imports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

version_of: Callable[[Tensor], int] = attrgetter("_version")  # grows with every write; inference tensors have none
base_of: Callable[[Tensor], Tensor | None] = attrgetter("_base")  # what a tensor is a view of, if autograd knows one
hooks_of: Callable[[Tensor], Any] = attrgetter("_backward_hooks")  # of register_hook: they need a gradient, not None

PLAIN_FUNCTION: Any = torch._C._disabled_torch_function_impl  # a subclass with this computes like Tensor
PLAIN_DISPATCH: Any = torch._C._disabled_torch_dispatch_impl  # likewise


def fake_mode_of(tensor: Tensor) -> Any:
    """The mode that a fake tensor belongs to; None for a real one. Imports nothing."""
    return getattr(tensor, "fake_mode", None)


def is_view(tensor: Tensor) -> bool:
    """Whether autograd takes a tensor for a view. One made under no_grad claims to require a gradient and gets none."""
    return tensor._is_view()


def storage_number(tensor: Tensor) -> int:
    """A number that is equal for tensors that share memory; also for fake tensors, whose memory has no address."""
    return int(tensor.untyped_storage()._cdata)


def num_owners(tensor: Tensor) -> int:
    """How many tensors share the memory of this one. Lazy values may be written only into a tensor that shares none."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def differentiate(
    roots: Sequence[tuple[Tensor, Tensor]], wanted: Sequence[Tensor], retain: bool
) -> Sequence[Tensor | None]:
    """The gradients of `wanted`, from roots (value, its gradient); torch.autograd.grad would import sympy."""
    values, gradients = zip(*roots, strict=True)
    results: Sequence[Tensor | None] = torch.autograd.Variable._execution_engine.run_backward(
        values, gradients, retain, False, tuple(wanted), allow_unreachable=True, accumulate_grad=False
    )
    return results
