"""Counts what torch does: kernels that are launched, and those of them that only copy.

In: ops, as a dispatch mode sees them. Out: `Counts`. Views launch nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from edbatch.torch_insides.modes import QuietDispatchMode

aten = torch.ops.aten
COPIES = {
    aten.copy_.default, aten.cat.default, aten.cat.out, aten.stack.default, aten.stack.out, aten.clone.default,
    aten.index_select.default, aten.index_select.out, aten._to_copy.default,
}  # fmt: skip


class Counts(NamedTuple):
    """`bytes_copied`: of everything that the copies wrote."""

    launches: int
    copies: int
    bytes_copied: int


class CountingMode(QuietDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts(0, 0, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view or func in (aten.empty.memory_format, aten.detach.default):
            return result
        launches, copies, copied = self.counts
        is_copy = func in COPIES
        size = result.nbytes if is_copy and isinstance(result, torch.Tensor) else 0
        self.counts = Counts(launches + 1, copies + is_copy, copied + size)
        return result
