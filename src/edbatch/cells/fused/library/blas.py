"""Matrix products without torch: `_blas.c` calls the batched GEMM of MKL, which torch's own library exports.

In: a dtype. Out: the address of that GEMM, and the functions of `_blas.c`. A call of `torch.bmm`, with the views it
needs, takes some 6 µs longer: half of what a step of a small LSTM computes. Without MKL, or without a C compiler at
installation, torch computes the products.
"""

from __future__ import annotations

from functools import cache

import torch

from edbatch.torch_insides.libraries import batched_gemm, threads_of_products

try:
    from edbatch.cells.fused.library._blas import MOST_BLOCKS, MOST_PRODUCTS, products, row_products, use_threads
except ImportError:
    MOST_BLOCKS = MOST_PRODUCTS = 0
    products = row_products = None  # type: ignore[assignment]

__all__ = ["MOST_BLOCKS", "MOST_PRODUCTS", "gemm", "products", "row_products"]
ROWS = {"local": "0", "own": "1", "index": "2", "shared": "3"}  # `kernel_text.Memory.rows` as numbers of `_blas.c`


@cache
def gemm(dtype: torch.dtype) -> int:
    """The address of MKL's batched GEMM; 0 where there is none."""
    if products is None:
        return 0
    use_threads(threads_of_products())
    return batched_gemm(dtype)
