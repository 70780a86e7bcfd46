"""Tensors of classes of the user's own: those with rules of their own are computed as they say, or refused."""

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import edbatch
from edbatch.errors import RecordingError

X = torch.linspace(-1, 1, 12).view(3, 4)


class Named(torch.Tensor):
    pass


class Shifted(torch.Tensor):
    """A product of such a tensor is one larger."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result + 1 if func in (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__) else result


class Quantised(torch.Tensor):
    """Whole numbers and a scale; it has no memory of its own."""

    @staticmethod
    def __new__(cls, whole, scale):
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=torch.float32)

    def __init__(self, whole, scale):
        self.whole, self.scale = whole, scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return Quantised(args[0].whole, args[0].scale)
        plain = pytree.tree_map_only(Quantised, lambda t: t.whole * t.scale, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


class Scale(nn.Module):
    def __init__(self, how):
        super().__init__()
        weight = torch.ones(4).as_subclass(Shifted)
        if how == "buffer":
            self.register_buffer("weight", weight)
        else:
            self.weight = nn.Parameter(weight) if how == "parameter" else weight

    def forward(self, x):
        return x * self.weight


@pytest.mark.parametrize("mark", [edbatch.cell, lambda module: module], ids=["cell", "module"])
@pytest.mark.parametrize("how", ["attribute", "parameter", "buffer"])
def test_rules_of_their_own_are_refused(how, mark):
    with pytest.raises(RecordingError, match="class Shifted"):
        edbatch.batch(mark(Scale(how)))(X)


def test_columns_with_rules_of_their_own_are_refused():
    with pytest.raises(RecordingError, match="class Shifted"):
        edbatch.batch(lambda x: x * 2)([x.as_subclass(Shifted) for x in X])


def test_classes_without_rules_are_tensors():
    examples = [x.as_subclass(Named) for x in X]
    torch.testing.assert_close(edbatch.batch(torch.tanh)(examples), torch.tanh(X))


def test_weights_without_memory():
    """In a cell they compute as they do, one by one; elsewhere they are refused."""
    linear = nn.Linear(4, 2)
    linear.weight = nn.Parameter(Quantised(torch.arange(8.0).view(2, 4), 0.5), requires_grad=False)
    torch.testing.assert_close(edbatch.batch(linear)(X), torch.stack([linear(x) for x in X]))
    with pytest.raises(RecordingError, match="class Quantised"):
        edbatch.batch(lambda x: nn.functional.linear(x, linear.weight))(X)
