"""Gradients under no_grad, and what keeps or drops them there: as in torch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import edbatch
from like_torch import like_torch

X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Normed(nn.Module):
    """A parameter whose first use is under no_grad."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))

    def forward(self, x):
        with torch.no_grad():
            s = self.w.norm()
        return x * self.w / s


def rows_first_used_without_grad(x):
    rows = torch.stack([x, x * 2])
    with torch.no_grad():
        s = rows.norm() + rows.sum(0).sum()
    return rows.sum(0) / s, rows[0] * s, torch.tanh(rows).sum(0)


def rows_made_without_grad(x):
    with torch.no_grad():
        rows = torch.stack([x, x * 2])
        first = rows[0]
    return rows.sum(0) * x, rows[1] * x, first * x


def elements_taken_without_grad(x):
    rows = torch.stack([x, x * 2])
    with torch.no_grad():
        first = rows[0]
    return first * x, rows[0] * x


def sums_without_grad(x):
    with torch.no_grad():
        total = sum([x * 2])
        more = total + x
    return total * x, more * x


def gradients_on_inside(x):
    with torch.no_grad():
        with torch.enable_grad():
            y = x * 2
        z = y + 1
    return y * x, z * x


same = nn.Identity()
drop = nn.Dropout().eval()
FUNCTIONS = {
    f.__name__: f
    for f in (
        rows_first_used_without_grad, rows_made_without_grad, elements_taken_without_grad, sums_without_grad,
        gradients_on_inside,
    )
}  # fmt: skip
IDENTITIES = {
    "dropout": lambda h: F.dropout(h, training=False), "a module that drops": drop,
    "contiguous": lambda h: h.contiguous(),
    "to": lambda h: h.to(h.dtype), "Identity": same, "a cell": edbatch.cell(lambda h: h),
    "a cell of several": edbatch.cell(lambda h: (h, h * 2)[0]),
    "rows": lambda h: drop(torch.stack([h, h * 2])).sum(0),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_grad_modes_inside(name):
    like_torch(FUNCTIONS[name], X)


@pytest.mark.parametrize("marked", [False, True])
def test_a_parameter_first_used_without_grad(marked):
    model = Normed()
    like_torch(edbatch.cell(model) if marked else model, X)


@pytest.mark.parametrize("name", IDENTITIES)
def test_what_returns_its_argument_itself_keeps_its_gradient(name):
    def function(x):
        h = x * 2
        with torch.no_grad():
            g = IDENTITIES[name](h)
        return g * x

    like_torch(function, X)


@pytest.mark.parametrize("op", [torch.trunc, torch.round, torch.floor, torch.ceil, torch.sign])
@pytest.mark.parametrize("marked", [False, True])
def test_a_derivative_that_is_zero_is_one(op, marked):
    x = X.clone().requires_grad_()
    result = edbatch.batch(edbatch.cell(op) if marked else lambda v: op(v) * 1)(x)
    assert result.requires_grad
    result.sum().backward()
    torch.testing.assert_close(x.grad, torch.zeros_like(x))


def test_a_cell_that_runs_one_by_one_and_returns_its_argument_keeps_its_gradient():
    linear = nn.Identity()
    linear.register_forward_hook(lambda *_: None)

    def function(x):
        with torch.no_grad():
            g = linear(x * 2)
        return g * x

    like_torch(function, X)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_rows_stacked_without_grad_and_returned(mode):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def model(x):
        with mode():
            rows = torch.stack([x, x * 2])
        return rows, x.sum()

    like_torch(model, x)


def test_inference_mode_wins_over_grad_mode():
    def model(x):
        with torch.inference_mode(), torch.enable_grad():
            h = torch.nan_to_num(x) * 2
        return h.clone(), x.sum()

    like_torch(model, torch.randn(3, 4, dtype=torch.float64, requires_grad=True))
