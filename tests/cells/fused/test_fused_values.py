"""Fused kernels: odd values, dtypes and shapes, and operands that are read in many ways, are right."""

import sys

import pytest
import torch
import torch.nn.functional as F
from fused_kernels import DIM, ROWS, Node, assert_equal, fused_cells, rows, the_cell
from torch import nn

import edbatch

N = [0, 1, 2, 3, 5]
ODD = {
    "an integer times a float": lambda x, n: n * 0.5 + x,
    "an integer plus a float": lambda x, n: (n + 1.5) * x,
    "an integer below a float": lambda x, n: (n < 0.5, x),
    "an integer clamped by floats": lambda x, n: (n.clamp(0.5, 2.5), x),
    "functions of an integer": lambda x, n: (torch.exp(n), torch.sigmoid(n).double() * 0, torch.sqrt(n), n / 2, x),
    "integers": lambda x, n: (3 - n * 2, n.clamp(1, 2), torch.maximum(n, 3 - n), n == 2, x),
    "an integer times a row": lambda x, n: n * x * 2 + x[n],
    "masks": lambda x, n: (torch.where((x > 0) & ~(x > 1), x, -x), (x > 0) | (x < -1), (x > 0) == (x < 1)),
    "a mask times numbers": lambda x, n: ((x > 0) * 0.1 * x, (x > 0) * 100000001, (x > 0) + (x < 1), x),
    "a mask filled": lambda x, n: x.masked_fill(x > 0, float("-inf")).softmax(-1),
    "casts": lambda x, n: ((x * 3).long() * 2, x.bool(), (x > 0).double() * x, n.double() * x),
    "one element": lambda x, n: (x.sum() * 2 + 1, (x[0] * x[1]).tanh() * x, x[-1] * x[-3:].tanh().sum()),
    "no elements": lambda x, n: (x[:0] * 2, torch.cat([x[:0], x.tanh(), x[3:3]])),
    "an outer product": lambda x, n: (x[:, None] * x[None, :]).tanh(),
    "pieces": lambda x, n: torch.cat([x[2:].tanh(), F.pad(x, (1, 2)).sigmoid(), x[:2]]) * 2 + x[::2].sum(),
    "one result twice": lambda x, n: (lambda y: (y, y, x, y.view(2, 3), y.view(3, 2).T))(x.tanh()),
    "constant results": lambda x, n: (torch.ones(3), torch.full((2,), 7), x.tanh()),
    "not a number": lambda x, n: (torch.log(x), torch.sqrt(x), torch.maximum(x, torch.log(x)), x.clamp(-0.1, 0.1)),
    "saturated": lambda x, n: (torch.exp(x * 300), torch.sigmoid(x * 1000), torch.tanh(x * 1000), F.softplus(x * 50)),
    "powers": lambda x, n: (x**3, x**2, x**-1, x.abs() ** 0.5, x.abs().rsqrt()),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_values(compiled, name):
    batched = assert_equal(edbatch.cell(ODD[name]), rows(), N)
    assert not any(t.reason for t in batched.stats.types)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32, torch.complex64])
def test_dtypes_that_kernels_do_not_know_run_as_torch_ops(compiled, dtype):
    x = (torch.randn(ROWS, DIM) * 5).to(dtype)
    batched = edbatch.batch(edbatch.cell(lambda x: x * 2 + x))
    assert torch.equal(batched(x), x * 2 + x)
    assert all(cell.infer.forward.kernels == () for cell in fused_cells(batched))
    if dtype.is_floating_point:
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(batched(x).sum(), x)
        assert torch.equal(gradient, torch.full_like(x, 3))


def test_bfloat16_inside_a_float32_cell(compiled):
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(DIM, DIM).bfloat16()

        def forward(self, x):
            return torch.tanh(self.linear(x.bfloat16())).float() * x

    batched = assert_equal(edbatch.cell(Inside()), rows(dtype=torch.float32), tolerance=2e-2)
    assert all("bf16" not in k for k in the_cell(batched).infer.forward.kernels)


def test_float64_is_exact(compiled):
    """Generated code of float64 uses exact functions: it is as near to torch as rounding allows."""
    functions = edbatch.cell(lambda x: (x.tanh(), x.sigmoid(), x.exp(), F.gelu(x), F.silu(x), F.softplus(x)))
    batched = assert_equal(functions, rows(), tolerance=1e-14)
    (kernel,) = the_cell(batched).infer.forward.kernels
    assert "tanh_f64(" in kernel


class Transposed(nn.Module):
    """Reads a parameter element by element in another order than it lies in memory."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40, 30))

    def forward(self, x):
        return (x * self.weight.T).tanh()


def test_shared_values_that_are_not_contiguous_live_long_enough(compiled):
    """Kernels get addresses only: the copy that puts elements in order must not be freed before they run."""
    model = edbatch.cell(Transposed().double())
    twice = edbatch.batch(lambda x: model(model(x)), stack=False)
    x = rows(30, 40)
    for run in (twice, twice.one_by_one):
        torch.testing.assert_close(torch.stack(run(x)), ((x * model.weight.T).tanh() * model.weight.T).tanh())
    assert_equal(model, x)


class Calls(nn.Module):
    """A cell called as one of the functions below says."""

    def __init__(self, how):
        super().__init__()
        self.node, self.how = edbatch.cell(Node()), how

    def forward(self, x):
        return self.how(self.node, x)


def one_row_twice(node, x):
    h = node(x, x)
    return node(h, h) + node(h, x)


def sums(node, x):
    a, b = node(x, x), node(x, -x)
    return node(a + b + x, torch.stack([a, b, x]).mean(0)) + node(a + b, a + b)


def many_readers_of_one_row(node, x):
    h = node(x, x)
    return [node(h, node(h, x)) for _ in range(3)]


@pytest.mark.parametrize("how", [one_row_twice, sums, many_readers_of_one_row])
def test_operands(compiled, how):
    assert_equal(Calls(how).double(), rows())


def test_batches_of_every_size(compiled):
    """Rows of later batches lie behind those of earlier ones, in all buffers."""
    node = edbatch.cell(Node().double())

    def chain(x, n):
        for _ in range(n):
            x = node(x, x)
        return x

    assert_equal(chain, rows(number=7), [7, 1, 3, 3, 2, 9, 1])


def test_dropout_in_training(compiled):
    """One mask for values and gradients, another one for every row and call; none in eval mode."""
    model = edbatch.cell(nn.Sequential(nn.Tanh(), nn.Dropout(0.5), nn.Sigmoid()))
    batched = edbatch.batch(model)
    x = torch.linspace(0.1, 2, ROWS * 40, requires_grad=True).view(ROWS, 40)
    out = batched(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    dropped = out == 0.5
    assert 0.3 < dropped.float().mean() < 0.7
    assert torch.equal(gradient == 0, dropped)
    torch.testing.assert_close(out[~dropped], torch.sigmoid(2 * torch.tanh(x))[~dropped])
    assert not torch.equal(dropped[0], dropped[1])
    assert not torch.equal(dropped, batched(x) == 0.5)
    torch.testing.assert_close(batched.eval()(x), torch.sigmoid(torch.tanh(x)))


NORMS = {
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 3), nn.Tanh()),
    "group norm": lambda: nn.Sequential(
        nn.Unflatten(0, (1, DIM)), nn.GroupNorm(2, DIM), nn.Flatten(0), nn.Linear(DIM, 3)
    ),
    "a convolution": lambda: nn.Sequential(nn.Unflatten(0, (1, DIM)), nn.Conv1d(1, 2, 3), nn.Flatten(0), nn.Tanh()),
}


@pytest.mark.parametrize("name", NORMS)
def test_ops_with_several_results(compiled, name):
    assert_equal(edbatch.cell(NORMS[name]().double()), rows())


def test_a_body_that_is_a_long_chain(compiled):
    def chain(x):
        for _ in range(110):
            left, right = x.chunk(2)
            x = torch.cat([right * 1.01, left + 0.1])
        return x

    limit = sys.getrecursionlimit()
    assert_equal(edbatch.cell(chain), rows())
    assert sys.getrecursionlimit() == limit
