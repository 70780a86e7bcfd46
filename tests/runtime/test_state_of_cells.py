"""Cells that change what they hold: calls run in the order of the function, and learning of a cell changes nothing."""

import copy
import functools
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import edbatch
from edbatch.errors import BatchError, RecordingError

DIM = 4
X = torch.linspace(-1, 1, 3 * DIM).view(3, DIM)


class Cell(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.linear = nn.Linear(DIM, DIM)
        self.register_buffer("mean", torch.zeros(DIM))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.steps, self.log, self.made = 0, [], {}

    def forward(self, x):
        return self.body(self, x)


class Twice(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.cell = edbatch.cell(Cell(body))

    def forward(self, x):
        return self.cell(torch.tanh(self.cell(x)))


def in_place(cell, x):
    cell.mean.mul_(0.9).add_(x.detach(), alpha=0.1)
    return cell.linear(x) + cell.mean


def assigned(cell, x):
    cell.calls = cell.calls + 1
    cell.mean = cell.mean * 0.9 + x.detach() * 0.1
    return cell.linear(x) * cell.calls + cell.mean


def counted(cell, x):
    cell.steps += 1
    return cell.linear(x) * cell.steps


def collected(cell, x):
    cell.log.append(cell.linear(x))
    cell.made.setdefault(DIM, torch.arange(DIM).float())
    return cell.log[-1] * len(cell.log) + cell.made[DIM]


def last(cell, x):
    cell.last = torch.softmax(cell.linear(x), 0)
    return cell.last * x


BODIES = [in_place, assigned, counted, collected, last]


@pytest.mark.parametrize("key", [None, lambda x: 0], ids=["recorded", "known"])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_calls_keep_their_order(body, key):
    model = Twice(body)
    expected = copy.deepcopy(model)
    batched = edbatch.batch(model, key=key)
    for _ in range(2):
        ours, theirs = batched(X), torch.stack([expected(x) for x in X])
        torch.testing.assert_close(ours, theirs)
        model.zero_grad(), expected.zero_grad()
        ours.sum().backward(), theirs.sum().backward()
        for a, b in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
        assert list(model.state_dict()) == list(expected.state_dict())
        torch.testing.assert_close(dict(model.named_buffers()), dict(expected.named_buffers()))
        assert model.cell.steps == expected.cell.steps
        torch.testing.assert_close(model.cell.log, expected.cell.log)
        torch.testing.assert_close(model.cell.made, expected.cell.made)
        torch.testing.assert_close(getattr(model.cell, "last", None), getattr(expected.cell, "last", None))


def test_order_of_calls_with_other_shapes():
    """They are of another type, and write the same buffer."""

    def body(cell, x):
        cell.calls += 1
        return x * cell.calls

    examples = [torch.ones(2), torch.ones(3), torch.ones(2), torch.ones(3)]
    model = Twice(body)
    expected = [model(x) for x in examples]
    torch.testing.assert_close(edbatch.batch(Twice(body), stack=False)(examples), expected)


def test_what_is_made_at_first_use_is_captured_later():
    def body(cell, x):
        if not hasattr(cell, "positions"):
            cell.positions = torch.arange(DIM).float()
        return cell.linear(x) + cell.positions

    model = Twice(body)
    batched = edbatch.batch(model)
    for _ in range(2):
        torch.testing.assert_close(batched(X), torch.stack([model(x) for x in X]))
    assert all(kernel.reason is None for kernel in batched.pipeline.kernel_of.values())


@pytest.mark.parametrize("norm", [spectral_norm, nn.utils.spectral_norm])
def test_power_iteration(norm):
    """It reads parameters by views made under no_grad, and writes buffers; the old one in a hook."""

    def make():
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = Twice(lambda cell, x: cell.linear(x))
            norm(model.cell.linear)
        return model

    model, expected = make(), make()
    batched = edbatch.batch(model)
    for _ in range(2):
        ours, theirs = batched(X), torch.stack([expected(x) for x in X])
        torch.testing.assert_close(ours, theirs)
        ours.sum().backward(), theirs.sum().backward()
        torch.testing.assert_close(dict(model.named_buffers()), dict(expected.named_buffers()))
        for a, b in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def test_tensors_kept_elsewhere_are_refused():
    @functools.cache
    def positions(n):
        return torch.arange(n).float()

    model = Twice(lambda cell, x: cell.linear(x) + positions(DIM))
    batched = edbatch.batch(model)
    for _ in range(2):
        with pytest.raises(RecordingError, match="keeps a tensor that it computes"):
            batched(X)
    positions.cache_clear()
    expected = torch.stack([model(x) for x in X])
    torch.testing.assert_close(batched(X), expected)


def test_parameters_without_values_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Linear(DIM, DIM)
    with pytest.raises(BatchError, match="FakeTensor"):
        edbatch.batch(model)(X)


def test_lookups_of_several_lengths_normalise_one_table():
    """They are of several types, in a decided order."""

    def make():
        torch.manual_seed(0)
        return nn.Embedding(6, DIM, max_norm=0.5)

    model, expected = make(), make()
    examples = [torch.tensor([1, 2]), torch.tensor([2, 3, 4]), torch.tensor([1])]
    ours, theirs = edbatch.batch(model, stack=False)(examples), [expected(x) for x in examples]
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(model.weight, expected.weight)


def test_columns_of_other_layouts_are_refused():
    cell = edbatch.cell(lambda x: x.to_dense() * 2)
    with pytest.raises(RecordingError, match="to_dense"):
        edbatch.batch(cell)([X[0].to_sparse(), X[1].to_sparse()])
    with pytest.raises(BatchError, match="unbind"):
        edbatch.batch(torch.tanh)(torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged))
