"""torch.func and forward mode: whether one is around a call, and where they would take a lazy value for a tensor."""

from __future__ import annotations

from typing import Any

import torch
import torch._functorch.eager_transforms
import torch._functorch.vmap
from torch.autograd import forward_ad

num_transforms = torch._C._functorch.get_dynamic_layer_stack_depth  # one inside the other; an interrupt leaves some
pop_transform = torch._C._functorch.pop_dynamic_layer_stack  # such a one is taken off
innermost_transform = torch._C._functorch.peek_interpreter_stack  # None when no transform is around: else we refuse
is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # made by a transform: it has no memory to compare
set_vmap_warns: Any = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]  # a loop is fine

# Functions in C that take any tensor by isinstance, and would read a lazy value's memory: (module, name).
UNCHECKED: tuple[tuple[Any, str], ...] = tuple(
    (module, name)
    for module in (torch._functorch.eager_transforms, torch._functorch.vmap)
    for name in ("_wrap_for_grad", "_unwrap_for_grad", "_add_batch_dim", "_remove_batch_dim")
    if name in vars(module)
)

# Files of torch whose frames say that an error came up inside a transform.
FILES = ("/torch/_functorch/", "/torch/autograd/functional.py", "/torch/autograd/forward_ad.py")


def is_forward_mode() -> bool:
    """Whether tensors may have tangents, which batched calls would lose."""
    return forward_ad._current_level >= 0
