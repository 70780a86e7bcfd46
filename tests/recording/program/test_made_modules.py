"""Modules that are made while a function is recorded are typed by their class and settings."""

import gc
import weakref

import pytest
import torch
from torch import nn

import edbatch
from edbatch.recording.calls import entries

X = torch.randn(3, 4)


def types_of(function, *columns):
    batched = edbatch.batch(function)
    edbatch.check(batched, *columns)
    return [t.name for t in batched.stats.types]


def test_modules_of_the_same_settings_are_one_type():
    assert types_of(lambda x: nn.Sigmoid()(nn.Sigmoid()(x)), X) == ["Sigmoid(f32[4])"]
    made = lambda x: nn.Sequential(nn.ReLU(), nn.Tanh())(x)  # noqa: E731
    assert types_of(lambda x: made(made(x)), X) == ["Sequential(f32[4])"]


DIFFERENT = {
    "class": lambda x: nn.Sigmoid()(nn.Tanh()(x)),
    "a number": lambda x: nn.LeakyReLU(0.1)(nn.LeakyReLU(0.2)(x)),
    "sign of zero": lambda x: nn.Threshold(0.0, 1.0)(nn.Threshold(-0.0, 2.0)(x)),
    "dim": lambda x: nn.Softmax(0)(nn.Softmax(1)(x.view(2, 2))).sum(),
    "mode": lambda x: nn.Dropout(0.0).eval()(nn.Dropout(0.0)(x)),
    "children": lambda x: nn.Sequential(nn.ReLU(), nn.Tanh())(nn.Sequential(nn.Tanh(), nn.ReLU())(x)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_modules_of_other_settings_are_other_types(name):
    batched = edbatch.batch(DIFFERENT[name])
    edbatch.check(batched, X)
    assert sum(t.name.startswith(("S", "T", "L", "D")) and "." not in t.name for t in batched.stats.types) == 2


def test_what_is_captured_in_one_call_serves_the_next(monkeypatch):
    batched = edbatch.batch(lambda x: nn.Hardtanh(-0.5, 0.5)(x) + nn.ReLU()(x))
    batched(X)
    captured = batched.pipeline.kernels.num_captured
    for _ in range(3):
        batched(X)
    assert batched.pipeline.kernels.num_captured == captured > 0


def test_most_calls_of_made_modules_take_the_short_way(monkeypatch):
    defined, define = [], entries.define
    monkeypatch.setattr("edbatch.recording.recorder.define", lambda *args: defined.append(args) or define(*args))

    def function(x):
        for _ in range(20):
            x = nn.Tanh()(x)
        return x

    edbatch.batch(function)(X)
    assert len(defined) == 1


def test_hooks_of_made_modules_are_called():
    seen = []

    def function(x):
        module = nn.ReLU()
        module.register_forward_hook(lambda module, args, result: seen.append(result) or result + 1)
        return module(x)

    assert torch.equal(edbatch.batch(function)(X), X.relu() + 1)
    assert seen


def test_made_modules_with_parameters_are_themselves():
    def function(x, n):
        layer = nn.Linear(4, 1, bias=False)
        layer.weight = nn.Parameter(torch.full((1, 4), float(n)))
        return layer(x)

    results = edbatch.batch(function)(X, [1, 2, 3]).squeeze()
    torch.testing.assert_close(results, X.sum(1) * torch.tensor([1.0, 2, 3]))


def test_a_made_module_may_change_between_its_calls():
    def function(x, slope):
        module = nn.LeakyReLU(0.5)
        result = module(x)
        module.negative_slope = slope
        return result + module(x)

    edbatch.check(edbatch.batch(function), X, [0.25, 0.5, 0.75])


def test_a_registered_module_has_its_own_type():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Tanh(), nn.Tanh()

        def forward(self, x):
            return nn.Tanh()(self.second(self.first(x)))

    assert types_of(Two(), X) == ["first(f32[4])", "second(f32[4])", "Tanh(f32[4])"]


def test_made_modules_do_not_outlive_their_call():
    alive = []

    def function(x):
        module = nn.Tanh()
        alive.append(weakref.ref(module))
        return module(x)

    edbatch.batch(function)(X)
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3
