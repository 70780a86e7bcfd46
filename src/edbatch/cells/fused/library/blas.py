"""Products of batches without torch: the library that torch brings exports MKL's batched GEMM, which `_blas.c` calls.

A launch of `torch.bmm`, with the views it takes, needs some 6 µs more, half as much as a step of a small LSTM computes.
Where there is no MKL, or no C compiler at installation, products are torch's.
"""

from __future__ import annotations

from functools import cache

import torch

from edbatch.torch_insides.libraries import batched_gemm

try:
    from edbatch.cells.fused.library._blas import MOST_BLOCKS, MOST_PRODUCTS, products, row_products
except ImportError:
    MOST_BLOCKS = MOST_PRODUCTS = 0
    products = row_products = None  # type: ignore[assignment]

__all__ = ["MOST_BLOCKS", "MOST_PRODUCTS", "gemm", "products", "row_products"]
ROWS = {"local": "0", "own": "1", "index": "2", "shared": "3"}  # kinds of `kernel_text.Memory`, as `_blas.c` knows them


@cache
def gemm(dtype: torch.dtype) -> int:
    """The address of MKL's batched GEMM; 0 where there is none."""
    return 0 if products is None else batched_gemm(dtype)
