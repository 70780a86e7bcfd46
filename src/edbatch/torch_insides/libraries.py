"""Addresses in torch's shared libraries: of the C++ object for "no tensor", and of MKL's batched matrix products."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

_FOLDER = Path(torch.__file__).parent / "lib"
GEMM = {torch.float32: "cblas_sgemm_batch", torch.float64: "cblas_dgemm_batch"}  # of MKL: many products in one call
THREADS = "MKL_Set_Num_Threads_Local"  # of MKL: threads for calls from this thread; gives the number before


def undefined_tensor() -> int:
    """The address of the C++ object that stands for "no tensor".

    A lazy value holds it where a tensor has its data: C code that takes the value for a tensor finds it, and raises.

    Raises:
        OSError: the library has another name on this platform.
        ValueError: the library does not export the symbol.
    """
    library = ctypes.CDLL(str(_FOLDER / "libc10.so"))
    return ctypes.addressof(ctypes.c_char.in_dll(library, "_ZN3c1019UndefinedTensorImpl10_singletonE"))


SCRIPT_OPS = torch.jit._builtins, "_find_builtin"  # how TorchScript knows functions of torch, by identity
SCRIPTED: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)  # TorchScript's calls ask no mode


def parameters_of_method(method: Any) -> list[torch.Tensor]:
    """The parameters of the TorchScript module that a method belongs to, and of all modules below it."""
    waiting, found = [method.owner], []
    for module in waiting:  # grows while it is walked
        found += [p for _, p in torch._C.ParameterDict(module).items()]  # type: ignore[attr-defined]
        waiting += [child for _, child in torch._C.ModuleDict(module).items()]
    return found


def batched_gemm(dtype: torch.dtype) -> int:
    """The address of MKL's batched GEMM, which matrix products in fused kernels call; 0 where there is none."""
    return 0 if dtype not in GEMM else _of_mkl(GEMM[dtype])


def threads_of_products() -> int:
    """The address of MKL's function that says how many threads work for calls from this one; 0 where there is none."""
    return _of_mkl(THREADS)


def _of_mkl(name: str) -> int:
    """The address of a function of MKL, which torch's library holds and exports."""
    library = _FOLDER / "libtorch_cpu.so"
    if not torch.backends.mkl.is_available() or not library.exists():  # type: ignore[no-untyped-call]
        return 0
    function = getattr(ctypes.CDLL(str(library)), name, None)
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0
