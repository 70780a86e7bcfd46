"""The hot path of recording: its keys are those of the general path, and nothing stays behind."""

import contextlib
import gc
import threading

import pytest
import torch
from torch import nn

import edbatch
from edbatch.errors import RecordingError
from edbatch.recording.recorder import Recorder


class Any(nn.Module):
    def forward(self, *args):
        flat = [a for arg in args for a in (arg if isinstance(arg, tuple) else (arg,))]
        return sum(a.sum() for a in flat) * torch.ones(3)


CALLS = {
    "a value": lambda cell, x: cell(x),
    "an int": lambda cell, x: cell(4) + x,
    "two values": lambda cell, x: cell(x, x),
    "a value and an int": lambda cell, x: cell(x, 3),
    "three values": lambda cell, x: cell(x, x, x),
    "four values": lambda cell, x: cell(x, x, x, x),
    "a value and a tuple": lambda cell, x: cell(x, (x, x)),
    "ints and values": lambda cell, x: cell(1, x, 2, x, 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_takes_the_short_way(name, monkeypatch):
    cell, call, general = edbatch.cell(Any()), CALLS[name], []
    original = Recorder.call
    monkeypatch.setattr(Recorder, "call", lambda self, *args: general.append(args) or original(self, *args))
    batched = edbatch.batch(lambda x: call(cell, x))
    ours = batched(torch.ones(3, 3))
    assert len(general) == 1
    torch.testing.assert_close(ours, batched.one_by_one(torch.ones(3, 3)))
    assert batched.stats.types[0].num_nodes == 3


FUNCTIONS = {
    "a function": lambda x, w: torch.tanh(x),
    "two values": lambda x, w: x * x,
    "a parameter": lambda x, w: w @ x,
    "a number": lambda x, w: 0.5 - x,
    "a static number": lambda x, w: x**2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_second_torch_function_takes_the_short_way(name, monkeypatch):
    weight, function, general = nn.Parameter(torch.randn(3, 3)), FUNCTIONS[name], []
    original = Recorder._record
    monkeypatch.setattr(Recorder, "_record", lambda self, *args: general.append(args) or original(self, *args))
    batched = edbatch.batch(lambda x: function(x, weight))
    torch.testing.assert_close(batched(torch.ones(4, 3)), batched.one_by_one(torch.ones(4, 3)))
    assert len(general) == 1
    assert batched.stats.num_nodes == 4


def test_nothing_stays_behind():
    model = nn.Sequential(Any())
    model.forward = lambda x: model[0](x)
    before = (
        nn.Module.__call__,
        torch.autograd.Function.__dict__["apply"],
        torch.autocast.__enter__,
        set(model.__dict__),
    )
    for function in (model, lambda x: 1 / 0):
        batched = edbatch.batch(function)
        with contextlib.suppress(ZeroDivisionError):
            batched(torch.ones(2, 3))
        after = (
            nn.Module.__call__,
            torch.autograd.Function.__dict__["apply"],
            torch.autocast.__enter__,
            set(model.__dict__),
        )
        assert after == before
        assert gc.isenabled()
    gc.disable()
    try:
        edbatch.batch(model)(torch.ones(2, 3))
        assert not gc.isenabled()
    finally:
        gc.enable()


MORE_FUNCTIONS = {
    "a tuple of values": lambda x: torch.cat((x, x)),
    "a list and a keyword": lambda x: torch.cat([x, x * 2], dim=-1),
    "keywords": lambda x: torch.clamp(x, min=0.5, max=None),
    "a bool": lambda x: x.sum(dim=0, keepdim=True),
    "a stack along the rows": lambda x: torch.stack([x, x], dim=0).sum(0),
    "a stack of numbers": lambda x: torch.stack([x.sum(), x.mean()]).sum(),
}


@pytest.mark.parametrize("name", MORE_FUNCTIONS)
@pytest.mark.usefixtures("as_recorded")
def test_functions_of_known_signatures_are_recorded_alike(name, monkeypatch):
    function, signatures = MORE_FUNCTIONS[name], []
    original = Recorder._record
    monkeypatch.setattr(Recorder, "_record", lambda self, *args: signatures.append(args) or original(self, *args))
    batched = edbatch.batch(lambda x: function(x))
    torch.testing.assert_close(batched(torch.ones(4, 3)), batched.one_by_one(torch.ones(4, 3)))
    assert len(signatures) <= batched.stats.num_types
    assert all(t.num_nodes == 4 for t in batched.stats.types)


def test_torch_stack_is_as_before_for_tensors_and_other_threads():
    original = torch.stack
    seen = []

    def function(x):
        worker = threading.Thread(target=lambda: seen.append(torch.stack([torch.ones(2), torch.zeros(2)])))
        worker.start()
        worker.join()
        return torch.stack([x, x]).sum(0) * torch.stack(tensors=[torch.ones(3), torch.ones(3)], dim=1).sum()

    batched = edbatch.batch(function)
    torch.testing.assert_close(batched(torch.ones(2, 3)), torch.full((2, 3), 12.0))
    assert [s.shape for s in seen] == [(2, 2)] * 2
    assert torch.stack is original


BESIDE_NUMBERS = {
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "where, turned round": lambda x: torch.where(x > 0, 1.0, x),
    "pow": lambda x: torch.pow(x, 2) + torch.pow(2, x),
    "isin": lambda x: torch.isin(x, 1),
    "add": lambda x: torch.add(1, x) + torch.result_type(x, 1).itemsize,
}


@pytest.mark.parametrize("name", BESIDE_NUMBERS)
def test_torch_does_not_take_lazy_values_for_the_memory_of_tensors(name):
    x = torch.linspace(-1, 1, 6).view(2, 3)
    torch.testing.assert_close(edbatch.batch(BESIDE_NUMBERS[name])(x), torch.stack(list(map(BESIDE_NUMBERS[name], x))))


@pytest.mark.parametrize("misuse", [
    lambda x: torch.full((3,), x.sum()),
    lambda x: torch.ones(3).add(1, alpha=x.sum()),
    lambda x: torch.clamp(x, x, 1.0),
])  # fmt: skip
def test_a_lazy_value_in_the_place_of_a_number_is_an_error(misuse):
    with pytest.raises(TypeError, match=r"Number, not|invalid combination"):
        edbatch.batch(misuse)(torch.ones(2, 3))


def test_lazy_values_are_tensors_to_isinstance():
    def function(x):
        values = x * 2, x + x, torch.stack([x, x * 2]), x > 0
        for value in values:
            assert isinstance(value, torch.Tensor)
            assert isinstance(value, int | torch.Tensor)
            assert isinstance(value, (str, torch.Tensor))
            assert not isinstance(value, nn.Parameter)
            assert not isinstance(value, int | str)
            assert torch.is_tensor(value)
        return values[0]

    edbatch.batch(function)(torch.ones(2, 3))


class Keeps(nn.Module):
    """Assigns lazy values to buffers of its own and to a new one, or to one of a part."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.where = None
        for name in ("first", "second"):
            self.register_buffer(name, torch.ones(3))

    def forward(self, x):
        h = self.linear(x)
        if self.where is self:
            self.first, self.second = h, h + 1
        if self.where is not None:
            self.where.register_buffer("new", h)
        return h


@pytest.mark.parametrize("is_part", [False, True])
def test_lazy_values_in_buffers_are_refused_and_none_of_them_stays(is_part):
    model = Keeps()
    batched = edbatch.batch(model)
    batched(torch.ones(2, 3))
    if is_part:
        model.part = nn.Identity()  # which the first call did not know
    model.__dict__["where"] = model.part if is_part else model
    before = {name: id(buffer) for name, buffer in model.named_buffers()}
    with pytest.raises(RecordingError, match=r"assigned to the buffer .* return it"):
        batched(torch.ones(2, 3))
    assert {name: id(buffer) for name, buffer in model.named_buffers()} == before
    assert [name for module in model.modules() for name in module._buffers] == ["first", "second"]
