"""Products with little to do leave other threads alone."""

import ctypes

import pytest
import torch
from torch import nn

import edbatch
from edbatch.cells.fused.library import blas
from edbatch.torch_insides.libraries import threads_of_products

pytestmark = pytest.mark.skipif(
    not blas.gemm(torch.float32) or not threads_of_products(), reason="products run in torch, or MKL is another one"
)


@pytest.fixture
def threads():
    """The numbers of threads that products ask MKL for."""
    asked = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
    def set_threads(number):
        asked.append(number)
        return 7

    blas.use_threads(ctypes.cast(set_threads, ctypes.c_void_p).value)
    yield asked
    blas.use_threads(threads_of_products())


@pytest.mark.parametrize(("rows", "asked_for"), [(2, [1, 7]), (2000, [])])
def test_small_products_use_one_thread_and_then_as_many_as_before(rows, asked_for, threads, compiled):
    batched = edbatch.batch(nn.LSTMCell(16, 16))
    x, h = torch.randn(rows, 16), torch.randn(rows, 16)
    with torch.no_grad():
        batched(x, list(zip(h, h, strict=True)))  # learns, compiles
        threads.clear()
        found = batched(x, list(zip(h, h, strict=True)))
    assert threads[:2] == asked_for
    assert threads == asked_for * (len(threads) // 2)
    for ours, theirs in zip(found, batched.fn(x, (h, h)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
