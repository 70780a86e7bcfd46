"""Compiled loops that copy and sum rows of arenas by their numbers, and add gradients back to them.

In: a dtype. Out: compiled functions. They take addresses, see `memory_access` in the library of fused cells: `index`
holds the numbers of rows, from `begin` on, and for sums also, `size` entries later, where the rows of each node begin
among these. Long sums are added up in float64, or they would lose digits. `_TOTAL` has the arguments of a generated
kernel, see `cells/fused/loops/kernel_text.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch

from edbatch.cells.fused.loops.pointwise import BY_SIZE
from edbatch.spec import Spec

LONG = 16  # terms; longer sums lose digits when they are added up one after the other
_COPY = """def kernel(B, index, begin, source, target, width):
    for r in range(B):
        row, at = load_i64(index, begin + r, 0) * width, r * width
        for j in range(width):
            store_T(target, at + j, load_T(source, row + j, 1), 2)
"""
_TOTAL = """def kernel(b, p):
READ
    B, w = load_i64(sizes, b, 0), load_i64(own, b, 0)
    slot = b * num_slots
    begin, size = load_i64(begins, slot, 0), load_i64(counts, slot, 0)
    for r in range(B):
        at = (r + w) * width
        if not is_summed:
            row = load_i64(rows, begin + r, 0) * width
            for j in range(width):
                store_T(target, at + j, load_T(source, row + j, 1), 2)
            continue
        first, last = load_i64(rows, begin + size + r, 0), load_i64(rows, begin + size + r + 1, 0)
        if last - first > LONG:
            for j in range(width):
                total = 0.0
                for k in range(first, last):
                    total += load_T(source, load_i64(rows, begin + k, 0) * width + j, 1)
                store_T(target, at + j, CAST(total), 2)
        else:
            row = load_i64(rows, begin + first, 0) * width
            for j in range(width):
                store_T(target, at + j, load_T(source, row + j, 1), 2)
            for k in range(first + 1, last):
                row = load_i64(rows, begin + k, 0) * width
                for j in range(width):
                    store_T(target, at + j, load_T(target, at + j, 2) + load_T(source, row + j, 1), 2)
"""
_ADD_BACK = """def kernel(B, index, begin, size, source, target, width):
    for r in range(B):
        first, last = load_i64(index, begin + size + r, 0), load_i64(index, begin + size + r + 1, 0)
        for k in range(first, last):
            row = load_i64(index, begin + k, 0) * width
            for j in range(width):
                store_T(target, row + j, load_T(target, row + j, 2) + load_T(source, r * width + j, 1), 2)
"""
_ADD = """def kernel(B, index, begin, source, target, width):
    for r in range(B):
        row, at = load_i64(index, begin + r, 0) * width, r * width
        for j in range(width):
            store_T(target, row + j, load_T(target, row + j, 2) + load_T(source, at + j, 1), 2)
"""
NAMES = {torch.float32: ("f32", "float32"), torch.float64: ("f64", "float64")}


class Total(NamedTuple):
    """The arguments of `total`.

    sizes, own, rows, num_slots: as for every kernel. begins, counts: for the first batch, the addresses of where its
    rows begin in the index, and how many there are. source: the arena that is read. target: where results are written,
    memory for all batches of the type. width: elements of a row. is_summed: whether the rows of each node are summed.
    """

    sizes: int
    own: int
    rows: int
    num_slots: int
    begins: int
    counts: int
    source: int
    target: int
    width: int
    is_summed: int


class RowKernels(NamedTuple):
    """For one dtype: `total` writes listed rows, or the sum of each segment of them; `add_back` is its gradient. `add`
    adds rows to listed ones."""

    total: Callable[..., None]
    add_back: Callable[..., None]
    add: Callable[..., None]


@cache
def row_kernels(dtype: torch.dtype) -> RowKernels:
    from edbatch.cells.fused.library.native import compile_kernels  # at first use: it imports numba

    short, cast = NAMES[dtype]
    read = "\n".join(f"    {name} = load_i64(p, {i}, 0)" for i, name in enumerate(Total._fields))
    texts = _TOTAL.replace("READ", read).replace("LONG", str(LONG)), _ADD_BACK, _ADD
    sources = [text.replace("_T(", f"_{short}(").replace("CAST", cast) for text in texts]
    return RowKernels(*compile_kernels(sources, f"rows of {cast}"))


@cache
def copy_rows(itemsize: int) -> Callable[..., None]:
    """The loop that copies listed rows, for elements of so many bytes."""
    from edbatch.cells.fused.library.native import compile_kernels

    return compile_kernels([_COPY.replace("_T(", f"_{BY_SIZE[itemsize]}(")], "copies of rows")[0]


def copier(spec: Spec) -> tuple[Callable[..., None], int] | None:
    """The loop that copies listed rows of a spec, and how many of its elements a row has; None if there is none."""
    size = math.prod(spec.shape) * spec.dtype.itemsize
    itemsize = spec.dtype.itemsize if spec.dtype.itemsize in BY_SIZE else 4  # rows of bfloat16 by two
    if spec.device.type != "cpu" or size % itemsize:
        return None
    return copy_rows(itemsize), size // itemsize
