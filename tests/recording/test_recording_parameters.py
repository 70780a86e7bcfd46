"""Recording: parameters and plain tensors, in ops of their own and as operands."""

import pytest
import torch
from recorded_values import W, X
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import edbatch
from like_torch import like_torch


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
    assert not any(t.reason for t in batched.stats.types)


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


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clamp(-0.5, 0.5)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def test_a_custom_function_of_a_parameter_is_not_taken_for_the_op_in_it():
    weight = nn.Parameter(torch.tensor([-1.0, 0.1, 1.0]))
    like_torch(
        lambda x: (x * Clipped.apply(weight), weight.clamp(-0.5, 0.5) * x), torch.randn(3, 3), parameters=[weight]
    )


def test_lazy_values_inside_of_a_custom_function_are_refused():
    """Also operators that are known, and after the function has changed the grad mode."""
    weight = nn.Parameter(torch.ones(3))

    def function(x):
        class Closing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, w):
                with torch.enable_grad():
                    pass
                return w * (x * x).sum()

        for _ in range(4):
            y = x * x
        return y + Closing.apply(weight)

    with pytest.raises(edbatch.errors.RecordingError, match="without being one of its arguments"):
        edbatch.batch(function)(torch.randn(2, 3))
