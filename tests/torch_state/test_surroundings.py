"""Changes for a while that are taken back, whatever interrupts."""

import gc
import threading
import types
from contextvars import ContextVar

import pytest
import torch
from torch import nn

import edbatch
from edbatch.torch_state import inside_in_python, surroundings
from edbatch.torch_state.surroundings import Made, Scope, Stay, Surroundings, Undrawn, inside


@pytest.fixture(autouse=True, params=[surroundings, inside_in_python], ids=["in C", "in Python"])
def _form(request, monkeypatch):
    """Both forms of what surroundings are made of."""
    if request.param is inside_in_python and "in_c" in request.fixturenames:
        pytest.skip("the form in Python bears neither interrupts nor nonsense")
    for name in ("Made", "Scope", "Stay", "inside"):
        monkeypatch.setitem(globals(), name, getattr(request.param, name))


@pytest.fixture
def in_c():
    """For tests of what the form in Python does not do."""


class Noted:
    """A context that writes down what happens to it; `interrupts` is how often leaving it raises an error."""

    def __init__(self, notes, name, interrupts=0, error=KeyboardInterrupt):
        self.notes, self.name, self.interrupts, self.error = notes, name, interrupts, error

    def __enter__(self):
        self.notes.append(f"enter {self.name}")

    def __exit__(self, *error):
        if self.interrupts:
            self.interrupts -= 1
            raise self.error
        self.notes.append(f"leave {self.name}")


def test_contexts_are_left_in_reverse():
    notes = []
    result = inside((Noted(notes, "a"), Noted(notes, "b")), lambda x, y: notes.append("run") or x + y, 1, y=2)
    assert result == 3
    assert notes == ["enter a", "enter b", "run", "leave b", "leave a"]


@pytest.mark.usefixtures("in_c")
def test_contexts_are_left_after_an_error_and_when_leaving_is_interrupted():
    notes = []
    with pytest.raises(ZeroDivisionError):
        inside((Noted(notes, "a", 2), Noted(notes, "b")), lambda: 1 / 0)
    assert notes == ["enter a", "enter b", "leave b", "leave a"]
    with pytest.raises(KeyboardInterrupt):
        inside((Noted(notes, "c", 1),), lambda: 1)
    assert notes[4:] == ["enter c", "leave c"]
    with pytest.raises(TimeoutError):  # of a handler for an alarm
        inside((Noted(notes, "d"), Noted(notes, "e", 2, TimeoutError)), lambda: 1)
    assert notes[6:] == ["enter d", "enter e", "leave e", "leave d"]


def test_a_context_that_is_not_entered_is_not_left():
    notes = []
    broken = Noted(notes, "broken")
    broken.notes = None
    with pytest.raises(AttributeError):
        inside((Noted(notes, "a"), broken), notes.append, "run")
    assert notes == ["enter a", "leave a"]


@pytest.mark.usefixtures("in_c")
def test_an_interrupt_that_c_code_has_covered_comes_up_as_itself():
    def covered():
        raise SystemError("a function returned a result with an exception set") from KeyboardInterrupt()

    def covered_twice():
        try:
            covered()
        except SystemError as error:
            raise SystemError("once more") from error

    def not_survived():
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("cleaning up failed")

    for function in (covered, covered_twice, not_survived):
        with pytest.raises(KeyboardInterrupt):
            inside((), function)
    with pytest.raises(SystemError):
        inside((), lambda: (_ for _ in ()).throw(SystemError("another one")))


def base_and_derived():
    class Base:
        def __call__(self):
            return "before"

    class Derived(Base):
        pass

    class Own(Base):
        def __call__(self):
            return "its own"

    return Base, Derived, Own


def test_a_replaced_method_is_that_of_subclasses_at_once():
    Base, Derived, Own = base_and_derived()

    def call(thing):
        return thing()  # one place, where Python remembers what it found

    places = ((Base, "__call__", Base.__dict__["__call__"], lambda self: "replaced"),)
    for _ in range(20):
        for contexts, expected in (((Stay(places),), "replaced"), ((), "before")):
            found = inside(contexts, lambda: [call(cls()) for cls in (Base, Derived, Own, type("New", (Base,), {}))])
            assert found == [expected, expected, "its own", expected]


def test_stays_overlap_in_any_order():
    module = types.ModuleType("some_module")
    module.function = original = object()
    ours = object()
    places = ((module, "function", original, ours),)
    first, second = Stay(places), Stay(places)
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert module.function is ours
    first.__exit__()  # once more: nothing happens
    assert module.function is ours
    second.__exit__()
    assert module.function is original


def test_what_somebody_else_has_put_there_stays():
    module = types.ModuleType("some_module")
    module.function = original = object()
    theirs = object()
    with Stay(((module, "function", original, object()),)):
        module.function = theirs
    assert module.function is theirs


def test_shortcuts_are_there_meanwhile_and_the_collector_pauses():
    held, taken = {"a": 1}, {"b": 2}
    with Stay((), ((held, "c", 3), (taken, "b", 4))):
        assert held == {"a": 1, "c": 3}
        assert taken == {"b": 2}
        assert not gc.isenabled()
        with Stay((), ()):
            pass
        assert not gc.isenabled()
    assert (held, taken, gc.isenabled()) == ({"a": 1}, {"b": 2}, True)
    stay = Stay((), ((held, "c", 3),))
    stay.__enter__()
    del stay
    assert held == {"a": 1}
    assert gc.isenabled()


@pytest.mark.usefixtures("in_c")
def test_a_stay_made_by_new_alone_does_nothing():
    stay = Stay.__new__(Stay)
    with pytest.raises((RuntimeError, AttributeError)):
        stay.__enter__()
    for wrong in (((1, "a", 2, 3),), ((torch, "a", 2),), (1,)):
        with pytest.raises((TypeError, ValueError)):
            inside((Stay(wrong),), int)


def test_modes_are_as_before():
    variable = ContextVar("variable", default=1)

    def disturb():
        variable.set(2)
        torch._C._set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_cache_enabled(False)
        torch.autocast_increment_nesting()
        torch._enable_functionalization(reapply_views=True)
        torch.overrides.BaseTorchFunctionMode().__enter__()
        torch.utils._python_dispatch.BaseTorchDispatchMode().__enter__()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inside((Surroundings(variable),), disturb)
    assert variable.get() == 1
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_autocast_cache_enabled()
    assert (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()) == (1, 0)
    assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Functionalize)
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
    assert not torch.utils._python_dispatch.is_in_torch_dispatch_mode()


def test_what_acts_when_it_is_made_acts_inside_alone():
    made = Made(torch._C._InferenceMode, True)
    for _ in range(2):
        assert not torch.is_inference_mode_enabled()
        assert inside((made,), torch.is_inference_mode_enabled)
    with pytest.raises(TypeError):
        inside((Made(torch._C._InferenceMode, "yes"),), int)
    assert not torch.is_inference_mode_enabled()


def test_a_scope_gives_a_variable_another_value_and_ends_unless_there_is_an_error():
    variable, ends = ContextVar("variable", default=None), []
    value = types.SimpleNamespace(end=lambda: ends.append(variable.get()))
    scope = Scope(variable, lambda: value, "given")
    for _ in range(2):
        with scope as given:
            assert (given, variable.get()) == ("given", value)
    assert (variable.get(), ends) == (None, [None, None])
    with pytest.raises(ZeroDivisionError), scope:
        _ = 1 / 0
    assert (variable.get(), ends) == (None, [None, None])
    with pytest.raises(ZeroDivisionError), Scope(variable, lambda: 1 / 0, None):
        pass
    assert variable.get() is None


def test_numbers_drawn_inside_are_drawn_again():
    generator = torch.Generator()
    drawn = [inside((Undrawn(generator),), torch.rand, 3, generator=generator) for _ in range(2)]
    assert torch.equal(*drawn)


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def forward(self, x):
        self.begun.set()
        self.go_on.wait(20)
        return self.linear(x)


def test_hooks_see_calls_of_other_threads_while_a_cell_is_run_to_learn_its_shapes():
    cell, seen = edbatch.cell(Slow()), []
    cell.linear.register_forward_hook(lambda *_: seen.append(threading.current_thread().name))
    other = threading.Thread(target=lambda: edbatch.batch(cell)(torch.ones(2, 3)), name="other")
    other.start()
    assert cell.begun.wait(20)
    cell.linear(torch.ones(3))
    cell.go_on.set()
    other.join()
    assert seen == [threading.current_thread().name, "other", "other"]
