"""What tensors do not tell in public: when they were written, whose memory they share, who computes with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

version_of: Callable[[Tensor], int] = attrgetter("_version")  # grows with every write; inference tensors have none
base_of: Callable[[Tensor], Tensor | None] = attrgetter("_base")  # what a tensor is a view of, if autograd knows one
hooks_of: Callable[[Tensor], Any] = attrgetter("_backward_hooks")  # of register_hook: they expect a gradient, not None

PLAIN_FUNCTION: Any = torch._C._disabled_torch_function_impl  # a subclass with this has no rules of its own
PLAIN_DISPATCH: Any = torch._C._disabled_torch_dispatch_impl  # likewise


def is_view(tensor: Tensor) -> bool:
    """Whether autograd takes it for a view; one made under no_grad says that it requires a gradient, and gets none."""
    return tensor._is_view()


def storage_number(tensor: Tensor) -> int:
    """The same for tensors that share their memory, also for fake ones, whose memory has no address."""
    return int(tensor.untyped_storage()._cdata)


def num_owners(tensor: Tensor) -> int:
    """How many tensors share the memory of one: a lazy value may be written only into a tensor nobody else sees."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def differentiate(
    roots: Sequence[tuple[Tensor, Tensor]], wanted: Sequence[Tensor], retain: bool
) -> Sequence[Tensor | None]:
    """As torch.autograd.grad, whose checks import sympy: gradients of `wanted`; roots are (value, its gradient)."""
    values, gradients = zip(*roots, strict=True)
    results: Sequence[Tensor | None] = torch.autograd.Variable._execution_engine.run_backward(
        values, gradients, retain, False, tuple(wanted), allow_unreachable=True, accumulate_grad=False
    )
    return results
