"""Recording: torch functions, operators, methods, indexing, contexts, pytrees, columns and shared keywords."""

import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import edbatch

X = torch.randn(4, 6, dtype=torch.float64)
Y = torch.rand(4, 6, dtype=torch.float64) + 0.5
W = nn.Parameter(torch.randn(6, 6, dtype=torch.float64))
TABLE = torch.randn(9, 6, dtype=torch.float64)
LINEAR, SCALE = nn.Linear(8, 8), nn.Parameter(torch.ones(8))

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
    with pytest.raises(edbatch.EdbatchError, match=r"getitem runs one by one and gave"):
        edbatch.batch(lambda x: x[x > 0].sum())(X)


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
    assert torch.equal(batched(halves, [0.1, 0.3, 0.7, 0.9]), batched.one_by_one(halves, [0.1, 0.3, 0.7, 0.9]))
    assert batched(X.long(), [1.5] * 4).dtype == torch.get_default_dtype()
    assert batched(X.int(), [2] * 4).dtype == torch.int32


class SquareProducts(TorchDispatchMode):
    """Counts products that give a matrix of the weight's own size."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.count += func._overloadpacket is torch.ops.aten.mm and result.shape == W.shape
        return result


def test_parameter_only_ops_run_once():
    batched = edbatch.batch(lambda x: x @ (W @ W))
    batched(X)
    with SquareProducts() as products:
        batched(X)
    assert products.count == 1
    assert batched.stats.num_nodes == 4
    assert batched.stats.num_types == 1


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
    else:
        full, low = edbatch.batch(inside)(x)
        assert (full.dtype, low.dtype) == (torch.float32, torch.bfloat16)
        torch.testing.assert_close(full, linear(x))
        low.float().sum().backward()
        assert linear.weight.grad is not None


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


def test_plain_tensors_written_after_they_were_used():
    """An operand is what it was when it was given, also when the user writes the same buffer again."""
    linear = nn.Linear(6, 6).double()
    buffer = torch.zeros(6, dtype=torch.float64)

    def function(i):
        buffer.fill_(float(i))
        first = linear(buffer)
        buffer[0] = 7.0
        view = linear(buffer[:])
        torch.mul(buffer, 2, out=buffer)
        return first + view + linear(buffer)

    batched = edbatch.batch(function)
    torch.testing.assert_close(batched([1, 2, 3]), batched.one_by_one([1, 2, 3]))


def test_frozen_parameters_are_shared():
    weight = nn.Parameter(torch.randn(6, 6, dtype=torch.float64), requires_grad=False)
    batched = edbatch.batch(lambda x: x @ (weight @ weight))
    torch.testing.assert_close(batched(X), X @ (weight @ weight))
    assert batched.stats.num_types == batched.stats.num_batches == 1
    assert batched.stats.peak_bytes < 10 * X.nbytes


CLASS_WEIGHTS = torch.arange(6, dtype=torch.float64) + 1
POSITION = nn.Parameter(torch.randn(9, 6, dtype=torch.float64))


def test_losses_with_weights_that_have_no_gradient():
    def function(x, label):
        entropy = F.cross_entropy(x, torch.tensor(label), weight=CLASS_WEIGHTS)
        both = F.binary_cross_entropy_with_logits(
            x, torch.ones(6).double(), weight=CLASS_WEIGHTS, pos_weight=CLASS_WEIGHTS
        )
        return entropy + both

    batched = edbatch.batch(function)
    edbatch.check(batched, X.clone().requires_grad_(), [0, 5, 2, 2])
    assert not any(t.runs_alone for t in batched.stats.types)


def test_gradients_that_torch_does_not_have():
    weight = nn.Parameter(torch.ones(6, dtype=torch.float64))
    with pytest.raises(edbatch.EdbatchError, match="no gradient for argument"):
        edbatch.batch(lambda x: F.cross_entropy(x, torch.tensor(1), weight=weight))(X)


def test_inplace_keyword_rebinds():
    edbatch.check(edbatch.batch(lambda x: F.relu(x * 2, inplace=True)), X.clone().requires_grad_())


def test_a_row_of_a_parameter_is_data():
    batched = edbatch.batch(lambda x, i: x + POSITION[i] + POSITION[-1 - i, 2] + POSITION[i, 1:3].sum())
    ours, theirs = batched(X, [0, 3, 8, 3]), batched.one_by_one(X, [0, 3, 8, 3])
    torch.testing.assert_close(ours, theirs)
    assert max(t.num_batches for t in batched.stats.types) <= 3
    assert batched.stats.num_types < 8
    torch.testing.assert_close(
        torch.autograd.grad((ours**2).sum(), POSITION)[0], torch.autograd.grad((theirs**2).sum(), POSITION)[0]
    )
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        batched(X, [0, 9, 8, 3])


def test_numpy_numbers():
    embedding = nn.Embedding(5, 3)
    batched = edbatch.batch(lambda i: np.float32(0.5) * embedding(i) * np.float64(2.0))
    assert torch.equal(batched(np.array([1, 4, 0])), embedding.weight[[1, 4, 0]])
    assert torch.equal(batched.one_by_one(np.array([1, 4, 0])), embedding.weight[[1, 4, 0]])


def test_recursion_is_as_deep_as_without():
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, n):
            return self.layer(torch.ones(3)) if n == 0 else self.layer(self(n - 1))

    chain = Chain()
    with torch.no_grad():
        edbatch.batch(chain)([200])
        chain(200)


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


def test_values_reach_a_cell_only_as_arguments():
    def function(x):
        h = x * 2
        return edbatch.cell(lambda y: y + h)(x)

    with pytest.raises(edbatch.EdbatchError, match="pass it as an argument"):
        edbatch.batch(function)(X)


def test_parameter_ops_after_the_parameter_changed():
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6, dtype=torch.float64))

        def forward(self, x):
            y = x * (self.weight * 2)
            with torch.no_grad():
                self.weight.add_(1)
            return y

    with torch.no_grad():
        ours = edbatch.batch(Growing())(X)
        torch.testing.assert_close(ours, torch.stack([x * 2 * (i + 1) for i, x in enumerate(X)]))


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


def test_pending_sums_and_plain_tensors_as_operands_of_a_known_cell():
    """The short cut for signatures that were seen before takes the same operands as the long way."""
    cell = nn.LSTMCell(3, 3).double()
    start = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def function(x, n):
        h, c = cell(x, (start, start))
        for i in range(n):
            total = h + c + x
            h, c = cell(total, (start if i % 2 else h, c + x))
            h = h + total  # a sum that was an operand is still a value
        return h

    xs = torch.randn(4, 3, dtype=torch.float64)
    batched = edbatch.batch(function)
    edbatch.check(batched, xs, [0, 1, 2, 5])
    (ours,) = torch.autograd.grad(batched(xs, [0, 1, 2, 5]).sum(), start)
    (theirs,) = torch.autograd.grad(batched.one_by_one(xs, [0, 1, 2, 5]).sum(), start)
    torch.testing.assert_close(ours, theirs)


class Helper(nn.Module):
    """No cell: an ordinary part of the model."""

    def forward(self, x, extra):
        return torch.tanh(x) if extra is None else torch.tanh(x + 0)


def test_what_a_helper_is_given_is_no_operand_of_it():
    unused = nn.Parameter(torch.randn(2000, 4))
    helper = Helper()
    batched = edbatch.batch(lambda x: helper(x * 2, unused) + helper(x * 3, unused))
    x = torch.randn(3, 4, requires_grad=True)
    batched(x).sum().backward()
    assert unused.grad is None
    assert batched.stats.peak_bytes < unused.numel()
    sparse = torch.eye(4).to_sparse()
    assert edbatch.batch(lambda x: helper(x, sparse))(x).shape == (3, 4)


def test_sums_grow_on_in_helpers():
    class Adder(nn.Module):
        def forward(self, total, x):
            return total + x

    adder = Adder()

    def function(x):
        total = x * 2 + x * 3
        for _ in range(3):
            total = adder(total, x)
        return total

    one, two = (edbatch.record(function, torch.randn(n, 4)).num_nodes for n in (1, 2))
    assert two == 2 * one


def test_zeros_of_either_sign_are_different_constants():
    x = torch.tensor([[1.0], [-2.0]])
    ours = edbatch.batch(lambda x: (torch.copysign(x, 0.0), torch.copysign(x, -0.0)))(x)
    assert [t.flatten().tolist() for t in ours] == [[1.0, 2.0], [-1.0, -2.0]]
