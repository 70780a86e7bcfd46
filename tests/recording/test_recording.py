"""Recording: torch functions, operators, methods, modules, indexing, numbers, long chains."""

import functools
import sys

import numpy as np
import pytest
import torch
from recorded_values import W, X, Y
from torch import nn
from torch.nn import functional as F

import edbatch

TABLE = torch.randn(9, 6, dtype=torch.float64)


FUNCTIONS = {
    "operators": lambda x, y: (x + y - 1) * 2 / y**2 + (-x).abs() + x % 3,
    "reflected": lambda x, y: 1 - (2 / y) + (0.5 * x),
    "matmul": lambda x, y: W @ x + x @ W,
    "comparison": lambda x, y: torch.where((x > y) | (x == 0), x, y),
    "invert": lambda x, y: (~(x < 0)).double() * y,
    "methods": lambda x, y: x.relu().add(y).view(2, 3).transpose(0, 1).reshape(6).softmax(-1),
    "property": lambda x, y: x.view(2, 3).T.mT.flatten() + y,
    "functional": lambda x, y: F.layer_norm(F.gelu(x), (6,)) + F.softplus(y),
    "reductions": lambda x, y: x.sum() + y.mean() + x.max() + y.std() + x.norm(),
    "cat": lambda x, y: torch.cat([x, y]).chunk(3)[1] * torch.stack([x, y], dim=1).sum(),
    "getitem": lambda x, y: x[0] + x[-1] + x[1:3].sum() + x[None, ..., 2].sum() + y[::2].prod(),
    "nested getitem": lambda x, y: x.view(2, 3)[1, :2].sum() + x.view(2, 3)[:, -1].sum() + x.view(2, 3)[..., 0].sum(),
    "unpack": lambda x, y: sum(x) + len(y),
    "plain tensors": lambda x, y: x * torch.arange(6) + torch.ones(6, dtype=torch.float64) * y,
    "type": lambda x, y: x.float().double().to(torch.float64) + y.type_as(x) + x.int(),
    "einsum": lambda x, y: torch.einsum("i,j->ij", x, y).diagonal(),
    "new tensors": lambda x, y: x.new_zeros(6) + torch.ones_like(x) * y + torch.zeros_like(y),
    "shape": lambda x, y: x * x.shape[0] + x.size(0) + x.dim() + x.ndim + x.numel() + int(x.is_floating_point()),
    "bilinear with keywords": lambda x, y: F.linear(input=x, weight=W, bias=y),
    "inplace rebinding": lambda x, y: _rebinding(x, y),
    "parameter ops": lambda x, y: (W * 2).sum(0) * x + (W @ W.T)[0] * y,
    "table lookup": lambda x, y: TABLE[x.argmax()] + y,
    "sorted": lambda x, y: torch.sort(x).values + torch.topk(y, 6).values,
    "cumsum": lambda x, y: x.cumsum(0) + torch.flip(y, [0]),
}


def _rebinding(x, y):
    x = x * 1
    x += y
    x *= 2
    x -= 1
    return x


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_functions(name):
    function = FUNCTIONS[name]
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    batched = edbatch.batch(function)
    ours = batched(x, y)
    theirs = torch.stack([function(a, b) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    wanted = [x, y, W]
    for a, b in zip(
        torch.autograd.grad(ours.sum(), wanted, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(theirs.sum(), wanted, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


MODULES = {
    "attention": (nn.MultiheadAttention(6, 2), lambda m, x: m(x.view(1, 6), x.view(1, 6), x.view(1, 6))[0]),
    "transformer layer": (nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0), lambda m, x: m(x.view(1, 6))),
    "whole LSTM over rows": (nn.LSTM(6, 5), lambda m, x: m(torch.stack([x, x * 2]))[0].sum(0)),
    "convolution": (nn.Conv1d(2, 3, 2), lambda m, x: m(x.view(2, 3))),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), lambda m, x: m(x)),
    "group norm": (nn.GroupNorm(2, 2), lambda m, x: m(x.view(1, 2, 3))),
    "batch norm in eval mode": (nn.BatchNorm1d(2).eval(), lambda m, x: m(x.view(1, 2, 3))),
}


@pytest.mark.parametrize("name", MODULES)
def test_torch_modules(name):
    module, call = MODULES[name]
    module.double()
    x = X.clone().requires_grad_()
    batched = edbatch.batch(lambda x: call(module, x))
    ours, theirs = batched(x), batched.one_by_one(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    wanted = [x, *module.parameters()]
    for a, b in zip(
        torch.autograd.grad((ours**2).sum(), wanted), torch.autograd.grad((theirs**2).sum(), wanted), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11)


def test_a_shape_that_depends_on_values():
    with pytest.raises(edbatch.EdbatchError, match=r"as a mask in an index, where torch\.where"):
        edbatch.batch(lambda x: x[x @ W > 0].sum())(X)


def test_an_integer_index_is_data():
    batched = edbatch.batch(lambda x, i: x[i])
    assert torch.equal(batched(X, [0, 5, -1, 2]), X[range(4), [0, 5, -1, 2]])
    assert batched.stats.num_types == batched.stats.num_batches == 1


def test_numbers_in_arithmetic_are_data():
    batched = edbatch.batch(lambda x, w: x * w)
    torch.testing.assert_close(
        batched(X, [0.1, 0.2, 0.3, 0.4]), X * torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)[:, None]
    )
    assert batched.stats.num_types == 1
    halves = X.to(torch.bfloat16)
    assert batched(halves, [1.5] * 4).dtype == torch.bfloat16
    weights = [0.1, 0.3, 0.7, 0.9]
    assert torch.equal(batched(halves, weights), batched.one_by_one(halves, weights))
    halves.requires_grad_()
    ours, theirs = (torch.autograd.grad(run(halves, weights).sum(), halves) for run in (batched, batched.one_by_one))
    assert ours[0].dtype == torch.bfloat16
    assert torch.equal(*ours, *theirs)
    assert batched(X.long(), [1.5] * 4).dtype == torch.get_default_dtype()
    assert batched(X.int(), [2] * 4).dtype == torch.int32


def test_a_long_chain():
    cell = nn.GRUCell(2, 2)

    def chain(x, n):
        h = x
        for _ in range(n):
            h = cell(x, h)
        return h

    x = torch.randn(2, 2)
    with torch.no_grad():
        ours = edbatch.batch(chain)(x, [20_000, 3])
        torch.testing.assert_close(ours[1], chain(x[1], 3))
        torch.testing.assert_close(ours[0], chain(x[0], 200))  # it has long converged

    def total(x, n):
        return sum(x * 1 for _ in range(n))

    assert torch.equal(edbatch.batch(total)(torch.ones(1, 2), [20_000]), torch.full((1, 2), 20_000.0))


def test_gradients_that_torch_does_not_have():
    weight = nn.Parameter(torch.ones(6, dtype=torch.float64))
    with pytest.raises(edbatch.EdbatchError, match="no gradient for an argument"):
        edbatch.batch(lambda x: F.cross_entropy(x, torch.tensor(1), weight=weight))(X)


def test_inplace_keyword_rebinds():
    edbatch.check(edbatch.batch(lambda x: F.relu(x * 2, inplace=True)), X.clone().requires_grad_())


def test_numpy_numbers():
    embedding = nn.Embedding(5, 3)
    batched = edbatch.batch(lambda i: np.float32(0.5) * embedding(i) * np.float64(2.0))
    assert torch.equal(batched(np.array([1, 4, 0])), embedding.weight[[1, 4, 0]])
    assert torch.equal(batched.one_by_one(np.array([1, 4, 0])), embedding.weight[[1, 4, 0]])


def deepest_call(function):
    """How large its number may be before Python says that recursion is too deep."""
    works, fails = 0, sys.getrecursionlimit()
    while fails - works > 1:
        n = (works + fails) // 2
        try:
            function(n)
            works = n
        except RecursionError:
            fails = n
    return works


def test_recursion_is_as_deep_as_without():
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, n):
            return self.layer(torch.ones(3)) if n == 0 else self.layer(self(n - 1))

    chain = Chain()
    with torch.no_grad():
        deepest = deepest_call(chain)
        assert deepest > 100
        ours = edbatch.batch(chain)([deepest, 3])
        torch.testing.assert_close(ours, torch.stack([chain(deepest), chain(3)]))


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 7  # not the gradient of the forward, so that it is seen to be used


def test_autograd_functions_on_lazy_values():
    x = X.clone().requires_grad_()
    batched = edbatch.batch(lambda x: Doubling.apply(x * 1) + 1)
    ours = batched(x)
    torch.testing.assert_close(ours, X * 2 + 1)
    assert torch.equal(torch.autograd.grad(ours.sum(), x)[0], torch.full_like(X, 7.0))


def test_a_lazy_index_may_be_negative():
    edbatch.check(lambda x: x[x.argmax() - 6] + x[..., x.argmin()], X)


def test_check_compares_gradients_of_what_a_function_closes_over():
    weight = nn.Parameter(torch.ones(6, dtype=torch.float64))
    calls = []

    def drifting(x):
        calls.append(1)
        return x * weight if len(calls) > 4 else x * weight.detach() * 0 + x * weight.detach()

    with pytest.raises(edbatch.EdbatchError, match="gradient"):
        edbatch.check(drifting, X)


def test_zeros_of_either_sign_are_different_constants():
    x = torch.tensor([[1.0], [-2.0]])
    ours = edbatch.batch(lambda x: (torch.copysign(x, 0.0), torch.copysign(x, -0.0)))(x)
    assert [t.flatten().tolist() for t in ours] == [[1.0, 2.0], [-1.0, -2.0]]


def test_keywords_of_arithmetic_are_numbers():
    def function(x, y):
        a = torch.add(x, y, alpha=0.5) + x.sub(y, alpha=2) * torch.sub(x, y, alpha=3)
        return a + torch.add(x, y, alpha=0.25) + x.add(y, alpha=0.5)

    edbatch.check(function, torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64))


def test_a_size_as_an_argument():
    edbatch.check(lambda x: x.new_ones(x.shape) * x + x.view(x.shape).expand(torch.Size([2, 3]))[0], torch.randn(4, 3))


def test_functions_of_torch_as_cells():
    tanh, add = edbatch.cell(torch.tanh), edbatch.cell(functools.partial(torch.add, alpha=2))
    edbatch.check(lambda x: tanh(add(x, x)), torch.randn(4, 3))
    assert torch.equal(tanh(torch.ones(2)), torch.ones(2).tanh())


def grown(x, y):
    h = x * 2 + y
    total = 0
    total += h
    total += h
    return h, total


SUMS_FROM_ZERO = {
    "a sum of a pending sum with itself": lambda x, y: ((h := x * 2 + y), sum([h, h])),
    "the same in place": grown,
    "two sums that begin alike": lambda x, y: ((h := x + y * 2), (a := 0 + h), (b := 0 + h), a + b, h + a),
    "one term": lambda x, y: (sum([x]), sum([x]) * 2, sum([x * 2]) + y),
}


@pytest.mark.parametrize("name", SUMS_FROM_ZERO)
def test_sums_that_begin_with_zero_leave_their_terms_alone(name):
    x, y = torch.ones(2, 3), torch.full((2, 3), 2.0)
    expected = zip(*map(SUMS_FROM_ZERO[name], x, y), strict=True)
    torch.testing.assert_close(edbatch.batch(SUMS_FROM_ZERO[name])(x, y), tuple(map(torch.stack, expected)))


@pytest.mark.parametrize("grad", [True, False])
def test_a_total_that_begins_with_zero_may_grow_by_tensors_from_outside(grad):
    def total(xs):
        result = 0
        for x in xs:
            result += x
        return result

    columns = [[torch.ones(3), torch.ones(3)], [torch.ones(3)]]
    with torch.set_grad_enabled(grad):
        assert edbatch.batch(total)(columns).tolist() == [[2.0] * 3, [1.0] * 3]
    assert all(x.eq(1).all() for column in columns for x in column)
