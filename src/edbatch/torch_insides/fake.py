"""Fake tensors: shape, dtype and device without data. Capture runs cells on them."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch._functorch.config
from torch._subclasses.fake_impls import op_implementations_checks  # (which ops, rule), …: ops that need torch's rules
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,  # raised by `if tensor:`, item() and the like
    DynamicOutputShapeException,  # raised by nonzero() and the like
    FakeTensor,  # made by hand where the result of an op is known without torch's mode
    FakeTensorMode,  # for devices and ops that capture does not treat by itself
    UnsupportedFakeTensorException,  # raised by ops without shape inference
    UnsupportedOperatorException,  # likewise
    in_kernel_invocation_manager,  # views of fake tensors, by the kernels of the meta device
)

from edbatch.torch_insides.modes import TorchDispatchMode

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
LOG = logging.getLogger("torch._subclasses.fake_tensor")  # writes a page where an error alone is enough


class UnfinishedFakeMode(FakeTensorMode):
    """torch's mode as far as making fake tensors and views of them goes; the rest, with the compiler, by `finish`."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self.in_kernel_invocation = False
        self.enter_stack = []
        self.is_finished = False
        self.allow_meta = torch._functorch.config.fake_tensor_allow_meta
        self._allow_unsafe_data_ptr_access = torch._functorch.config.fake_tensor_allow_unsafe_data_ptr_access

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper would import the compiler

    def finish(self) -> None:
        """Gets what only torch's way of doing things needs, from a mode that torch has made."""
        if not self.is_finished:
            self.__dict__ = vars(FakeTensorMode()) | self.__dict__ | {"is_finished": True}


def has_own_rule(op: Any) -> bool:
    """Whether torch's mode treats an op by a rule of its own, for what its results look like may depend on data."""
    return any(check(op) for check, _ in op_implementations_checks)
