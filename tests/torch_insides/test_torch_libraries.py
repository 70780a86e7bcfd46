"""What we rely on of torch's shared libraries."""

import ctypes

import pytest
import torch

from edbatch.torch_insides.libraries import (
    GEMM,
    SCRIPT_OPS,
    SCRIPTED,
    THREADS,
    batched_gemm,
    parameters_of_method,
    threads_of_products,
    undefined_tensor,
)


def test_there_is_an_object_that_stands_for_no_tensor():
    assert undefined_tensor() == undefined_tensor() != 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_by_address_are_those_of_torch(dtype):
    address = batched_gemm(dtype)
    if not torch.backends.mkl.is_available():
        assert address == 0
        return
    number = ctypes.c_float if dtype is torch.float32 else ctypes.c_double
    int_array, pointers = ctypes.c_int * 1, ctypes.c_void_p * 2
    a, b, out = torch.rand(2, 3, 4, dtype=dtype), torch.rand(2, 4, 5, dtype=dtype), torch.empty(2, 3, 5, dtype=dtype)

    def one(value):
        return int_array(value)

    def rows(tensor):
        return pointers(*[part.data_ptr() for part in tensor])

    ctypes.CFUNCTYPE(None, ctypes.c_int, *[ctypes.c_void_p] * 13, ctypes.c_int, ctypes.c_void_p)(address)(
        101, one(111), one(111), one(3), one(5), one(4), (number * 1)(1), rows(a), one(4), rows(b), one(5),
        (number * 1)(0), rows(out), one(5), 1, one(2),
    )  # fmt: skip
    torch.testing.assert_close(out, a @ b)


def test_other_dtypes_have_none():
    assert set(GEMM) == {torch.float32, torch.float64}
    assert batched_gemm(torch.int64) == batched_gemm(torch.float16) == 0


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch has no MKL here")
def test_the_number_of_threads_of_products_is_set_and_given_back():
    assert THREADS.startswith("MKL_")
    set_threads = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(threads_of_products())
    before = set_threads(1)
    assert set_threads(before) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_calls_of_torchscript_are_methods_of_these_classes():
    @torch.jit.script
    def function(x):
        return x * 2

    class Model(torch.nn.Module):
        def forward(self, x):
            return x

        @torch.jit.export
        def other(self, x):
            return x + 1

    method = torch.jit.script(Model()).other
    assert {type(function), type(method)} == set(SCRIPTED)
    assert all("__call__" in vars(kind) for kind in SCRIPTED)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_parameters_of_torchscript_are_found_by_a_method():
    model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sequential(torch.nn.Linear(3, 2))))
    found = parameters_of_method(model.forward)
    assert [id(p) for p in found] == [id(p) for p in model.parameters()]


def test_torchscript_finds_its_ops_by_the_identity_of_functions():
    module, name = SCRIPT_OPS
    assert getattr(module, name)(torch.sum) == "aten::sum"
    assert getattr(module, name)(lambda x: x) is None
