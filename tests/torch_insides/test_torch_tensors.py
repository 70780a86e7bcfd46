"""What we rely on of tensors beyond what they tell in public."""

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from edbatch.torch_insides.tensors import (
    PLAIN_DISPATCH,
    PLAIN_FUNCTION,
    base_of,
    differentiate,
    fake_mode_of,
    hooks_of,
    is_view,
    num_owners,
    storage_number,
    version_of,
)


def test_the_version_grows_with_every_write_also_through_a_view():
    x = torch.zeros(3)
    before = version_of(x)
    x.add_(1)
    x[1:].mul_(2)
    assert version_of(x) == before + 2
    x + 1
    assert version_of(x) == before + 2


def test_tensors_made_in_inference_mode_have_no_version():
    with torch.inference_mode():
        x = torch.zeros(3)
    with pytest.raises(RuntimeError, match="version"):
        version_of(x)


def test_a_view_knows_its_base():
    x = torch.zeros(3)
    assert not is_view(x)
    assert base_of(x) is None
    assert is_view(x[1:])
    assert base_of(x[1:]) is x


def test_a_view_made_without_gradients_says_that_it_requires_one():
    x = torch.zeros(3, requires_grad=True)
    with torch.no_grad():
        view = x[1:]
    assert is_view(view)
    assert view.grad_fn is None


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_that_share_memory_have_the_same_number(device):
    x, y = torch.zeros(4, device=device), torch.zeros(4, device=device)
    assert storage_number(x) == storage_number(x[2:]) == storage_number(x.detach()) != storage_number(y)


def test_owners_are_counted():
    x = torch.zeros(4)
    alone = num_owners(x)
    view = x.view(2, 2)
    assert num_owners(x) == num_owners(view) == alone + 1
    del view
    assert num_owners(x) == alone == num_owners(torch.empty(1))


def test_hooks_of_a_tensor():
    x = torch.zeros(3, requires_grad=True)
    assert not hooks_of(x)
    handle = x.register_hook(lambda grad: grad)
    assert hooks_of(x)
    handle.remove()
    assert not hooks_of(x)


def test_classes_without_rules_of_their_own_have_these():
    class Plain(torch.Tensor):
        pass

    class Quiet(torch.Tensor):
        __torch_function__ = PLAIN_FUNCTION

    x = torch.ones(2).as_subclass(Quiet)
    assert type(x + 1) is torch.Tensor
    assert Plain.__torch_dispatch__ is PLAIN_DISPATCH is torch.Tensor.__torch_dispatch__
    assert nn.Parameter.__torch_function__ is PLAIN_FUNCTION


def test_gradients_by_the_engine_are_those_of_autograd():
    x, y, z = (torch.rand(3, requires_grad=True) for _ in range(3))
    roots = [(x * y, torch.ones(3)), ((x**2).sum(), torch.tensor(2.0))]
    values, seeds = zip(*roots, strict=True)
    right = torch.autograd.grad(values, [x, y, z], seeds, retain_graph=True, allow_unused=True)
    found = differentiate(roots, [x, y, z], True)
    assert all(map(torch.equal, found[:2], right[:2]))
    assert found[2] is right[2] is None
    assert x.grad is None
    differentiate(roots, [x], False)
    with pytest.raises(RuntimeError, match="second time"):
        differentiate(roots, [x], False)


def test_fake_tensors_know_their_mode():
    with FakeTensorMode() as mode:
        assert fake_mode_of(torch.empty(2)) is mode
    assert fake_mode_of(torch.empty(2)) is None
