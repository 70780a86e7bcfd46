"""Hooks that torch calls with saved tensors may give back copies of them: gradients go to the tensors themselves."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import edbatch


def gradients(around):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.randn(5, 3, requires_grad=True)
    around(edbatch.batch(lambda v: model(v) * 2), x).square().sum().backward()
    return [x.grad, *[p.grad for p in model.parameters()]]


def hooked(context):
    def call(batched, x):
        with context:
            return batched(x)

    return call


WAYS = {
    "clones": hooked(saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone())),
    "on the CPU": hooked(save_on_cpu()),
    "checkpoint": lambda batched, x: checkpoint(batched, x, use_reentrant=False),
    "checkpoint of more": lambda batched, x: checkpoint(lambda v: batched(v * 2) + 1, x, use_reentrant=False),
    "checkpoint with hooks that enter again": lambda batched, x: checkpoint(batched, x, use_reentrant=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_gradients_under_hooks_for_saved_tensors(way):
    scale = 2.0 if way == "checkpoint of more" else 1.0
    plain = gradients(lambda batched, x: batched.one_by_one(x * scale) + (scale - 1))
    for found, expected in zip(gradients(WAYS[way]), plain, strict=True):
        torch.testing.assert_close(found, expected)
