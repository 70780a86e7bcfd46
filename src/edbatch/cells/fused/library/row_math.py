"""Sums and extremes of a row in generated kernels: numba intrinsics that LLVM may reorder, so that loops vectorise.

In and out: scalars inside compiled functions. Sums and extremes of floats depend on the order, and fast-math flags for
a whole kernel would change all its other results. Here only the addition of a sum carries such a flag, and extremes are
found among integers of the same order as the floats.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_INTS: dict[Any, Any] = {types.float32: (types.int32, ir.IntType(32)), types.float64: (types.int64, ir.IntType(64))}
_FLOATS: dict[Any, Any] = {types.int32: (types.float32, ir.FloatType()), types.int64: (types.float64, ir.DoubleType())}


def _flip(builder: ir.IRBuilder, bits: Any) -> Any:
    """The bits of a float as an integer of the same order, and back; bits of negative numbers count downwards."""
    kind = bits.type
    sign = builder.ashr(bits, kind(kind.width - 1))
    return builder.xor(bits, builder.and_(sign, kind(2 ** (kind.width - 1) - 1)))


def _key(nan_is_largest: bool) -> Any:
    """An intrinsic: a float as an integer of the same order, with NaN last (or first), as torch orders extremes."""

    @intrinsic
    def key(typing: Any, x: Any) -> Any:
        if x not in _INTS:
            return None
        found, kind = _INTS[x]

        def emit(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
            last = 2 ** (kind.width - 1)
            nan = kind(last - 1 if nan_is_largest else -last)
            bits = _flip(builder, builder.bitcast(values[0], kind))
            return builder.select(builder.fcmp_unordered("uno", values[0], values[0]), nan, bits)

        return found(x), emit

    return key


upper_key, lower_key = _key(True), _key(False)


@intrinsic
def of_key(typing: Any, key: Any) -> Any:
    """The float of a key."""
    if key not in _FLOATS:
        return None
    found, kind = _FLOATS[key]

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        return builder.bitcast(_flip(builder, values[0]), kind)

    return found(key), emit


@intrinsic
def plus(typing: Any, total: Any, term: Any) -> Any:
    """A sum of float64 whose terms may be added in any order."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        return builder.fadd(*values, flags=("reassoc",))

    return (types.float64(total, term), emit) if total == term == types.float64 else None
