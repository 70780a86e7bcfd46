"""Which matrix products run as blocks of columns: `[B, k] × [k, n]` as one batched product, g × `[B, k] × [k, n / g]`.

In: a program of a body. Out: the products to run so. A list of products, `g × [B, k] × [k, n]`, consists of blocks
already; each may be divided further. BLAS shares a product of few rows badly among threads; in a batched product every
thread gets whole blocks. With two threads and 8 to 64 rows that takes 0.55 to 0.85 of the time, with one thread or
hundreds of rows the same. The result lies in memory block by block, which costs nothing where generated kernels read
it: the gates of a cell are blocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from edbatch.cells.body.body import Body, Val
from edbatch.cells.body.program import Program
from edbatch.cells.body.rewriting import is_list_of_products, is_product
from edbatch.cells.fused.library import blas
from edbatch.cells.fused.loops.ranges import RANGES

aten = torch.ops.aten
MOST = 8  # blocks of one product
SMALLEST_BLOCK = 32  # columns of a block
SMALLEST_WEIGHT = 1 << 14  # elements: below it, BLAS uses one thread


def find_blocks(body: Body, program: Program, soft: Collection[int], kept: Collection[int]) -> dict[int, int]:
    """The number of columns of a block, for every product that runs as blocks.

    Args:
        soft: the values that generated kernels compute.
        kept: the values that must lie in memory row by row, because they are also read by something else.
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
            # with an odd number of blocks, one of two threads would wait
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
    """Where slices begin and end that are read of a value, or of others computed from it element by element."""
    found: set[int] = set()
    seen = {(index, 0)}
    stack = [(index, 0)]  # (a value, the element of the first value at which it begins)
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
                begin, width = RANGES[op.target](body, op)  # type: ignore[misc]
                at += begin
                found |= {at, at + width}
            if (reader, at) not in seen:
                seen.add((reader, at))
                stack.append((reader, at))
    return found
