"""Which products run as blocks of columns: `[B, k] × [k, n]` as g products `[B, k] × [k, n / g]` of one batched call.

Products of one shape with different operands, `g × [B, k] × [k, n]`, are such blocks as they are, or several each.
BLAS shares a product of few rows badly among threads; a batched product gives every thread whole blocks. With two
threads and 8 to 64 rows it takes 0.55 to 0.85 of the time, with one thread or hundreds of rows the same. The result
then lies block by block, which costs nothing where generated kernels read it, since the gates of a cell are blocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from edbatch.cells.body.body import Body, Val
from edbatch.cells.body.program import Program
from edbatch.cells.body.rewriting import is_list_of_products, is_product
from edbatch.cells.fused.library import blas
from edbatch.cells.fused.loops.ranges import PIECES

aten = torch.ops.aten
MOST = 8  # blocks
SMALLEST_BLOCK = 32  # columns
SMALLEST_WEIGHT = 1 << 14  # elements: below it, BLAS uses one thread


def find_blocks(body: Body, program: Program, soft: Collection[int], kept: Collection[int]) -> dict[int, int]:
    """The number of columns of a block, for every product that runs as blocks.

    Args:
        soft: the values that generated kernels compute.
        kept: the values that must lie in memory row by row, because something else than those kernels reads them.
    """
    readers: dict[int, list[int]] = {}
    for index in program.ops:
        for v in body.op(index).operands:  # type: ignore[union-attr]
            readers.setdefault(v.index, []).append(index)
    found = {}
    for index in program.ops:
        if index not in kept and is_list_of_products(body, index):
            number, _, width = body.spec(Val(index)).shape
            found[index] = width
            if blas.gemm(body.spec(Val(index)).dtype) and _weight_size(body, index) >= SMALLEST_WEIGHT:
                most = width // math.gcd(width, *_bounds(body, index, readers, soft))
                counts = [c for c in range(1, MOST // number + 1) if most % c == 0 and width // c >= SMALLEST_BLOCK]
                found[index] = width // max(counts, default=1)
        elif index not in kept and is_product(body, index) and _weight_size(body, index) >= SMALLEST_WEIGHT:
            width = body.spec(Val(index)).shape[1]
            bounds = _bounds(body, index, readers, soft)
            most = width // math.gcd(width, *bounds) if bounds else 2
            count = max(c for c in range(1, MOST + 1) if most % c == 0)
            # an odd number leaves one of two threads without work
            for c in (2 * count, count) if count % 2 and count > 1 else (count,):
                if 1 < c <= MOST and width % c == 0 and width // c >= SMALLEST_BLOCK:
                    found[index] = width // c
                    break
    return found


def _weight_size(body: Body, index: int) -> int:
    op = body.op(index)
    assert op is not None
    return math.prod(body.spec(op.args[1]).shape)


def _bounds(body: Body, index: int, readers: dict[int, list[int]], soft: Collection[int]) -> set[int]:
    """Where the pieces begin and end in which a value, or one computed from it element by element, is read."""
    found: set[int] = set()
    seen = {(index, 0)}
    stack = [(index, 0)]  # values, and at which of the first value's elements they begin
    while stack:
        value, first = stack.pop()
        size = math.prod(body.spec(Val(value)).shape)
        for reader in readers.get(value, ()):
            op = body.op(reader)
            assert op is not None
            if reader not in soft:
                continue
            at = first
            if math.prod(body.spec(Val(reader)).shape) != size:
                if op.target not in (aten.slice.Tensor, aten.select.int):
                    continue
                begin, width = PIECES[op.target](body, op)  # type: ignore[misc]
                at += begin
                found |= {at, at + width}
            if (reader, at) not in seen:
                seen.add((reader, at))
                stack.append((reader, at))
    return found
