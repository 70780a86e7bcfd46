"""Tensors that all examples share: parameters, buffers, keywords, and what is computed from these alone.

Such a computation is no node: it runs at once, once per call of the batched function, and every example reads its
result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from edbatch.frontend.signature import Parts

if TYPE_CHECKING:
    from edbatch.frontend.recorder import Recorder


class SharedTensors:
    """The shared tensors of one recording."""

    def __init__(self, recorder: Recorder, tensors: Iterable[torch.Tensor]):
        self._recorder = recorder
        self._tensors = {id(t): t for t in tensors}
        self._would_require_grad: set[int] = set()  # if gradients were on
        self._results: dict[Hashable, tuple[Any, int, list[torch.Tensor]]] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, nn.Parameter) or id(tensor) in self._tensors

    def is_differentiable(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is shared and requires a gradient, or would in training: one graph for both."""
        return tensor in self and (tensor.requires_grad or id(tensor) in self._would_require_grad)

    def compute(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of an op on shared tensors alone."""
        recorder, parts = self._recorder, Parts(self._recorder)
        parts.key += (func, recorder.context)
        parts.take(args)
        parts.take(kwargs)
        key = tuple(parts.key)
        known = self._results.get(key)
        if known is not None and known[1] == _version(known[0]):
            return known[0]
        result = func(*args, **kwargs)
        self._results[key] = result, _version(result), parts.shared  # kept, since the key holds only their ids
        made = [t for t in flatten((result,), {}) if isinstance(t, torch.Tensor) and t not in self]
        if made:
            self._tensors.update((id(t), t) for t in made)
            recorder.names.derive(made, func, args, kwargs)
        if (
            not recorder.outer.grad
            and func is not torch.Tensor.detach
            and any(map(self.is_differentiable, parts.shared))
        ):
            self._would_require_grad.update(id(t) for t in made if t.is_floating_point())
        return result

    def forget_results(self) -> None:
        """One of the tensors is about to be written: what was computed is computed again when it is needed."""
        self._results.clear()


def flatten(args: Any, kwargs: Any) -> list[Any]:
    """The leaves of arguments, through lists, tuples and dicts."""
    leaves: list[Any] = []
    stack = [*args, *kwargs.values()]
    for item in stack:  # grows while it is walked
        if isinstance(item, list | tuple):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend(item.values())
        else:
            leaves.append(item)
    return leaves


def _version(result: Any) -> int:
    return result._version if isinstance(result, torch.Tensor) and not result.is_inference() else 0
