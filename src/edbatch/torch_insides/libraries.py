"""torch's shared libraries, and two symbols in them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

_FOLDER = Path(torch.__file__).parent / "lib"
GEMM = {torch.float32: "cblas_sgemm_batch", torch.float64: "cblas_dgemm_batch"}  # MKL's, many products by one call


def undefined_tensor() -> int:
    """The address of what C++ takes for no tensor. A lazy value shows it to code in C that takes it for a tensor.

    Raises:
        OSError: the library has another name here.
        ValueError: it does not export this.
    """
    library = ctypes.CDLL(str(_FOLDER / "libc10.so"))
    return ctypes.addressof(ctypes.c_char.in_dll(library, "_ZN3c1019UndefinedTensorImpl10_singletonE"))


def batched_gemm(dtype: torch.dtype) -> int:
    """The address of MKL's batched GEMM, which products of a fused kernel call; 0 where there is none."""
    name, library = GEMM.get(dtype), _FOLDER / "libtorch_cpu.so"
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if name is None or not has_mkl or not library.exists():
        return 0
    function = getattr(ctypes.CDLL(str(library)), name, None)
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0
