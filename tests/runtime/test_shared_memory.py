"""Tensors that cells close over may change between calls: kernels never read outside of them."""

import pytest
import torch
from torch import nn

import edbatch
from edbatch.errors import BatchError
from like_torch import like_torch

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Holder(nn.Module):
    """A cell that holds a tensor as a plain attribute and one in a list."""

    def __init__(self):
        super().__init__()
        self.table, self.more = torch.ones(1000, 3), [torch.ones(500, 3)]

    def forward(self, x):
        return (self.table * x).sum(0) + self.more[0].sum(0)


CHANGES = {
    "smaller": lambda t: setattr(t, "data", torch.full((2, 3), 2.0)),
    "larger": lambda t: setattr(t, "data", torch.full((2000, 3), 2.0)),
    "another dtype": lambda t: setattr(t, "data", torch.ones(1000, 3, dtype=torch.float64)),
    "gradients": lambda t: t.requires_grad_(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("key", [None, lambda x: 0])
def test_tensors_that_cells_hold_may_change(change, key, compilation):
    holder, closed_over = edbatch.cell(Holder()), torch.ones(1000, 3)
    cell = edbatch.cell(lambda x: x + closed_over.sum(0))
    batched = edbatch.batch(lambda x: cell(holder(x)), key=key, stack=False)
    for tensor in (None, holder.table, holder.more[0], closed_over):
        if tensor is not None:
            CHANGES[change](tensor)
        found, expected = batched(X), batched.one_by_one(X)
        torch.testing.assert_close(found, expected)
        assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]


def test_gradients_of_a_tensor_that_requires_them_later(compilation):
    weight = torch.ones(3)
    cell = edbatch.cell(lambda x: x * weight)
    batched = edbatch.batch(cell)
    batched(X)
    weight.requires_grad_()
    (found,) = torch.autograd.grad(batched(X).sum(), weight)
    torch.testing.assert_close(found, X.sum(0))


@pytest.mark.parametrize("size", [0, 8])
def test_memory_that_was_taken_away_is_noticed(size, compilation):
    linear = nn.Linear(3, 3)
    batched = edbatch.batch(linear)
    batched(X)
    linear.weight.untyped_storage().resize_(size)
    with pytest.raises(BatchError, match="its storage was resized"):
        batched(X)
    like_torch(nn.Linear(3, 3), X)


def test_memory_that_was_taken_away_before_backward_is_noticed(compilation):
    linear = nn.Linear(3, 3)
    result = edbatch.batch(linear)(X.clone().requires_grad_())
    memory = linear.weight.untyped_storage()
    size = memory.nbytes()
    memory.resize_(0)
    try:
        with pytest.raises(BatchError, match="its storage was resized"):
            result.sum().backward()
    finally:
        memory.resize_(size)
