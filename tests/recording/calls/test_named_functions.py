"""Torch functions that are met by name while somebody records: passive for all others, and never left behind."""

import copy
import pickle
import threading
import warnings

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import edbatch
from edbatch.recording.calls.fast_cells import RECORDS_IN_C
from edbatch.recording.calls.named_functions import named_functions
from edbatch.recording.recorder import Recorder

X = torch.randn(3, 4)
ORIGINALS = {(holder, name): getattr(holder, name) for holder, name, _ in named_functions()}
needs_compiler = pytest.mark.skipif(not RECORDS_IN_C, reason="without a C compiler no function is met by name")


def while_recording(look):
    """What `look` finds inside of a batched function."""
    found = []
    edbatch.batch(lambda x: (found.append(look(x)), x.tanh())[1])(X[:1])
    return found[0]


def are_in_place():
    return {key: getattr(*key) for key in ORIGINALS}


@needs_compiler
def test_they_are_in_place_only_while_somebody_records():
    inside = while_recording(lambda x: are_in_place())
    assert len(inside) > 50
    assert all(type(ours) is not type(ORIGINALS[key]) for key, ours in inside.items())
    assert all(now is ORIGINALS[key] for key, now in are_in_place().items())


def test_they_are_taken_back_after_an_error():
    with pytest.raises(ZeroDivisionError):
        edbatch.batch(lambda x: torch.sigmoid(x) / (1 // 0))(X)
    assert all(now is ORIGINALS[key] for key, now in are_in_place().items())


def test_they_look_like_the_functions():
    for name, same in while_recording(
        lambda x: [(f.__name__, f) for f in (torch.sigmoid, F.relu, F.gelu, torch.stack)]
    ):
        original = next(o for (_, n), o in ORIGINALS.items() if n == name and o == same) if RECORDS_IN_C else same
        assert (same.__module__, same.__doc__, repr(same)) == (original.__module__, original.__doc__, repr(original))
        assert same == original
        assert original == same
        assert hash(same) == hash(original)
        assert {original: 1}[same] == 1
        assert same != torch.tanh
        assert copy.deepcopy(same)(X).equal(original(X)) if name != "stack" else callable(copy.copy(same))
        with pytest.raises(AttributeError):
            same.nothing  # noqa: B018


def test_they_are_pickled_as_the_functions():
    """One that somebody has kept, such as a module with an activation, is the function itself when it is read again."""
    for kept in while_recording(lambda x: [torch.sigmoid, F.relu, F.linear, torch.split, torch.stack]):
        assert pickle.loads(pickle.dumps(kept)) in ORIGINALS.values() or not RECORDS_IN_C
    texts = while_recording(lambda x: [pickle.dumps(f) for f in (torch.sigmoid, F.relu)])
    assert list(map(pickle.loads, texts)) == [torch.sigmoid, F.relu]
    assert pickle.loads(texts[1]) is F.relu


def test_calls_without_lazy_values_are_those_of_torch():
    def look(x):
        plain = torch.arange(3.0)
        results = [torch.sigmoid(plain), torch.stack([plain, plain], 1), torch.max(plain, 0).indices, F.relu(plain - 1)]
        with pytest.raises(TypeError, match="sigmoid"):
            torch.sigmoid()
        with pytest.raises(TypeError, match="argument"):
            torch.cat(3)
        return all(type(result) is torch.Tensor for result in results)

    assert while_recording(look)


def test_other_threads_do_not_notice():
    found = []

    def other():
        found.append([torch.sigmoid(X), F.relu(X), torch.stack(list(X))])

    def look(x):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return torch.sigmoid(x)

    while_recording(look)
    assert all(map(torch.equal, found[0], [torch.sigmoid(X), F.relu(X), X]))


class Seen(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.functions = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


def test_modes_of_the_user_see_all_calls():
    def function(x):
        for _ in range(3):
            torch.sigmoid(x), F.relu(x), torch.stack([x, x]), torch.cat([x, x])
        with Seen() as mode:
            torch.sigmoid(x), F.relu(x), torch.stack([x, x]), torch.cat([x, x])
        seen.append(mode.functions)
        return torch.sigmoid(x)

    seen = []
    edbatch.batch(function)(X[:1])
    assert seen == [[torch.sigmoid, F.relu, torch.stack, torch.cat]]


def test_modes_around_the_batched_call_change_nothing():
    batched = edbatch.batch(lambda x: torch.sigmoid(x) * F.relu(x))
    with Seen():
        result = batched(X)
    torch.testing.assert_close(result, torch.sigmoid(X) * F.relu(X))


@needs_compiler
def test_known_calls_do_not_reach_the_recorder(monkeypatch):
    seen, torch_function = [], Recorder.torch_function
    monkeypatch.setattr(Recorder, "torch_function", lambda *args: seen.append(args[1]) or torch_function(*args))

    weight = torch.nn.Parameter(torch.ones(4))

    def function(x):
        for _ in range(10):
            a, b = torch.chunk(torch.tanh(x), 2, dim=-1)
            c = F.softmax(torch.cat([a.relu(), -b]), dim=0) * weight + 2.0 * x - x[1]
            c = weight * c
        return c

    edbatch.batch(function)(X)
    assert len(seen) < 20  # of 330 calls


def test_a_function_that_was_replaced_by_somebody_else_stays_so(monkeypatch):
    calls = []

    def theirs(x):
        calls.append(x)
        return X[0] * 2

    monkeypatch.setattr(torch, "sigmoid", theirs)
    assert while_recording(lambda x: torch.sigmoid(X[0])).equal(X[0] * 2)
    assert torch.sigmoid is theirs
    assert len(calls) == 1


def test_scripted_functions_run_inside():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(lambda_free)
    assert while_recording(lambda x: scripted(X)).equal(torch.sigmoid(X) + torch.relu(X))


def lambda_free(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x) + torch.relu(x)
