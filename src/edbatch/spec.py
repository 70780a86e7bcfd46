"""`Spec`: shape, dtype and device of a value, which are known before the value itself is computed.

All stages after recording look things up by specs: only calls with equal specs run together, and each spec has memory
of its own. Also here: what tells a plain tensor from a lazy value (a stand-in without numbers) and from a subclass of
Tensor that computes in its own way.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from edbatch.torch_insides.tensors import PLAIN_DISPATCH, PLAIN_FUNCTION, fake_mode_of

_SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape, dtype and device of one example's value; batched values have a further first dimension.

    >>> Spec((2, 3), torch.float32, torch.device("cpu"))
    f32[2,3]
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: torch.Tensor) -> Spec:
        return Spec(tuple(tensor.shape), tensor.dtype, tensor.device)

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point or self.dtype.is_complex

    def empty(self, *leading: int) -> torch.Tensor:
        """An uninitialised tensor of this spec, with further leading dimensions."""
        return torch.empty((*leading, *self.shape), dtype=self.dtype, device=self.device)

    def __repr__(self) -> str:
        name = _SHORT.get(self.dtype, str(self.dtype).removeprefix("torch."))
        where = "" if self.device.type == "cpu" else f"@{self.device}"
        return f"{name}[{','.join(map(str, self.shape))}]{where}"


def is_tensor(value: Any) -> bool:
    """Whether a value is a real tensor; `isinstance(value, torch.Tensor)` is true of lazy values, too."""
    return issubclass(type(value), torch.Tensor)


def own_rules(tensor: torch.Tensor) -> str | None:
    """The name of a tensor's class if the class computes in its own way; None for plain tensors and mere subclasses."""
    kind = type(tensor)
    if kind is torch.Tensor or not _has_own_rules(kind):
        return None
    if fake_mode_of(tensor) is not None:  # see `execution`
        return None
    return kind.__name__


@cache
def _has_own_rules(kind: type[torch.Tensor]) -> bool:
    if issubclass(kind, UninitializedTensorMixin):
        return False  # torch raises its own error for these
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    usual = vars(torch.Tensor)["__torch_function__"].__func__, PLAIN_FUNCTION
    return function not in usual or kind.__torch_dispatch__ is not PLAIN_DISPATCH


OWN_RULES = (
    "computes by rules of its own (__torch_function__ or __torch_dispatch__), which values that are batched do not "
    "follow; give a plain tensor, by tensor.as_subclass(torch.Tensor) for example"
)


def float_bits(value: float) -> int:
    """A float64 as the int64 of the same bits, so that ints and floats share one array."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
