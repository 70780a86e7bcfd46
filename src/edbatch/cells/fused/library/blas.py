"""Products of batches without torch: the library that torch brings exports MKL's batched GEMM, which `_blas.c` calls.

A launch of `torch.bmm`, with the views it takes, needs some 6 µs more, half as much as a step of a small LSTM computes.
Where there is no MKL, or no C compiler at installation, products are torch's.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

try:
    from edbatch.cells.fused.library._blas import MOST_BLOCKS, MOST_PRODUCTS, products, row_products
except ImportError:
    MOST_BLOCKS = MOST_PRODUCTS = 0
    products = row_products = None  # type: ignore[assignment]

__all__ = ["MOST_BLOCKS", "MOST_PRODUCTS", "gemm", "products", "row_products"]
ROWS = {"local": "0", "own": "1", "index": "2", "shared": "3"}  # kinds of `kernel_text.Memory`, as `_blas.c` knows them
NAMES = {torch.float32: "cblas_sgemm_batch", torch.float64: "cblas_dgemm_batch"}


@cache
def gemm(dtype: torch.dtype) -> int:
    """The address of MKL's batched GEMM; 0 where there is none."""
    name, library = NAMES.get(dtype), Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if products is None or name is None or not has_mkl or not library.exists():
        return 0
    function = getattr(ctypes.CDLL(str(library)), name, None)
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0
