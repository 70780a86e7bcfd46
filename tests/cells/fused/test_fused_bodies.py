"""Random bodies as fused kernels: whatever ops are put together, compiled equals one by one, values and gradients."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_random_bodies import SIZE, WEIGHTED, programs
from torch import nn

import edbatch


class Body(nn.Module):
    """A random program of two rows; its first result goes on to the next call."""

    def __init__(self, steps, outputs):
        super().__init__()
        self.steps, self.outputs = steps, outputs
        self.w, self.b = nn.Parameter(torch.randn(SIZE, SIZE) * 0.5), nn.Parameter(torch.randn(SIZE))

    def forward(self, x, y):
        values = [x, y]
        for kind, place, operands in self.steps:
            first = (self.w, self.b) if kind is WEIGHTED else ()
            values.append(kind[place](*first, *(values[i] for i in operands)))
        return [values[i] for i in self.outputs]


class Twice(nn.Module):
    """The same cell on rows from outside, on its own results, on one row twice, and on a sum."""

    def __init__(self, body):
        super().__init__()
        self.body = edbatch.cell(body)

    def forward(self, x, y):
        first = self.body(x, y)[0].reshape(-1)[:1] + x
        second = self.body(first, first)[0].reshape(-1)[:1] * y
        third = self.body(first + second + x, y)
        return [first, second, *third]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs(), st.integers(0, 1000))
def test_compiled_random_bodies_equal_one_by_one(compiled, small_blocks, program, seed):
    torch.manual_seed(seed)
    model = Twice(Body(*program)).double()
    xs, ys = (torch.randn(5, SIZE, dtype=torch.float64, requires_grad=True) for _ in range(2))
    batched = edbatch.batch(model, stack=False)
    found = []
    for run in (batched, batched.one_by_one):
        results = [leaf for example in run(xs, ys) for leaf in example]
        terms = [(r * torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype).view_as(r)).sum() for r in results]
        inputs = [xs, ys, *model.parameters()]
        gradients = torch.autograd.grad(sum(terms), inputs, allow_unused=True)
        pairs = zip(inputs, gradients, strict=True)
        found.append([*results, *[torch.zeros_like(t) if g is None else g for t, g in pairs]])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.to(torch.float64), theirs.to(torch.float64), rtol=1e-8, atol=1e-8)
    assert not any(t.reason for t in batched.stats.types)


@pytest.mark.parametrize("exact_math", [False, True])
def test_exact_math_is_torchs_own(compiled, exact_math):
    """With exact_math the activations are those of torch, bit by bit; without it they are ours, almost equal."""
    activation = edbatch.cell(lambda x: torch.tanh(x * 1.0) + torch.sigmoid(x * 1.0))
    x = torch.linspace(-8, 8, 1000).view(10, 100)
    ours = edbatch.batch(activation, exact_math=exact_math)(x)
    theirs = torch.tanh(x) + torch.sigmoid(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert torch.equal(ours, theirs) == exact_math
