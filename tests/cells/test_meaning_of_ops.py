"""What ops mean stays what it means to torch, also where a kernel could compute it differently."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import edbatch

X = torch.linspace(-2, 2, 24).view(4, 6)
FUNCTIONS = {
    "a sum of masks is a mask": lambda x: ((x > -10) + (x < 10)).float(),
    "and a number of it": lambda x: ((x > -10) + (x < 10)).long() + 1,
    "logical and of numbers": lambda x: torch.logical_and(x, x + 3).float(),
    "logical not of a number": lambda x: torch.logical_not(x * (x > 0)).float(),
    "the default slope of a leaky relu": lambda x: torch.tanh(F.leaky_relu(x)),
    "a difference of equal products": lambda x: torch.sqrt(x * x - x.abs() * x.abs()),
    "exp minus one": lambda x: torch.expm1(x * 1e-4),
    "what is not a number": lambda x: torch.maximum(torch.log(x), -x) + torch.relu(torch.log(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_torch(compiled, name, dtype):
    function = FUNCTIONS[name]
    batched = edbatch.batch(edbatch.cell(function))
    torch.testing.assert_close(batched(X.to(dtype)), function(X.to(dtype)), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert not any(t.reason for t in batched.stats.types)


class Joined(nn.Module):
    """Two layers of one operand, whose results are put together."""

    def __init__(self, join):
        super().__init__()
        self.a, self.b, self.join = nn.Linear(6, 3), nn.Linear(6, 3), join

    def forward(self, x):
        return self.join([self.a(x), self.b(x), self.a(x)[:2].repeat(2)[:3]])


@pytest.mark.parametrize("join", [torch.cat, torch.stack])
def test_gradients_of_biases_of_joined_layers(compilation, join):
    edbatch.check(edbatch.cell(Joined(join).double()), X.double())


def assert_long_body(depth):
    def body(x):
        for _ in range(depth):
            x = x + 0.1 * torch.tanh(x)
        return x

    batched = edbatch.batch(edbatch.cell(body))
    torch.testing.assert_close(batched(X.double()), body(X.double()), rtol=1e-9, atol=1e-9)
    return batched


def test_what_is_read_twice_is_computed_once(compiled):
    assert_long_body(40)


def test_a_body_too_long_for_a_kernel_runs_as_torch_ops(monkeypatch, caplog):
    monkeypatch.setenv("EDBATCH_COMPILE", "1")
    batched = assert_long_body(400)
    assert (
        "it has 1200 ops, and kernels of more than 600 would be compiled for minutes. It runs as torch ops"
        in caplog.text
    )
    assert "Traceback" not in caplog.text
    caplog.clear()
    batched(X.double())
    assert not caplog.text  # it is not tried again


def test_means_of_means(compilation):
    node = edbatch.cell(nn.Linear(6, 6).double())

    def function(x, y):
        a = node(torch.stack([x, y]).mean(0))
        with torch.autocast("cpu"):  # its means are another type
            m = torch.stack([a, x]).mean(0)
        return node(torch.stack([m, y]).mean(0))

    edbatch.check(function, X.double(), X.double().flip(0))


def test_long_sums_that_a_cell_reads(compiled):
    """3,000 terms of float32 lose no more digits than torch's own sum."""
    last = edbatch.cell(nn.Linear(6, 6))
    terms = torch.randn(3000, 6)
    step = edbatch.cell(lambda x: x * 1.5)

    def function(rows):
        return last(torch.stack([step(row) for row in rows]).sum(0))

    with torch.no_grad():
        ours = edbatch.batch(function)([list(terms)])[0]
        exact = F.linear((terms.double() * 1.5).sum(0), last.weight.double(), last.bias.double())
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


def test_frozen_cells_that_run_one_by_one():
    """Each call has its own autograd graphs, also when what weights become is kept."""
    linear = nn.Linear(6, 1)
    linear.register_forward_hook(lambda *_: None)  # must see every call
    cell = edbatch.cell(linear)
    batched = edbatch.batch(cell)
    with edbatch.frozen(cell):
        first, second = batched(X), batched(X * 2)
        gradients = [torch.autograd.grad(out.sum(), linear.weight)[0] for out in (first, second)]
    torch.testing.assert_close(gradients[1], 2 * gradients[0])


SHARED_ALONE = {
    "layer norm": lambda p: F.layer_norm(p, (6,)),
    "softmax": lambda p: F.log_softmax(p, 0),
    "running products": lambda p: p.cumprod(0),
    "sort": lambda p: p.sort()[0],
    "norm": lambda p: p / p.norm(),
}


@pytest.mark.parametrize("name", SHARED_ALONE)
def test_the_gradient_of_what_a_cell_computes_of_a_parameter_alone_counts_all_rows(compilation, name):
    parameter, weights = nn.Parameter(X[0].double().cos()), X[1].double()
    of_shared = SHARED_ALONE[name]
    edbatch.check(edbatch.cell(lambda x: x * of_shared(parameter)), X.double())
    edbatch.check(edbatch.cell(lambda x: x + weights * of_shared(parameter)), X.double())


@pytest.mark.parametrize("function", [torch.ceil, torch.floor, torch.round, torch.trunc, torch.sign])
def test_steps_are_batched_though_their_gradients_are_the_same_for_all_rows(compilation, function):
    parameter, x = nn.Parameter(X[0].double()), X.double().requires_grad_()
    for cell in (edbatch.cell(lambda x: function(x) * parameter), edbatch.cell(function)):
        batched = edbatch.batch(cell)
        assert batched(x).requires_grad
        assert not any(t.reason for t in batched.stats.types)
        edbatch.check(cell, x)
