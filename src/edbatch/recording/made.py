"""Plain tensors that an example makes itself: `torch.zeros(n, d).scatter_(1, index, 1)`.

In: the results of calls that always give new memory. Out: whether a tensor is one of these, or a view of one. Writing
such a tensor changes nothing that outlives the example, so it is done again just when the example is recorded again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from edbatch.torch_insides.tensors import base_of

_NEW = ("zeros", "ones", "empty", "full", "rand", "randn")
MAKING: frozenset[Callable[..., Any]] = frozenset(
    [getattr(torch, name + end) for name in _NEW for end in ("", "_like")]
    + [getattr(torch.Tensor, "new_" + name) for name in ("zeros", "ones", "empty", "full", "tensor")]
    + [torch.tensor, torch.eye, torch.arange, torch.clone, torch.Tensor.clone]
)


class MadeTensors:
    """The tensors that the present example has made and that are alive."""

    def __init__(self) -> None:
        self.table: dict[int, weakref.ref[torch.Tensor]] = {}  # by their ids; `_calls.c` notes some, too

    def note(self, func: Callable[..., Any], result: Any) -> None:
        if func in MAKING:
            self.table[id(result)] = weakref.ref(result)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        base = base_of(tensor)
        found = self.table.get(id(tensor if base is None else base))
        return found is not None and found() is (tensor if base is None else base)

    def are_alone_in(self, func: Callable[..., Any], written: list[torch.Tensor]) -> bool:
        """Whether a call writes such tensors only, and does not give them the memory of others."""
        return all(t in self for t in written) and getattr(func, "__name__", "") not in ("set_", "__set__")

    def clear(self) -> None:
        """Called when an example begins, and when tensors get other memory."""
        self.table.clear()
