"""Finds the tensors that a function uses besides its arguments: those it reads that require grad, those it writes.

In: a run of the function under a torch-function mode. Out: the tensors. Cells that run one by one need them, because
their functions are called as they are and not captured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from edbatch.cells.capture.in_place import is_in_place
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction
from edbatch.torch_insides.tensors import base_of, is_view, version_of
from edbatch.torch_insides.transforms import is_wrapped


class Touched(TorchFunctionMode):
    """Collects the tensors with requires_grad that a function uses besides its arguments, and those that it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[int, Tensor] = {}
        self.written: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args else None
        if is_in_place(func) and isinstance(first, Tensor) and first.grad_fn is None and not is_wrapped(first):
            self.written[id(first)] = first
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and not is_wrapped(leaf):
                self.touch(leaf)
        return func(*args, **(kwargs or {}))

    def touch(self, tensor: Tensor) -> None:
        if tensor.is_leaf and tensor.requires_grad and not _is_view_without_grad(tensor):
            self.tensors[id(tensor)] = tensor


def _is_view_without_grad(leaf: Tensor) -> bool:
    """Whether a leaf is a view that was made under no_grad: it has requires_grad, but no gradient flows to it."""
    with DisableTorchFunction():
        return is_view(leaf) and (base := base_of(leaf)) is not None and base.requires_grad


class Rehearsal(Touched):
    """The same for a trial run: tensors that it writes (as an embedding with `max_norm` does) are set back after it."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[int, tuple[Tensor, Tensor, int]] = {}

    def touch(self, tensor: Tensor) -> None:
        super().touch(tensor)
        with DisableTorchFunction():  # else the clone would be recorded
            if id(tensor) not in self._before and tensor.layout is torch.strided and not tensor.is_inference():
                self._before[id(tensor)] = tensor, tensor.detach().clone(), version_of(tensor)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        with torch.no_grad(), DisableTorchFunction():
            for tensor, value, version in self._before.values():
                if version_of(tensor) != version:
                    self.written[id(tensor)] = tensor
                    if tensor.shape == value.shape:
                        tensor.copy_(value)
