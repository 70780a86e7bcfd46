"""Access to the bits of a float32, which numba does not offer.

In and out: scalars inside compiled functions. `fast_math` is built on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_INT, _FLOAT = ir.IntType(32), ir.FloatType()
_ROOT_HALF_BITS = _INT(int(np.float32(math.sqrt(0.5)).view(np.int32)))


def _intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    return intrinsic(function)


def _of_bits(emit: Callable[..., Any], *arguments: Any) -> Any:
    """Type and code of a numba intrinsic on float32s, from code for their bits; other types are refused."""

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        return emit(builder, *(builder.bitcast(value, _INT) for value in values))

    return (types.float32(*arguments), lower) if set(arguments) == {types.float32} else None


@_intrinsic
def times_power_of_two(typing: Any, x: Any, shifted: Any) -> Any:
    """x * 2**k, for shifted = 1.5 * 2**23 + k; x and the result are normal numbers."""

    def emit(builder: ir.IRBuilder, x: Any, shifted: Any) -> Any:
        return builder.bitcast(builder.add(x, builder.shl(shifted, _INT(23))), _FLOAT)

    return _of_bits(emit, x, shifted)


@_intrinsic
def exponent(typing: Any, x: Any) -> Any:
    """The k of x = 2**k m with m in [sqrt(1/2), sqrt(2)); x is a normal number above 0."""

    def emit(builder: ir.IRBuilder, x: Any) -> Any:
        return builder.sitofp(builder.ashr(builder.sub(x, _ROOT_HALF_BITS), _INT(23)), _FLOAT)

    return _of_bits(emit, x)


@_intrinsic
def mantissa(typing: Any, x: Any) -> Any:
    """The m of x = 2**k m with m in [sqrt(1/2), sqrt(2)); x is a normal number above 0."""

    def emit(builder: ir.IRBuilder, x: Any) -> Any:
        above = builder.and_(builder.sub(x, _ROOT_HALF_BITS), _INT(2**23 - 1))
        return builder.bitcast(builder.add(above, _ROOT_HALF_BITS), _FLOAT)

    return _of_bits(emit, x)


@_intrinsic
def leading_bits(typing: Any, x: Any) -> Any:
    """x cut to its first 12 significant bits, so that its square is exact."""

    def emit(builder: ir.IRBuilder, x: Any) -> Any:
        return builder.bitcast(builder.and_(x, _INT(-(2**12))), _FLOAT)

    return _of_bits(emit, x)
