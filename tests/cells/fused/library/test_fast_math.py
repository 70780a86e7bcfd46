"""Each function over its whole range, called as generated kernels call it: vectorised, in another's loop."""

import re

import mpmath
import numpy as np
import pytest
import torch
from numba import float32, float64, njit
from numba.core.errors import TypingError

from edbatch.cells.fused.library.fast_math import FUNCTIONS32, FUNCTIONS64

SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
ALL_FLAGS = {"contract", "nsz", "arcp", "reassoc"}

REFERENCE = {  # in float64; torch's silu and gelu lose their digits in the lower tail
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": lambda x: x * torch.sigmoid(x),
    "softplus": lambda x: x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())),
    "erf": torch.erf,
    "gelu": lambda x: 0.5 * x * torch.erfc(-x * 0.5**0.5),
}

EXACT = {  # with as many digits as mpmath is told
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "softplus": lambda x: x if x > 20 else mpmath.log1p(mpmath.exp(x)),
    "erf": mpmath.erf,
    "gelu": lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
}


def loop(function, dtype=float32, flags=False):
    """function over the rows of a matrix, into another."""

    @njit([(dtype[:, ::1], dtype[:, ::1])], error_model="numpy", fastmath=flags, no_cfunc_wrapper=True)
    def kernel(x, out):
        for r in range(len(x)):
            row, result = x[r], out[r]
            for j in range(len(row)):
                result[j] = function(row[j])

    return kernel


def values(kernel, x):
    out = np.full_like(x[None], 7)
    kernel(x[None], out)
    return out[0]


def reference(name, x):
    return REFERENCE[name](torch.from_numpy(x.astype(np.float64))).numpy()


@pytest.fixture(scope="module")
def grid():
    """Every 997th float32 but NaN, and the ranges where something happens, densely."""
    bits = np.arange(0, 2**32, 997, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ranges = [np.linspace(-a, a, 400_001) for a in (1.5, 15, 110)] + [np.linspace(0.5, 2, 200_001)]
    edges = np.array([88.72283, 88.72284, -87.33654, -87.33655], dtype=np.float32)
    return np.concatenate([bits[~np.isnan(bits)], edges, *(r.astype(np.float32) for r in ranges)])


@pytest.mark.parametrize("flags", [False, ALL_FLAGS], ids=["no flags", "all flags"])
@pytest.mark.parametrize("name", FUNCTIONS32)
def test_relative_error_over_all_floats(name, flags, grid):
    """The caller's flags are not inherited: `reassoc` would undo the compensated steps."""
    grid = grid[::7].copy() if flags else grid
    got, want = values(loop(FUNCTIONS32[name], flags=flags), grid), reference(name, grid)
    size = np.abs(want)
    normal = (size >= SMALLEST) & (size <= LARGEST)
    assert normal.sum() > 100_000
    assert np.max(np.abs(got[normal] - want[normal]) / size[normal]) <= 1e-6
    assert np.max(np.abs(got[size < SMALLEST] - want[size < SMALLEST]), initial=0) <= SMALLEST
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got[~(size <= LARGEST)], want[~(size <= LARGEST)].astype(np.float32))


@pytest.mark.parametrize("name", FUNCTIONS32)
def test_limits_zeros_and_nan_as_torch(name):
    nans = np.array([0x7F800001, 0x7FC000FF, 0x7FFFFFFF, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)
    ends = np.array([np.inf, -np.inf, LARGEST, -LARGEST, 0.0, -0.0, 1.0, -1.0, -2.0], dtype=np.float32)
    x = np.tile(np.concatenate([nans, ends]), 11)  # long enough for vectors and what is left after them
    got, want = values(loop(FUNCTIONS32[name]), x), REFERENCE[name](torch.from_numpy(x).double())
    if name in ("silu", "gelu"):  # NaN at minus infinity, as torch has it (its gelu in float32, on some CPUs, at both)
        torchs = getattr(torch.nn.functional, name)(torch.from_numpy(x).double())
        np.testing.assert_array_equal(np.isnan(got), torchs.isnan())
    want = want.float().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=0)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[got == 0]))
    assert np.isnan(got.reshape(11, -1)[:, :4]).all()


def test_softplus_is_the_identity_from_torchs_threshold():
    x = np.linspace(20, 100, 1001, dtype=np.float32)
    np.testing.assert_array_equal(values(loop(FUNCTIONS32["softplus"]), x), x)


@pytest.mark.parametrize("name", FUNCTIONS32)
def test_loops_are_vectorised(name):
    kernel = loop(FUNCTIONS32[name])
    assert re.search(r"<\d+ x float>", next(iter(kernel.inspect_llvm().values())))
    assert [s.return_type for s in FUNCTIONS32[name].nopython_signatures] == [float32]


@pytest.mark.parametrize("name", FUNCTIONS32)
def test_float32_functions_refuse_float64(name):
    with pytest.raises(TypingError):
        loop(FUNCTIONS32[name], float64)


def test_a_cell_of_several_functions():
    sigmoid, tanh = FUNCTIONS32["sigmoid"], FUNCTIONS32["tanh"]

    @njit(error_model="numpy")
    def kernel(z, c, index, out, width):
        for r in range(len(index)):
            gates, memory, result = z[r], c[index[r]], out[r]
            for j in range(width):
                t = sigmoid(gates[j]) * tanh(gates[width + j]) + sigmoid(gates[2 * width + j]) * memory[j]
                result[j] = sigmoid(gates[3 * width + j]) * tanh(t)

    z, c, index = torch.randn(5, 4 * 37) * 3, torch.randn(9, 37), torch.tensor([3, 8, 0, 3, 5])
    out = np.empty((5, 37), np.float32)
    kernel(z.numpy(), c.numpy(), index.numpy(), out, 37)
    i, u, f, o = z.double().chunk(4, dim=1)
    want = o.sigmoid() * (i.sigmoid() * u.tanh() + f.sigmoid() * c.double()[index]).tanh()
    torch.testing.assert_close(torch.from_numpy(out).double(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS64)
def test_float64_is_exact(name):
    sizes = np.concatenate([np.logspace(-300, 2.8, 100), np.linspace(0.01, 40, 100)])
    x = np.concatenate([sizes, -sizes])
    if name.startswith("log"):
        x = np.concatenate([sizes, 1 + np.logspace(-15, 0, 50)]) - (name == "log1p") * 0.75
    got = values(loop(FUNCTIONS64[name], float64), x)
    with mpmath.workdps(50):
        want = np.array([float(EXACT[name](mpmath.mpf(float(v)))) for v in x])
    normal = np.abs(want) >= np.finfo(np.float64).tiny
    # erfc's slope makes a rounded argument count 2 z**2 times in gelu's far tail
    np.testing.assert_allclose(got[normal], want[normal], rtol=4e-13 if name == "gelu" else 4e-15, atol=0)
    np.testing.assert_allclose(got[~normal], want[~normal], rtol=0, atol=np.finfo(np.float64).tiny)


@pytest.mark.parametrize("name", FUNCTIONS64)
def test_float64_limits_as_torch(name):
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, -2.0])
    got, want = values(loop(FUNCTIONS64[name], float64), x), REFERENCE[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-14, atol=0)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[got == 0]))


def test_both_tables_have_the_same_names():
    assert list(FUNCTIONS32) == list(FUNCTIONS64)
