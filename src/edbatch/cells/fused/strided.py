"""A prologue (what is computed of weights once per mini-batch) without torch, on addresses and strides.

In: a prologue that only transposes, slices and stacks weights. Out: the same as a function that gives `Strided` values
instead of tensors: kernels and products need only addresses. A call of torch that has not run for a while takes ten
times as long as in a loop, and the calls that stack the weights of a small cell took a tenth of a mini-batch's time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType

import torch

from edbatch.cells.body.body import Body
from edbatch.cells.body.program import Emitted, Program
from edbatch.cells.fused.loops.pointwise import BY_SIZE
from edbatch.spec import Spec

aten = torch.ops.aten
OPS = {aten.permute.default, aten.view.default, aten.slice.Tensor, aten.cat.default}
Reserve = Callable[[int], int]  # the address of so many bytes of new memory
StridedPrologue = Callable[[Sequence[torch.Tensor], Reserve], tuple["Strided", ...]]
_COPY = """def kernel(source, rows, columns, stride, step, target, row):
    for i in range(rows):
        if step == 1:
            for j in range(columns):
                store_T(target, i * row + j, load_T(source, i * stride + j, 0), 1)
        else:
            for j in range(columns):
                store_T(target, i * row + j, load_T(source, i * stride + j * step, 0), 1)
"""


class Strided:
    """A stand-in for a tensor, with those of its methods that prologues and bindings call."""

    __slots__ = ("_reserve", "_strides", "address", "itemsize", "shape")

    def __init__(
        self, address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int, reserve: Reserve
    ) -> None:
        self.address, self.shape, self._strides, self.itemsize = address, shape, strides, itemsize
        self._reserve = reserve

    @staticmethod
    def of(tensor: torch.Tensor, spec: Spec, reserve: Reserve) -> Strided:
        return Strided(tensor.data_ptr(), spec.shape, tensor.stride(), spec.dtype.itemsize, reserve)

    @staticmethod
    def empty(shape: Sequence[int], itemsize: int, reserve: Reserve) -> Strided:
        address = reserve(math.prod(shape) * itemsize)
        return Strided(address, shape, _in_order(shape), itemsize, reserve)

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> Sequence[int]:
        return self._strides

    def narrow(self, dim: int, first: int, size: int) -> Strided:
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        address = self.address + first * self._strides[dim] * self.itemsize
        return Strided(address, shape, self._strides, self.itemsize, self._reserve)

    def permute(self, dims: Sequence[int]) -> Strided:
        shape, strides = [self.shape[d] for d in dims], [self._strides[d] for d in dims]
        return Strided(self.address, shape, strides, self.itemsize, self._reserve)

    def transpose(self, one: int, other: int) -> Strided:
        dims = list(range(len(self.shape)))
        dims[one], dims[other] = dims[other], dims[one]
        return self.permute(dims)

    def reshape(self, shape: Sequence[int]) -> Strided:
        address = self.contiguous().address
        return Strided(address, shape, _in_order(shape), self.itemsize, self._reserve)

    def contiguous(self) -> Strided:
        wanted = zip(self.shape, self._strides, _in_order(self.shape), strict=True)
        if all(size == 1 or stride == step for size, stride, step in wanted):
            return self
        made = Strided.empty(self.shape, self.itemsize, self._reserve)
        self.copy_to(made)
        return made

    def copy_to(self, target: Strided) -> None:
        """Write all elements to memory of the same shape, whose last dimension has stride 1."""
        if len(self.shape) > 2:
            for i in range(self.shape[0]):
                self._part(i).copy_to(target._part(i))
            return
        rows, columns = (1, 1, *self.shape)[-2:]
        stride, step = (0, 1, *self._strides)[-2:]
        row, _ = (0, 1, *target._strides)[-2:]
        _copy(self.itemsize)(self.address, rows, columns, stride, step, target.address, row)

    def _part(self, i: int) -> Strided:
        address = self.address + i * self._strides[0] * self.itemsize
        return Strided(address, self.shape[1:], self._strides[1:], self.itemsize, self._reserve)


@cache
def _copy(itemsize: int) -> Callable[..., None]:
    from edbatch.cells.fused.library.native import compile_kernels  # at first use: it imports numba

    (kernel,) = compile_kernels([_COPY.replace("_T(", f"_{BY_SIZE[itemsize]}(")], "copies")
    return kernel


def _in_order(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


def cat(parts: Sequence[Strided], dim: int, out: Strided) -> Strided:
    begin = 0
    for part in parts:
        part.copy_to(out.narrow(dim, begin, part.shape[dim]))
        begin += part.shape[dim]
    return out


def is_strided(body: Body, program: Program) -> bool:
    """Whether a prologue only transposes, reshapes, slices and concatenates."""
    for index in program.ops:
        op = body.op(index)
        if op is None or op.target not in OPS:
            return False
        if op.target is aten.slice.Tensor and op.args[4:5] not in ((), (1,)):
            return False
    return all(isinstance(spec, Spec) and spec.dtype.itemsize in BY_SIZE for spec in body.shared)


def without_torch(emitted: Emitted, specs: Sequence[Spec]) -> StridedPrologue:
    """The same prologue on `Strided` values, for shared tensors of these specs."""
    assert isinstance(emitted.function, FunctionType)
    scope = {name: cat if thing is torch.cat else thing for name, thing in emitted.function.__globals__.items()}
    function = FunctionType(emitted.function.__code__, scope)

    def prologue(shared: Sequence[torch.Tensor], reserve: Reserve) -> tuple[Strided, ...]:
        def take(spec: Spec) -> Strided:
            return Strided.empty(spec.shape, spec.dtype.itemsize, reserve)

        pairs = zip(shared, specs, strict=True)
        values: tuple[Strided, ...] = function([Strided.of(tensor, spec, reserve) for tensor, spec in pairs], take)
        return values

    return prologue
