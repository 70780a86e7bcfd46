"""Modes of torch that decide in which dtypes a function computes: autocast and the default dtype."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Modes:
    """These modes as they are at one moment; `around` calls a function in them later."""

    dtype: torch.dtype
    autocast: tuple[tuple[str, bool, torch.dtype], ...]

    @staticmethod
    def current() -> Modes:
        autocast = tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda"))
        return Modes(torch.get_default_dtype(), autocast)

    def around(self, call: Callable[[], T]) -> T:
        before = torch.get_default_dtype()
        with ExitStack() as stack:
            for device, on, dtype in self.autocast:
                if on or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype, enabled=on))
            if before is not self.dtype:
                stack.callback(torch.set_default_dtype, before)
                torch.set_default_dtype(self.dtype)
            return call()
