"""Fake tensors (they have a shape and a dtype, but no data) without torch's compiler.

torch's own fake tensor mode imports the compiler when it is made, and so do torch's kernels for the meta device. That
takes longer than everything else in the first call of a process. For tensors on the CPU the mode here finds out by
itself what an op returns: it runs the op's own kernel on scratch tensors, which are all zeros. All else (other devices,
ops that look at data, errors) is left to torch's mode, which is made when it is first needed.

Seconds for all captures of a model (torch 2.13, 2 shared cores, medians), with this mode and with torch's own: in the
first call of a process 0.08 and 1.0 for tree-lstm, 0.16 and 1.7 for lattice-lstm, 0.39 and 2.0 for bilstm-tagger, 0.25
and 1.8 for attention-nmt, and the whole call takes less than half as long. Once the compiler is imported they are 0.07
and 0.09, 0.16 and 0.18, 0.35 and 0.40, 0.20 and 0.30.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch

from edbatch.torch_insides import pytree
from edbatch.torch_insides.fake import FakeTensor, UnfinishedFakeMode, has_own_rule, in_kernel_invocation_manager
from edbatch.torch_insides.ops import OpOverload, schema_of
from edbatch.torch_state.surroundings import inside, undrawn

aten = torch.ops.aten
_CPU, _META = torch.device("cpu"), torch.device("meta")
LARGE = 1 << 26  # elements: ops with an input of this size do not run on scratch tensors
LONG = 1 << 24  # elements: to compute so many would take longer than the import of the compiler
_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})
_LIFT = (aten.lift_fresh.default, aten.lift_fresh_copy.default)

# torch's mode has special rules for these ops, but only for symbolic sizes, other devices and several devices.
_ORDINARY = frozenset({
    aten._unsafe_view.default, aten.embedding.default, aten.slice_scatter.default, aten.empty_like.default,
    aten.full_like.default, aten.zeros_like.default, aten.ones_like.default, aten.new_empty.default,
    aten.new_empty_strided.default, aten.new_full.default, aten.new_zeros.default, aten.new_ones.default,
    aten.convolution.default, aten.convolution_backward.default, aten.index_put.default, aten.index.Tensor,
    aten.native_layer_norm.default,
})  # fmt: skip


class FakeMode(UnfinishedFakeMode):  # type: ignore[no-untyped-call]
    """torch's mode, made without the compiler."""

    def __init__(self) -> None:
        super().__init__()
        self.is_large = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _PRODUCTS:
            _check_dtypes(func, args)
        result = self._quick(func, args, kwargs) if isinstance(func, OpOverload) else NotImplemented
        if result is not NotImplemented:
            return result
        self.finish()
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _quick(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """The result of an op on tensors of the CPU; NotImplemented when it is left to torch's mode."""
        device = kwargs.get("device")
        if (device is not None and torch.device(device) != _CPU) or kwargs.get("generator") is not None:
            return NotImplemented
        if func in _LIFT and type(args[0]) is torch.Tensor and args[0].device == _CPU:
            return self._lift(args[0])
        try:
            if _is_factory(func):
                made = func(*args, **kwargs | {"device": _META})
                self.is_large |= made.numel() >= LARGE
                return self._fake(made)
            if not self._is_all_ours(pytree.arg_tree_leaves(*args, **kwargs)):
                return NotImplemented
            if func.is_view or torch.Tag.inplace_view in func.tags:
                with in_kernel_invocation_manager(self):
                    result = func(*args, **kwargs)
                return pytree.tree_map_only(torch.Tensor, self._fake, result)
            if self._can_run(func, args, kwargs):
                args, kwargs = pytree.tree_map_only(torch.Tensor, scratch, (args, kwargs))
                result = inside(undrawn() if _draws(func) else (), func, *args, **kwargs)
                leaves = pytree.tree_leaves(result)
                self.is_large |= any(t.numel() >= LONG for t in leaves if isinstance(t, torch.Tensor))
                if all(value is None or isinstance(value, torch.Tensor) for value in leaves):
                    return pytree.tree_map_only(torch.Tensor, lambda t: self._fake(_without_data(t)), result)
        except Exception:  # torch's mode has the better message, or may even succeed
            pass
        return NotImplemented

    def _can_run(self, func: OpOverload, args: Any, kwargs: Any) -> bool:
        if not _is_ordinary(func) or self.is_large or (func is aten.index.Tensor and _is_masked(args[1])):
            return False
        shapes = [t.shape for t in pytree.arg_tree_leaves(*args, **kwargs) if isinstance(t, torch.Tensor)]
        if torch.Tag.pointwise in func.tags:
            return math.prod(np.broadcast_shapes(*map(tuple, shapes))) < LONG
        return func not in _PRODUCTS or math.prod((*shapes[-2][:-1], shapes[-1][-1])) < LONG

    def _fake(self, meta: torch.Tensor) -> FakeTensor:
        return meta if isinstance(meta, FakeTensor) else FakeTensor(self, meta, _CPU)

    def _lift(self, tensor: torch.Tensor) -> FakeTensor:
        """The fake tensor for one made of Python numbers; a single number stays known, as in torch's mode."""
        known = tensor.clone() if tensor.numel() == 1 else None
        return FakeTensor(self, _without_data(tensor), _CPU, constant=known)

    def _is_all_ours(self, leaves: list[Any]) -> bool:
        """Whether the tensors are fake ones of this mode, on the CPU, and not all of them known numbers."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        ours = [t for t in tensors if type(t) is FakeTensor and t.fake_mode is self and t.fake_device == _CPU]
        return len(ours) == len(tensors) and any(t.constant is None for t in ours)


def _check_dtypes(func: OpOverload, operands: Any) -> None:
    """Refuses products of mixed dtypes, which no device computes, but torch's own mode accepts."""
    dtypes = dict.fromkeys(t.dtype for t in operands if isinstance(t, torch.Tensor))
    if len(dtypes) > 1:
        raise RuntimeError(f"{func} of operands of different dtypes: {', '.join(map(str, dtypes))}")


def scratch(like: torch.Tensor) -> torch.Tensor:
    """Zeros on the CPU of the same shape, strides and dtype; the system provides the memory only where it is read."""
    if like.numel() == 0:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    num_elements = 1 + sum((size - 1) * step for size, step in zip(like.shape, like.stride(), strict=True))
    memory = torch.from_numpy(np.zeros(num_elements * like.element_size(), dtype=np.uint8))
    return memory.view(like.dtype).as_strided(like.shape, like.stride())


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)


def _draws(func: OpOverload) -> bool:
    """Whether an op draws random numbers. It runs here with the state of the generator put back afterwards."""
    return torch.Tag.nondeterministic_seeded in func.tags


@cache
def _is_factory(func: OpOverload) -> bool:
    """Whether an op makes a tensor from numbers, without tensor arguments."""
    schema = schema_of(func)
    return (
        func.namespace == "aten"
        and not schema.is_mutable
        and [str(r.type) for r in schema.returns] == ["Tensor"]
        and not any("Tensor" in str(a.type) for a in schema.arguments)
        and any(a.name == "device" for a in schema.arguments)
    )


@cache
def _is_ordinary(func: OpOverload) -> bool:
    """Whether shape, strides and dtype of an op's results depend only on those of its operands."""
    return func.namespace == "aten" and not schema_of(func).is_mutable and (func in _ORDINARY or not has_own_rule(func))


def _is_masked(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
