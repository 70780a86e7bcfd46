"""Reading and writing memory in generated kernels: `load_f32(address, i, scope)` and the like, as numba intrinsics.

Kernels get plain addresses. That makes calls cheap, and every access can tell LLVM what it cannot know of arrays: that
memory of different scopes never overlaps. Without that, a loop over a dozen arrays would need more overlap checks than
LLVM is willing to make, and would not be vectorised.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

NUM_SCOPES = 64


def _declare(builder: Any, instruction: Any, scope: int) -> None:
    """Tells LLVM that this access overlaps with no access of another scope."""
    module = builder.module
    domain = module.add_metadata(["edbatch"])
    scopes = [module.add_metadata([f"scope {i}", domain]) for i in range(NUM_SCOPES)]
    instruction.set_metadata("alias.scope", module.add_metadata([scopes[scope]]))
    instruction.set_metadata("noalias", module.add_metadata([s for i, s in enumerate(scopes) if i != scope]))


def _kept(kind: Any, memory: Any, size: int) -> Any:
    """A load whose bits are combined with a mask by `and`: -1 keeps the value; 0 gives 0, whatever lies there."""
    bits = ir.IntType(8 * size)

    @intrinsic(prefer_literal=True)
    def kept(context, address, i, mask, scope):
        number = scope.literal_value

        def emit(context, builder, signature, args):
            pointer = builder.inttoptr(args[0], bits.as_pointer())
            value = builder.load(builder.gep(pointer, [args[1]]), align=size)
            _declare(builder, value, number)
            mask = args[2] if size == 8 else builder.trunc(args[2], bits)
            return builder.bitcast(builder.and_(value, mask), memory)

        return kind(types.int64, types.int64, types.int64, scope), emit

    return kept


def _access(kind: Any, memory: Any, size: int) -> tuple[Any, Any]:
    """Load and store of one dtype; a bool is a byte in memory and a bit in registers."""
    is_bool = kind is types.boolean

    @intrinsic(prefer_literal=True)
    def load(context, address, i, scope):
        number = scope.literal_value

        def emit(context, builder, signature, args):
            pointer = builder.inttoptr(args[0], memory.as_pointer())
            value = builder.load(builder.gep(pointer, [args[1]]), align=size)
            _declare(builder, value, number)
            return builder.icmp_unsigned("!=", value, ir.Constant(memory, 0)) if is_bool else value

        return kind(types.int64, types.int64, scope), emit

    @intrinsic(prefer_literal=True)
    def store(context, address, i, value, scope):
        number = scope.literal_value

        def emit(context, builder, signature, args):
            pointer = builder.inttoptr(args[0], memory.as_pointer())
            value = builder.zext(args[2], memory) if is_bool else args[2]
            _declare(builder, builder.store(value, builder.gep(pointer, [args[1]]), align=size), number)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, kind, scope), emit

    return load, store


load_f32, store_f32 = _access(types.float32, ir.FloatType(), 4)
load_f64, store_f64 = _access(types.float64, ir.DoubleType(), 8)
load_i64, store_i64 = _access(types.int64, ir.IntType(64), 8)
kept_f32, kept_f64 = _kept(types.float32, ir.FloatType(), 4), _kept(types.float64, ir.DoubleType(), 8)
load_b8, store_b8 = _access(types.boolean, ir.IntType(8), 1)
