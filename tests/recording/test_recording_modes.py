"""Recording under no_grad, inference_mode and autocast, in threads, and functions that draw random numbers."""

import threading

import pytest
import torch
from recorded_values import W, X
from torch import nn
from torch.nn import functional as F

import edbatch

LINEAR, SCALE = nn.Linear(8, 8), nn.Parameter(torch.ones(8))


def test_no_grad_and_detach_inside():
    def function(x):
        with torch.no_grad():
            a = W @ x
        b = (W @ x).detach()
        return a * x, b, W @ x

    x = X.clone().requires_grad_()
    a, b, c = edbatch.batch(function)(x)
    assert not b.requires_grad
    (g,) = torch.autograd.grad(a.sum(), x, retain_graph=True)
    torch.testing.assert_close(g, (X @ W.T).detach())
    (g,) = torch.autograd.grad((a.sum() + c.sum()), W)
    torch.testing.assert_close(g, torch.autograd.grad((X @ W.T).sum(), W)[0])


@pytest.mark.parametrize("outside", [True, False])
def test_autocast(outside):
    linear = nn.Linear(6, 3)
    x = X.float()

    def inside(x):
        y = linear(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return y, linear(x)

    if outside:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ours, theirs = edbatch.batch(linear)(x), linear(x)
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours, theirs)
        found, wanted = (torch.autograd.grad(r.float().sum(), list(linear.parameters())) for r in (ours, theirs))
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
    else:
        full, low = edbatch.batch(inside)(x)
        assert (full.dtype, low.dtype) == (torch.float32, torch.bfloat16)
        torch.testing.assert_close(full, linear(x))
        found = torch.autograd.grad(low.float().sum(), list(linear.parameters()))
        wanted = torch.autograd.grad(inside(x)[1].float().sum(), list(linear.parameters()))
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


def test_threads():
    linear = nn.Linear(6, 6).double()
    model = nn.Sequential(linear, nn.Tanh())
    batched = edbatch.batch(lambda xs: sum(model(x) for x in xs))
    lists = [list(X[:n]) for n in (1, 2, 3, 4)]
    expected = torch.stack([sum(model(x) for x in xs) for xs in lists])
    failures = []

    def work():
        try:
            for _ in range(20):
                torch.testing.assert_close(batched(lists), expected)
                torch.testing.assert_close(linear(X), X @ linear.weight.T + linear.bias)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures


def draws(x):
    return LINEAR(x) * torch.bernoulli(torch.full_like(SCALE, 0.5))


def draws_from_a_parameter(x):
    return LINEAR(x) * torch.rand_like(SCALE)


def drops_of_a_parameter(x):
    return LINEAR(x) * F.dropout(SCALE)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("function", [draws, draws_from_a_parameter, drops_of_a_parameter])
def test_every_example_draws_its_own_noise(function, mode):
    with mode():
        result = edbatch.batch(function)(torch.ones(64, 8))
    assert len(torch.unique(result, dim=0)) > 30


def test_gradient_of_a_dropped_parameter():
    x = torch.ones(3, 8)

    def gradient(run):
        torch.manual_seed(0)
        return torch.autograd.grad(run(x).sum(), SCALE)[0]

    batched = edbatch.batch(drops_of_a_parameter)
    torch.testing.assert_close(gradient(batched), gradient(batched.one_by_one))


def in_no_grad():
    with torch.no_grad():
        return (SCALE * 2).exp()


def in_disabled_grad():
    with torch.set_grad_enabled(False):
        return (SCALE * 2).exp()


def in_inference_mode():
    with torch.inference_mode():
        return (SCALE * 2).exp()


def after_no_grad():
    in_no_grad()
    in_disabled_grad()
    return (SCALE * 2).exp()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("of_parameters", "is_shared"),
    [
        (lambda: (SCALE * 2).exp(), True),
        (lambda: torch.stack(SCALE.chunk(2)).flatten().exp(), True),
        (lambda: SCALE.sort(descending=True).values.exp(), True),
        (lambda: torch.zeros_like(SCALE) * 2, False),
        (lambda: SCALE.data * 3, False),
        (lambda: SCALE.detach() * 3, False),
        (lambda: (SCALE > 0) * 3.0, False),
        (in_no_grad, False),
        (in_disabled_grad, False),
        (in_inference_mode, False),
        (torch.no_grad()(lambda: (SCALE * 2).exp()), False),
        (after_no_grad, True),
    ],
)
def test_the_same_ops_run_once_in_training_and_without_grad(of_parameters, is_shared, mode):
    def function(x):
        return torch.mul(LINEAR(x), of_parameters())

    training = edbatch.record(function, torch.ones(2, 8)).type_names
    with mode():
        assert edbatch.record(function, torch.ones(2, 8)).type_names == training
        edbatch.check(function, torch.ones(2, 8))
    assert ("torch.mul(f32[8], f32[8])" not in training) == is_shared
