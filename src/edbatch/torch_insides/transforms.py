"""Transforms of torch.func (vmap, grad, jvp, …) and forward-mode autograd: whether a call is inside one, and which of
their functions would take a lazy value for a tensor.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._functorch.apis
import torch._functorch.eager_transforms
import torch._functorch.vmap
from torch.autograd import forward_ad

num_transforms = torch._C._functorch.get_dynamic_layer_stack_depth  # how deep they nest; an interrupt may leave some
pop_transform = torch._C._functorch.pop_dynamic_layer_stack  # takes off what an interrupt left
innermost_transform = torch._C._functorch.peek_interpreter_stack  # None outside of transforms; inside one we refuse
is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # made by a transform; has no memory of its own
set_vmap_warns: Any = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]  # a loop is fine

# (module, name) of functions in C that only ask isinstance(x, Tensor): they would read a lazy value as if it were one.
UNCHECKED: tuple[tuple[Any, str], ...] = tuple(
    (module, name)
    for module in (torch._functorch.eager_transforms, torch._functorch.vmap)
    for name in ("_wrap_for_grad", "_unwrap_for_grad", "_add_batch_dim", "_remove_batch_dim")
    if name in vars(module)
)

VMAP: tuple[Any, str] = (
    torch._functorch.apis,
    "vmap_impl",
)  # where torch.vmap(f)(…) ends, with the values

# Parts of paths: a frame in such a file says that an error came up inside a transform.
FILES = ("/torch/_functorch/", "/torch/autograd/functional.py", "/torch/autograd/forward_ad.py")


def is_forward_mode() -> bool:
    """Whether tensors may have tangents, which batched calls would lose."""
    return forward_ad._current_level >= 0
