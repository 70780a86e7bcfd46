"""What we rely on of torch's modes: that each acts in this thread, can be asked for, and can be set back."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

from edbatch.cells.capture.fake import FakeMode
from edbatch.torch_insides import modes
from edbatch.torch_insides.modes import (
    DisableAutocast,
    DisableTorchFunction,
    InferenceMode,
    QuietDispatchMode,
    TorchDispatchMode,
)


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class QuietOps(QuietDispatchMode, Ops):
    """The same, without the wrapper."""


def test_no_mode_sees_functions_where_they_are_disabled():
    x = torch.ones(2)
    with Functions() as mode, DisableTorchFunction():
        x.shape, x.sum()
    assert mode.seen == []


def test_function_modes_are_counted_and_popped():
    assert modes.num_function_modes() == 0
    mode = Functions()
    mode.__enter__()
    assert modes.num_function_modes() == 1
    assert modes.pop_function_mode() is mode
    assert modes.num_function_modes() == 0


def test_whether_functions_are_seen_is_asked_for_and_set_back():
    before = modes.get_function_state()
    with DisableTorchFunction():
        assert modes.get_function_state() != before
        modes.set_function_state(before)
        with Functions() as mode:
            torch.ones(2)
    assert mode.seen == [torch.ones]
    assert modes.get_function_state() == before


@pytest.mark.parametrize("kind", [Ops, QuietOps])
def test_dispatch_modes_see_ops_and_are_counted_and_put_back(kind):
    mode = kind()
    with mode:
        torch.ones(2).sum()
        assert modes.num_dispatch_modes() == 1
        assert modes.dispatch_modes() == [mode]
        modes.put_back_dispatch_modes([])
        assert modes.num_dispatch_modes() == 0
        torch.ones(2).exp()
        modes.put_back_dispatch_modes([mode])
        with modes.without_dispatch_modes():
            torch.ones(2).exp()
    assert torch.ops.aten.sum.default in mode.seen
    assert torch.ops.aten.exp.default not in mode.seen
    assert modes.num_dispatch_modes() == 0


def notes():
    """What torch notes of dispatch modes beside the stack."""
    names = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]
    assert len(names) >= 2
    return {name: getattr(_python_dispatch, name) for name in names}


def test_notes_of_dispatch_modes_are_right_after_one_that_was_not_left():
    outside = notes()
    assert not any(outside.values())
    outer, inner = Ops(), Ops()
    with outer:
        inside = notes()
        inner.__enter__()
        modes.put_back_dispatch_modes([outer])
        assert modes.dispatch_modes() == [outer]
        assert notes() == inside != outside
    inner.__enter__()
    modes.put_back_dispatch_modes([])
    assert notes() == outside


@pytest.mark.parametrize("kind", [QuietOps, FakeMode])
def test_quiet_modes_leave_the_notes_alone_which_are_for_all_threads(kind):
    """Two threads that enter, and leave in the same order, would leave the notes of torch's own modes on."""
    outside, both = notes(), threading.Barrier(2)
    first_left, seen = threading.Event(), []

    def first():
        with kind():
            both.wait(10)
            seen.append(notes())
        first_left.set()

    def second():
        with kind():
            both.wait(10)
            assert first_left.wait(10)
        seen.append(notes())

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(first), threads.submit(second)]:
            done.result(30)
    assert seen == [outside, outside]
    assert modes.num_dispatch_modes() == 0


def test_autocast_is_asked_for_and_off_where_it_is_disabled():
    a = torch.ones(2, 2)
    assert not modes.is_any_autocast_enabled()
    with torch.autocast("cpu"):
        assert modes.is_any_autocast_enabled()
        assert (a @ a).dtype is torch.bfloat16
        with DisableAutocast():
            assert (a @ a).dtype is torch.float32
    with torch.autocast("cuda", enabled=torch.cuda.is_available()):
        assert modes.is_any_autocast_enabled() == torch.cuda.is_available()


def test_inference_mode_is_left_for_a_while_from_the_moment_it_is_made():
    with torch.inference_mode():
        guard = InferenceMode(False)
        guard.__enter__()
        assert not torch.is_inference_mode_enabled()
        guard.__exit__(None, None, None)
        del guard
        assert torch.is_inference_mode_enabled()


def test_a_grad_mode_is_set_by_one_function_that_modes_see():
    with Functions() as mode:
        with torch.no_grad():
            pass
        torch.set_grad_enabled(True)
    assert mode.seen.count(modes.set_grad_enabled) >= 2
    modes.set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    modes.set_grad_enabled(True)


def test_modes_see_backward_or_not():
    x = torch.ones(1, requires_grad=True)
    with Functions() as mode:
        torch.autograd.backward([x * 2])
    assert (torch.autograd.backward in mode.seen) == (not modes.BACKWARD)


@pytest.mark.parametrize(("module", "name"), modes.BACKWARD)
def test_backward_ends_there(module, name, monkeypatch):
    calls = []
    monkeypatch.setattr(module, name, lambda *args, **kwargs: calls.append((args, kwargs)))
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    torch.autograd.backward([y], inputs=[x])
    ((((tensor,), (gradient,), keep, create, inputs), kwargs),) = calls
    assert (tensor, gradient.item(), keep, create, inputs) == (y, 1, False, False, (x,))
    assert kwargs["accumulate_grad"]


@pytest.mark.parametrize("keep", [False, True])
def test_a_backward_can_ask_whether_the_graph_is_kept(keep):
    answers = []

    class Asked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            answers.append(modes.keeps_graph())
            return grad * 2

    Asked.apply(torch.ones(1, requires_grad=True)).backward(retain_graph=keep)
    assert answers == [keep]


def test_hooks_for_saved_tensors_are_not_called_while_tracing():
    packed = []
    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        assert modes.set_saving_traced(True) is False  # gives what it was
        try:
            x.exp()
            assert packed == []
        finally:
            assert modes.set_saving_traced(False) is True
        x.exp()
    assert len(packed) == 1


def test_functionalization_makes_writes_functional():
    assert not modes.is_functionalizing()
    inner = torch.ones(2, requires_grad=True)
    modes.functionalize(True)
    try:
        assert modes.is_functionalizing()
        outer = modes.to_functional(inner)
        assert modes.is_functional(outer)
        assert not modes.is_functional(inner)
        assert outer.requires_grad
        with torch.no_grad():
            outer.mul_(3)
        assert modes.from_functional(outer).tolist() == [3.0, 3.0]
        assert inner.tolist() == [1.0, 1.0]
        modes.functionalize(True)  # twice is once
    finally:
        modes.functionalize(False)
    assert not modes.is_functionalizing()
