"""Integers in generated kernels: arithmetic that wraps round as torch's does, and safe indices that come from data.

In and out: scalars inside compiled functions. Numba promises LLVM that signed numbers never overflow, and that floats
fit into integers. Where data breaks that promise, LLVM may leave out the very check that guards an address. The
functions here make no such promise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_INT = ir.IntType(64)
_SMALLEST = -(2**63)


def _of_ints(emit: Callable[..., Any]) -> Callable[..., Any]:
    """Type and code of a numba intrinsic on integers and masks; other types are refused."""

    def typed(*arguments: Any) -> Any:
        def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
            return emit(builder, *values)

        fits = all(isinstance(a, types.Integer | types.Boolean) for a in arguments)
        return (types.int64(*[types.int64] * len(arguments)), lower) if fits else None

    return typed


@intrinsic
def wrapped_sum(typing: Any, a: Any, b: Any) -> Any:
    return _of_ints(lambda builder, a, b: builder.add(a, b))(a, b)


@intrinsic
def wrapped_difference(typing: Any, a: Any, b: Any) -> Any:
    return _of_ints(lambda builder, a, b: builder.sub(a, b))(a, b)


@intrinsic
def wrapped_product(typing: Any, a: Any, b: Any) -> Any:
    return _of_ints(lambda builder, a, b: builder.mul(a, b))(a, b)


@intrinsic
def wrapped_abs(typing: Any, a: Any) -> Any:
    """abs(a); for the smallest integer, that integer itself."""

    def emit(builder: ir.IRBuilder, a: Any) -> Any:
        return builder.select(builder.icmp_signed("<", a, _INT(0)), builder.sub(_INT(0), a), a)

    return _of_ints(emit)(a)


@intrinsic
def truncated(typing: Any, x: Any) -> Any:
    """A float as int64, without its fraction; NaN and numbers that do not fit give the smallest int64, as in torch on
    x86."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        (value,) = values
        low, high = value.type(float(_SMALLEST)), value.type(-float(_SMALLEST))
        fits = builder.and_(builder.fcmp_ordered(">=", value, low), builder.fcmp_ordered("<", value, high))
        return builder.select(fits, builder.fptosi(value, _INT), _INT(_SMALLEST))

    return (types.int64(x), emit) if isinstance(x, types.Float) else None


@intrinsic
def unknown(typing: Any, a: Any) -> Any:
    """The same number, hidden from LLVM's analysis, so that no check of it is optimised away."""

    def emit(builder: ir.IRBuilder, a: Any) -> Any:
        return builder.asm(ir.FunctionType(_INT, [_INT]), "", "=r,0", [a], side_effect=False)

    return _of_ints(emit)(a)
