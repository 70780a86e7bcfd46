"""What we rely on of modules: which tables they have, and what stands there."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as of_torch

from edbatch.torch_insides import modules
from edbatch.torch_insides.modules import (
    BUFFERS,
    CALL,
    CHILDREN,
    HOOKS,
    INTERNAL,
    PARAMETERS,
    REGISTERED,
    TABLES,
    remove_forward_pre_hook,
)  # fmt: skip


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.twin = self.weight
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("temporary", torch.ones(1), persistent=False)
        self.child = self.other = nn.Linear(1, 1)

    def forward(self, x):
        return self.child(x)


def test_tables_hold_what_is_the_modules_own():
    model = Model()
    assert modules.parameters_in(model) == {"weight": model.weight, "twin": model.weight}
    assert modules.buffers_in(model) == {"scale": model.scale, "temporary": model.temporary}
    assert modules.children_in(model) == {"child": model.child, "other": model.child}


def test_tables_stand_in_the_dictionary_of_a_module():
    held = vars(Model())
    assert {PARAMETERS, BUFFERS, CHILDREN, *HOOKS} == set(TABLES)
    assert set(TABLES) | set(REGISTERED) <= set(held)
    assert set(held) - {"training"} <= INTERNAL
    assert "training" in INTERNAL


def test_a_module_with_the_tables_of_another_has_the_same_state():
    model, other = Model(), nn.Module()
    for name in REGISTERED:
        other.__dict__[name] = model.__dict__[name]
    assert [*other.state_dict()] == [*model.state_dict()]
    assert all(a is b for a, b in zip(other.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "register_forward_hook"), (1, "register_forward_pre_hook"), (2, "register_full_backward_hook"),
        (3, "register_full_backward_pre_hook"),
    ],
)  # fmt: skip
def test_hooks_stand_in_their_tables(number, name):
    def hook(*args): ...

    model = Model()
    handle = getattr(model, name)(hook)
    assert [list(table.values()) for table in modules.hooks_in(model)] == [
        [hook] if i == number else [] for i in range(4)
    ]
    assert any(modules.backward_hooks_in(model)) == (number >= 2)
    handle.remove()
    assert not any(modules.hooks_in(model))


@pytest.mark.parametrize(
    "name",
    [
        "register_module_forward_hook", "register_module_forward_pre_hook", "register_module_full_backward_hook",
        "register_module_full_backward_pre_hook",
    ],
)  # fmt: skip
def test_hooks_of_all_modules(name):
    def hook(*args): ...

    assert modules.hooks_of_all() == []
    handle = getattr(of_torch, name)(hook)
    try:
        assert modules.hooks_of_all() == [hook]
    finally:
        handle.remove()
    assert modules.hooks_of_all() == []


def test_every_call_of_a_module_is_one_of_this_method_which_calls_hooks():
    model, seen = Model(), []
    model.register_forward_hook(lambda *args: seen.append(args))
    assert getattr(model, CALL)(torch.ones(1)).shape == (1,)
    assert len(seen) == 1
    calls = []
    setattr(model, CALL, lambda *args, **kwargs: calls.append((args, kwargs)))
    model(1, k=2)
    assert calls == [((1,), {"k": 2})]


def test_a_module_tells_whether_it_is_compiled():
    model = Model()
    assert modules.compiled_call_of(model) is None
    model.compile(backend="eager")
    assert modules.compiled_call_of(model) is not None


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_all_kinds_of_batch_norm_are_one(kind):
    assert isinstance(kind(2), modules.BatchNorm)
    assert not isinstance(nn.LayerNorm(2), modules.BatchNorm)


def test_one_forward_pre_hook_is_removed_and_others_stay():
    module, calls = torch.nn.Linear(1, 1), []

    def first(*_):
        calls.append("first")

    def second(*_):
        calls.append("second")

    module.register_forward_pre_hook(first)
    module.register_forward_pre_hook(second)
    remove_forward_pre_hook(module, first)
    module(torch.ones(1))
    assert calls == ["second"]
