"""Matrices of a column and a row: computed inside kernels where they are read."""

import pytest
import torch
from fused_kernels import assert_equal, rows, the_cell
from torch import nn

import edbatch

M, N = 3, 5


def outer(u, v):
    return u[:, None] * v


FUNCTIONS = {
    "product": outer,
    "sum": lambda u, v: u[:, None] + v[None],
    "row first": lambda u, v: v - u.unsqueeze(1),
    "of pieces": lambda u, v: u[1:, None] * v[:-1],
    "of one element": lambda u, v: outer(u, v) * u[0],
    "less its first element": lambda u, v: outer(u, v) - outer(u, v)[0, 0],
    "and an element of a later line": lambda u, v: outer(u, v) + outer(u, v)[1, 0] * outer(u, v)[1, 2],
    "times an element of its softmax": lambda u, v: outer(u, v) * outer(u, v).flatten().softmax(0)[0],
    "elements of a slice": lambda u, v: outer(u, v)[1:].exp(),
    "an unaligned range": lambda u, v: outer(u, v).flatten()[2:9].tanh(),
    "put together": lambda u, v: torch.cat((outer(u, v).flatten(), v)).tanh(),
    "summed": lambda u, v: outer(u, v).exp().sum(),
    "softmax of all": lambda u, v: outer(u, v).flatten().softmax(0),
    "transposed": lambda u, v: outer(u, v) + outer(v, u).t(),
    "in another shape": lambda u, v: outer(u, v).reshape(N, M) + outer(v, u),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_matrices_equal_one_by_one(name, dtype, compiled):
    columns = rows(M, dtype=dtype), rows(N, dtype=dtype)
    assert_equal(edbatch.cell(FUNCTIONS[name]), *columns, tolerance=1e-9 if dtype == torch.float64 else 1e-5)


def test_a_matrix_is_not_written(compiled):
    batched = assert_equal(edbatch.cell(lambda u, v, m: (m + outer(u, v)).tanh()), rows(M), rows(N), rows(M, N))
    program = the_cell(batched).infer.forward
    assert "scratch" not in program.source
    (kernel,) = program.kernels
    assert "for i in range(" in kernel
    assert "for k in range(" in kernel


def test_a_computed_column_is_written_first(compiled):
    """Kernels look the elements of a column up, so they must lie in memory."""
    batched = assert_equal(edbatch.cell(lambda u, v: outer(u.tanh(), v)), rows(M), rows(N))
    assert "mul(" in the_cell(batched).infer.forward.source


def test_the_gradient_of_a_matrix_times_a_vector(compiled):
    """Of every example: a matrix of its own, as in MV-RNN; its gradient is the product of a column and a row."""
    linear = nn.Linear(M, N).double()
    batched = assert_equal(edbatch.cell(lambda m, v: linear(m @ v)), rows(M, N), rows(N))
    (training,) = the_cell(batched).trainings.values()
    assert "mul(" not in training.backward.source


def test_a_column_of_a_product_that_could_be_blocks(small_blocks):
    linear = nn.Linear(N, 2 * M).double()

    def gates(x, v):
        a, b = linear(x).chunk(2)
        return outer(a, v) + b[:, None]

    assert_equal(edbatch.cell(gates), rows(N), rows(N))


def test_a_matrix_that_is_stored_before_another_one_made_of_it(compiled):
    def function(m1, m2, p, u, v, w):
        first, middle = (m1 @ p).tanh().view(M, N) * u[:, None], (m2 @ p).tanh().view(M, N)
        return first, middle, middle * v[:, None] + w

    assert_equal(edbatch.cell(function), rows(M * N, 4), rows(M * N, 4), rows(4), rows(M), rows(M), rows(M, N))
