"""Products of matrices of which every row has its own: read where they lie, also in parts."""

import pytest
import torch
from fused_kernels import assert_equal, calls, fused_cells, rows
from torch import nn

import edbatch
from edbatch.cells.fused.library import blas

M, K, N = 3, 4, 5


@pytest.fixture(params=["mkl", "torch"])
def by(request, monkeypatch, compiled):
    """Products by MKL, and by torch where there is none."""
    if request.param == "torch":
        monkeypatch.setattr(blas, "gemm", lambda dtype: 0)
    elif not blas.gemm(torch.float64):
        pytest.skip("torch has no MKL here, or the package was installed without a C compiler")
    return request.param


W = torch.randn(M, 2 * K, dtype=torch.float64)
FUNCTIONS = {
    "both of rows": (lambda a, b: a @ b, (M, K), (K, N)),
    "transposed": (lambda a, b: a.t() @ b.t(), (K, M), (N, K)),
    "times a vector": (lambda a, v: a @ v, (M, K), (K,)),
    "a vector times": (lambda v, a: v @ a, (K,), (K, N)),
    "transposed times a vector": (lambda a, v: a.t() @ v, (K, M), (K,)),
    "shared times": (lambda a: W[:, :K] @ a, (K, N)),
    "shared, transposed, times": (lambda a: W.t() @ a, (M, N)),
    "of parts": (lambda a, b: W @ torch.cat((a, b)), (K, N), (K, N)),
    "of uneven parts": (lambda a, b: W @ torch.cat((a, b)), (1, N), (2 * K - 1, N)),
    "of parts side by side": (lambda a, b: W[:, :K] @ torch.cat((a, b), 1), (K, N), (K, 2)),
    "of parts that are computed": (lambda a, b: W @ torch.cat((a.tanh(), b)), (K, N), (K, N)),
    "of parts of one": (lambda a: W @ torch.cat((a[K:], a[:K])), (2 * K, N)),
    "a part of what is put together": (lambda a, b, v: torch.cat((a, b))[M:] @ v, (M, K), (N, K), (K,)),
    "more than a part": (lambda a, b, v: torch.cat((a, b))[1:] @ v, (M, K), (N, K), (K,)),
    "a shared part of what is put together": (lambda a, v: torch.cat((W[:, :K], a))[:M] @ v, (N, K), (K,)),
    "less than a shared part": (lambda a, v: torch.cat((W[:, :K], a))[1:M] @ v, (N, K), (K,)),
    "shared times what is partly shared": (lambda a: W @ torch.cat((W.t()[:K, :], a)), (K, M)),
    "one after the other": (lambda a, b, v: a @ (b @ v), (M, K), (K, N), (N,)),
    "of a product": (lambda a, b: (a @ b).tanh() @ b.t(), (M, K), (K, N)),
    "the same twice": (lambda a: a @ a.t() @ a, (M, K)),
    "one line": (lambda a, b: a @ b, (1, K), (K, N)),
    "one column": (lambda a: W[:, :K] @ a, (K, 1)),
}  # fmt: skip


@pytest.mark.parametrize("number", [5, 130])  # and more than one call of BLAS takes
@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_equal_one_by_one(name, number, by):
    function, *shapes = FUNCTIONS[name]
    assert_equal(edbatch.cell(function), *[rows(*shape, number=number) for shape in shapes])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(dtype, by):
    columns = rows(M, K, dtype=dtype), rows(K, N, dtype=dtype)
    is_fused = dtype == torch.float32
    assert_equal(edbatch.cell(lambda a, b: a @ b), *columns, tolerance=1e-5 if is_fused else 1e-2, is_fused=is_fused)


class Mixture(nn.Module):
    """As in MV-RNN: matrices and vectors that come from elsewhere."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(K, 2 * K, dtype=torch.float64))

    def forward(self, a, u, b, v):
        return self.mix @ torch.cat((a, b)), torch.cat((a @ v, b @ u))


def test_matrices_are_neither_gathered_nor_put_together(by):
    cell = edbatch.cell(Mixture())
    leaf = edbatch.cell(lambda x: x.tanh())

    def tree(a, u, b, v):
        first, second = cell(leaf(a), u, leaf(b), v), cell(leaf(b), v, leaf(a), u)
        return cell(second[0], first[1][:K], first[0], second[1][K:])

    columns = rows(K, K), rows(K), rows(K, K), rows(K)
    batched = edbatch.batch(tree)
    ours, theirs = batched(*columns), batched.one_by_one(*columns)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        batched(*columns)
    (mixture,) = [fused for fused in fused_cells(batched) if len(fused.reads) == 4]
    assert ("reader(" in mixture.infer.forward.source) == (by == "torch")
    assert calls(mixture.infer.forward) == ((1, 0) if by == "mkl" else (2, 3))  # the kernel puts the vectors together
