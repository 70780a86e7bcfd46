"""What reduces a row in generated kernels: numba intrinsics whose order LLVM may choose, so that their loops vectorise.

In and out: scalars inside compiled functions. Plain code may not be reordered without fast-math flags, and those would
change all else a kernel computes; here the one instruction that gathers the result carries the permission.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _extreme(name: str) -> Any:
    """The larger or smaller one of two floats; NaN if one is NaN, as in torch."""

    @intrinsic
    def extreme(typing: Any, a: Any, b: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
            kind = values[0].type
            signature = ir.FunctionType(kind, [kind, kind])
            function = builder.module.declare_intrinsic(f"llvm.{name}", [kind], signature)
            return builder.call(function, values, fastmath=("nsz",))  # which zero it is does not matter

        return (a(a, b), emit) if a == b and isinstance(a, types.Float) else None

    return extreme


larger, smaller = _extreme("maximum"), _extreme("minimum")


@intrinsic
def plus(typing: Any, total: Any, term: Any) -> Any:
    """A sum of float64 whose terms may be added in any order."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        return builder.fadd(*values, flags=("reassoc",))

    return (types.float64(total, term), emit) if total == term == types.float64 else None
