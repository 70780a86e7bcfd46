"""What a cell's body read of Python's state is compared once per call: after a change the cell is captured anew."""

import dataclasses
import enum
import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_pre_hook,
)

import edbatch

DIM = 4
X = torch.randn(6, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


class Kind(enum.Enum):
    SOFT, HARD = 1, 2


class Gate(nn.Module):
    """A body that reads scalars of itself and of a module inside it."""

    def __init__(self):
        super().__init__()
        self.temperature, self.steps, self.kind, self.name, self.scale = 1.0, 1, Kind.SOFT, "tanh", None
        self.linear, self.dropout = nn.Linear(DIM, DIM), nn.Dropout(0.0)

    def forward(self, x):
        x = self.dropout(self.linear(x) / self.temperature)
        for _ in range(self.steps):
            x = getattr(torch, self.name)(x) if self.kind is Kind.SOFT else x.clamp(-0.1, 0.1)
        return x * 3 if self.training else x if self.scale is None else x * self.scale


def twice(cell):
    return lambda x: cell(cell(x))


@pytest.fixture
def cell():
    return edbatch.cell(Gate().double())


@pytest.fixture
def batched(cell, compilation):
    """The function, and a check that it is as one by one, values and gradients."""
    batched = edbatch.batch(twice(cell))
    assert_as_one_by_one(batched, cell)
    fused = [f for kernel in batched.pipeline.kernel_of.values() for f in kernel.fused]
    assert bool(fused) == (compilation == "compiled")
    return batched


def assert_as_one_by_one(batched, cell):
    with torch.no_grad():
        inferred = batched(X)
    wanted = [p for p in cell.parameters() if p.requires_grad]
    found = []
    for run in (batched, batched.one_by_one):
        out = run(X)
        found.append([out, *(torch.autograd.grad((out**2).sum(), wanted) if wanted else [])])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(inferred, found[1][0], rtol=1e-9, atol=1e-9)
    return inferred


def test_an_annealed_temperature(cell, batched):
    seen = []
    for step in range(9):  # more values than kernels are kept for
        cell.temperature = 0.5 + 0.25 * step
        seen.append(assert_as_one_by_one(batched, cell))
    assert not any(torch.allclose(a, b) for a, b in pairwise(seen))
    cell.temperature = 0.5
    torch.testing.assert_close(assert_as_one_by_one(batched, cell), seen[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 3), ("kind", Kind.HARD), ("name", "sigmoid"), ("temperature", 2), ("temperature", -1.0)],
)
def test_other_scalars(cell, batched, name, value):
    before = assert_as_one_by_one(batched, cell)
    original = getattr(cell, name)
    setattr(cell, name, value)
    assert not torch.allclose(before, assert_as_one_by_one(batched, cell))
    setattr(cell, name, original)
    torch.testing.assert_close(before, assert_as_one_by_one(batched, cell))


@dataclasses.dataclass
class Config:
    factor: float = 1.0


class Configured(nn.Module):
    """Settings in collections, records, tensors and functions."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)
        self.dict, self.list, self.tuple = {"factor": 1.0, "more": {"factors": [1.0]}}, [1.0], (1.0,)
        self.config, self.space = Config(), SimpleNamespace(factor=1.0)
        self.tensor, self.function = torch.tensor(1.0), torch.tanh

    def forward(self, x):
        x = self.function(self.linear(x)) * self.dict["factor"] * self.dict["more"]["factors"][0] * self.list[0]
        return x * self.tuple[0] * self.config.factor * self.space.factor * self.tensor


def item(container, key, value):
    container[key] = value


@pytest.mark.parametrize(
    "change",
    [
        lambda cell: item(cell.dict, "factor", 2.0),
        lambda cell: item(cell.dict["more"]["factors"], 0, 2.0),
        lambda cell: setattr(cell, "dict", {"factor": 2.0, "more": cell.dict["more"]}),
        lambda cell: item(cell.list, 0, 2.0),
        lambda cell: setattr(cell, "tuple", (2.0,)),
        lambda cell: setattr(cell.config, "factor", 2.0),
        lambda cell: setattr(cell, "config", Config(2.0)),
        lambda cell: setattr(cell.space, "factor", 2.0),
        lambda cell: setattr(cell, "tensor", torch.tensor(2.0)),
        lambda cell: cell.tensor.fill_(2.0),
        lambda cell: setattr(cell, "function", torch.sin),
    ],
)
@pytest.mark.parametrize("key", [None, lambda x: 0], ids=["recorded", "known"])
@pytest.mark.parametrize("mark", [edbatch.cell, lambda module: module], ids=["cell", "module"])
def test_settings_of_other_kinds(change, key, mark):
    cell = mark(Configured().double())
    batched = edbatch.batch(twice(cell), key=key)
    before = assert_as_one_by_one(batched, cell)
    change(cell)
    assert not torch.allclose(before, assert_as_one_by_one(batched, cell))


class Signed(nn.Module):
    def __init__(self, setting):
        super().__init__()
        self.setting = setting

    def forward(self, x):
        setting = self.setting["factor"] if isinstance(self.setting, dict) else self.setting
        return x * math.copysign(2, setting) + abs(setting)


@pytest.mark.parametrize("number", [float, np.float32, np.float64])
@pytest.mark.parametrize("hold", [lambda n: n, lambda n: {f"other {i}": i for i in range(100)} | {"factor": n}])
def test_numbers_of_all_kinds(number, hold):
    """Also signs of zero are noticed; NaN is no change."""
    cell = edbatch.cell(Signed(hold(number(0.0))))
    batched = edbatch.batch(twice(cell))
    for value in (0.0, -0.0, 3.0, -3.0):
        cell.setting = hold(number(value))
        torch.testing.assert_close(batched(X), batched.one_by_one(X))
    kernels = []
    for _ in range(4):
        cell.setting = hold(number(float("nan")))
        assert batched(X).isnan().all()
        kernels.append(list(batched.pipeline.kernel_of.values()))
    assert all(a is b for other in kernels[1:] for a, b in zip(kernels[0], other, strict=True))


def test_settings_without_end(cell, batched):
    """Collections that hold themselves, deep and long ones, are looked at no further."""
    loop, deep = [1.0], ()
    loop.append(loop)
    for _ in range(5000):
        deep = (deep,)
    cell.loop, cell.deep, cell.long = loop, deep, tuple(map(str, range(100_000)))
    assert_as_one_by_one(batched, cell)


def test_what_says_nothing_is_not_compared(cell, batched):
    """Large collections are data, and other objects may change at any time: nothing is captured again."""
    for name, value in (("words", dict.fromkeys(range(10_000))), ("log", object()), ("self", [cell])):
        setattr(cell, name, value)
    assert_as_one_by_one(batched, cell)
    kernels = list(batched.pipeline.kernel_of.values())
    cell.words["more"] = 1
    cell.log = object()
    assert_as_one_by_one(batched, cell)
    assert all(a is b for a, b in zip(kernels, batched.pipeline.kernel_of.values(), strict=True))


def test_an_attribute_that_was_none(cell, batched):
    cell.eval()
    before = assert_as_one_by_one(batched, cell)
    cell.scale = 2.0
    assert not torch.allclose(before, assert_as_one_by_one(batched, cell))


def test_mode(cell, batched):
    training = assert_as_one_by_one(batched, cell)
    cell.eval()
    evaluated = assert_as_one_by_one(batched, cell)
    assert not torch.allclose(training, evaluated)
    cell.train()
    torch.testing.assert_close(assert_as_one_by_one(batched, cell), training)


def test_mode_of_a_module_inside(cell, batched):
    """A cell in training mode with a part of it in eval mode: no values are dropped."""
    cell.dropout.eval()
    cell.dropout.p = 0.9
    assert_as_one_by_one(batched, cell)


def test_dropout_probability(cell, batched):
    cell.dropout.p = 1.0
    assert assert_as_one_by_one(batched, cell).abs().sum() == 0
    cell.dropout.p = 0.5
    cell.temperature = 1e-9  # what is not dropped is far from 0
    with torch.no_grad():
        share = (batched(X.repeat(50, 1)) == 0).double().mean()
    assert 0.3 < share < 0.7
    cell.dropout.p = 0.0
    assert_as_one_by_one(batched, cell)


@pytest.mark.parametrize("where", ["cell", "linear"])
@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_hooks(cell, batched, where, kind):
    """A hook sees every call, and may change it; without it the cell is batched again."""
    module, seen = (cell if where == "cell" else cell.linear), []

    def forward(module, inputs, output):
        seen.append(output.shape)
        return output * 2

    def forward_pre(module, inputs):
        seen.append(inputs[0].shape)
        return (inputs[0] * 2,)

    before = assert_as_one_by_one(batched, cell)
    hook = forward if kind == "forward" else forward_pre
    handle = getattr(module, f"register_{kind}_hook")(hook)
    assert not torch.allclose(before, assert_as_one_by_one(batched, cell))
    seen.clear()
    batched(X)
    assert seen == [(DIM,)] * (2 * len(X))
    assert all(t.reason for t in batched.stats.types)
    handle.remove()
    seen.clear()
    torch.testing.assert_close(assert_as_one_by_one(batched, cell), before)
    assert not seen
    assert not any(t.reason for t in batched.stats.types)


@pytest.mark.parametrize("register", [register_module_forward_hook, register_module_forward_pre_hook])
@pytest.mark.parametrize("key", [None, lambda x: 0], ids=["recorded", "known"])
def test_hooks_of_all_modules(cell, register, key):
    batched = edbatch.batch(twice(cell), key=key)
    before = assert_as_one_by_one(batched, cell)

    def hook(module, inputs, *output):
        if type(module) is Gate:  # not the batched function, which is a module, too
            return output[0] * 2 if output else (inputs[0] * 2,)
        return None

    handle = register(hook)
    try:
        assert not torch.allclose(before, assert_as_one_by_one(batched, cell))
    finally:
        handle.remove()
    torch.testing.assert_close(assert_as_one_by_one(batched, cell), before)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # torch's, one by one: X requires no gradient
def test_backward_hooks_of_all_modules(cell, batched):
    seen = []

    def hook(module, gradients):
        if type(module) is Gate:
            seen.append(module)
            return tuple(g * 2 for g in gradients)
        return None

    before = torch.autograd.grad(batched(X).sum(), cell.linear.weight)[0]
    handle = register_module_full_backward_pre_hook(hook)
    try:
        assert_as_one_by_one(batched, cell)
        assert not torch.allclose(before, torch.autograd.grad(batched(X).sum(), cell.linear.weight)[0])
        assert seen
    finally:
        handle.remove()
    torch.testing.assert_close(before, torch.autograd.grad(batched(X).sum(), cell.linear.weight)[0])


class Doubled(Gate):
    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize("change", [
    lambda cell: setattr(cell, "__class__", Doubled), lambda cell: setattr(cell, "forward", lambda x: x * 2),
    lambda cell: setattr(cell.linear, "forward", lambda x: x * 2),
])  # fmt: skip
@pytest.mark.parametrize("key", [None, lambda x: 0], ids=["recorded", "known"])
def test_another_forward(cell, change, key):
    batched = edbatch.batch(twice(cell), key=key)
    before = assert_as_one_by_one(batched, cell)
    change(cell)
    cell.requires_grad_(False)
    assert not torch.allclose(before, assert_as_one_by_one(batched, cell))


def test_requires_grad(cell, batched):
    for wanted in ([False, True], [True, False], [False, False], [True, True]):
        for p, want in zip(cell.parameters(), wanted, strict=True):
            p.requires_grad_(want)
            p.grad = None
        assert_as_one_by_one(batched, cell)
        out = batched(X)
        assert out.requires_grad == any(wanted)
        if any(wanted):
            out.sum().backward()
        assert [p.grad is not None for p in cell.parameters()] == wanted


def test_a_parameter_becomes_a_buffer(cell, batched):
    weight = cell.linear.weight.detach() * 2
    del cell.linear.weight
    cell.linear.register_buffer("weight", weight)
    assert_as_one_by_one(batched, cell)
    cell.linear.weight.mul_(3)
    assert_as_one_by_one(batched, cell)


def test_a_module_inside_is_replaced(cell, batched):
    before = assert_as_one_by_one(batched, cell)
    cell.linear = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU()).double()
    assert not torch.allclose(before, assert_as_one_by_one(batched, cell))


def test_surroundings(cell, batched):
    """Grad mode and autocast are part of a node's type; nothing of them stays."""
    before = assert_as_one_by_one(batched, cell)
    with torch.inference_mode():
        torch.testing.assert_close(batched(X), before)
    cell.float()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        ours, theirs = batched(X.float()), batched.one_by_one(X.float())
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    cell.double()
    torch.testing.assert_close(assert_as_one_by_one(batched, cell), before, rtol=1e-6, atol=1e-6)


def test_keys_do_not_hide_changes(cell, compilation):
    """Known examples are not recorded again, but the state of their cells is still compared."""
    batched = edbatch.batch(twice(cell), key=lambda x: 0)
    for change in ({}, {"temperature": 3.0}, {"name": "sigmoid"}, {"temperature": 1.0}):
        for name, value in change.items():
            setattr(cell, name, value)
        assert_as_one_by_one(batched, cell)
