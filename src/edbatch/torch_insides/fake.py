"""torch's fake tensors, which have shape, dtype and device but no data.

To capture a cell (a part of the model), its function runs once on fake tensors, and the ops that it calls are noted.
`UnfinishedFakeMode` makes such tensors without importing torch's compiler.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch._functorch.config
from torch._subclasses.fake_impls import op_implementations_checks  # pairs (check, rule): ops with special rules
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,  # raised by `if tensor:`, item() and the like
    DynamicOutputShapeException,  # raised by nonzero() and the like
    FakeTensor,  # made by us where the result of an op is known without torch's mode
    FakeTensorMode,  # for devices and ops that capture does not treat by itself
    UnsupportedFakeTensorException,  # raised by ops without shape inference
    UnsupportedOperatorException,  # likewise
    in_kernel_invocation_manager,  # to make views of fake tensors, by the kernels of the meta device
)

from edbatch.torch_insides.modes import QuietDispatchMode

__all__ = [
    "LOG",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "UnfinishedFakeMode",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
    "has_own_rule",
    "in_kernel_invocation_manager",
]
LOG = logging.getLogger("torch._subclasses.fake_tensor")  # logs a page for errors that we handle


class UnfinishedFakeMode(FakeTensorMode, QuietDispatchMode):  # type: ignore[no-untyped-call]
    """FakeTensorMode with what fake tensors and their views need; `finish` adds the rest, and imports the compiler."""

    def __init__(self) -> None:
        QuietDispatchMode.__init__(self)
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self.in_kernel_invocation = False
        self.enter_stack = []
        self.is_finished = False
        self.allow_meta = torch._functorch.config.fake_tensor_allow_meta
        self._allow_unsafe_data_ptr_access = torch._functorch.config.fake_tensor_allow_unsafe_data_ptr_access

    def finish(self) -> None:
        """Add the other attributes of a FakeTensorMode, which only torch's own handling of ops needs."""
        if not self.is_finished:
            self.__dict__ = vars(FakeTensorMode()) | self.__dict__ | {"is_finished": True}


def has_own_rule(op: Any) -> bool:
    """Whether FakeTensorMode has a special rule for an op; the shapes of its results may depend on data."""
    return any(check(op) for check, _ in op_implementations_checks)
