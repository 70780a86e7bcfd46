"""Cells that a recording knows well: their calls, and what is seen of their modules meanwhile and afterwards."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
import threading
from os.path import dirname

import numpy as np
import pytest
import torch
from torch import nn

import edbatch
from edbatch.recording import interception
from edbatch.recording.calls import fast_cells
from edbatch.recording.program import module_watch
from edbatch.recording.recorder import Recorder
from edbatch.recording.values.lazy import Lazy, PendingSum

X = torch.randn(4, 3)


class Scale(nn.Module):
    """The sum of its arguments, times a parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.args = "an attribute"

    def forward(self, *args, bias=0.0):
        flat = [a for arg in args for a in (arg if isinstance(arg, tuple) else (arg,))]
        return self.weight * sum(a.sum() for a in flat) + bias


class Pair(Scale):
    def forward(self, *args, bias=0.0):
        value = super().forward(*args, bias=bias)
        return value, value.tanh()


class Three(Scale):
    def forward(self, *args, bias=0.0):
        value = super().forward(*args, bias=bias)
        return {"a": value, "b": (value.tanh(), -value)}


def seen(inside, cell=None, examples=X, calls=3):
    """What a function finds of a cell after some calls of it in a recording."""
    found = []
    cell = cell or edbatch.cell(Scale())

    def function(x):
        for _ in range(calls):
            y = cell(x, 2)
        found.append(inside(cell))
        return y

    edbatch.batch(function)(examples)
    assert type(cell) is cell.__class__
    return found[-1]


CALLS = {
    "ints alone": lambda cell, x, n: cell(n, n + 1),
    "floats": lambda cell, x, n: cell(x, 0.5 * n),
    "a tuple": lambda cell, x, n: cell((x, x), n),
    "tuples of numbers": lambda cell, x, n: cell((n, x), (0.5, x), x),
    "an empty tuple": lambda cell, x, n: cell((), x),
    "a tuple of one": lambda cell, x, n: cell((x,)),
    "more arguments": lambda cell, x, n: cell(*[x] * n),
    "fewer and more": lambda cell, x, n: cell(*[x] * (1 + n % 2)),
    "now and then a keyword": lambda cell, x, n: cell(x, bias=0.5) if n % 2 else cell(x),
    "values and numbers in turn": lambda cell, x, n: cell(x) if n % 2 else cell(n),
    "a pending sum": lambda cell, x, n: cell(x + x, (x + x + x, n)),
    "a parameter": lambda cell, x, n: cell(cell.weight if n == 2 else x, 1),
    "rows": lambda cell, x, n: cell(torch.stack([x, x])),
    "a list": lambda cell, x, n: cell([x.sum(), x.sum()][0], x),
    "a tensor": lambda cell, x, n: cell(torch.ones(3), x),
    "a bool": lambda cell, x, n: cell(x, *([] if n else [x])),
}


@pytest.mark.parametrize("cls", [Scale, Pair, Three])
@pytest.mark.parametrize("name", CALLS)
def test_calls_are_equal_to_one_by_one(name, cls):
    cell, call = edbatch.cell(cls()), CALLS[name]

    def function(x):
        results = [call(cell, x, n) for n in (1, 1, 1, 2, 3, 3, 3, 2)]
        first = [r if not isinstance(r, dict) else r["b"] for r in results]
        return torch.stack([(r if not isinstance(r, tuple) else r[1]).sum() for r in first])

    edbatch.check(edbatch.batch(function), X)


needs_compiler = pytest.mark.skipif(
    not fast_cells.RECORDS_IN_C and shutil.which("cc") is None, reason="without a C compiler no calls are known"
)


def long_way(monkeypatch, function):
    """The calls that take the long way when a function is batched over X: (first calls, calls that are learned)."""
    first, again = [], []
    call, signature_of = Recorder.call, interception.signature_of
    monkeypatch.setattr(Recorder, "call", lambda self, *args: first.append(args) or call(self, *args))
    monkeypatch.setattr(interception, "signature_of", lambda *args: again.append(args) or signature_of(*args))
    edbatch.batch(function)(X)
    return len(first), len(again)


@needs_compiler
def test_few_calls_go_the_long_way(monkeypatch):
    cells = nn.ModuleList([edbatch.cell(Pair()), edbatch.cell(Pair())])  # found by an index, not by a name

    def function(x):
        state = x, cells[0].weight
        for n in range(20):
            state = cells[n % 2](n, state)
        return state[0]

    assert long_way(monkeypatch, function) == (2, 2)


def check_same_items():
    one, other = {"a": 1.5, "b": [2]}, {}
    dicts, items = [one, other], [("a", one["a"], "b", one["b"]), ()]
    assert module_watch.same_items(dicts, items)
    for key, value in (("b", [2]), ("c", 3)):
        one[key] = value  # another object, another item
        assert not module_watch.same_items(dicts, items)
        one.pop("c", None)
    one["b"] = items[0][3]
    assert module_watch.same_items(dicts, items)
    one["b"] = one.pop("a")
    one["c"] = items[0][3]
    assert not module_watch.same_items(dicts, items)
    assert not module_watch.same_items([other, other], items)


def test_items_that_are_the_same():
    check_same_items()


WITHOUT = """
import sys
sys.modules["edbatch.recording._calls"] = sys.modules["edbatch.torch_state._inside"] = None
import torch, edbatch
from edbatch.recording.interception import ModuleCall, call_module
assert ModuleCall(None, call_module) is call_module
from test_fast_cells import CALLS, X, Three, check_same_items
check_same_items()
cell = edbatch.cell(Three())
for call in CALLS.values():
    edbatch.check(lambda x: [call(cell, x, n)["a"] for n in (1, 1, 1, 2, 3, 3)], X)
batched = edbatch.batch(cell)
batched(X)
assert "recorded in Python" in batched.explain()
"""


def test_all_calls_can_go_the_long_way():
    """As where the package was installed without a C compiler."""
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, env={**os.environ, "PYTHONPATH": dirname(__file__)})


@needs_compiler
def test_numbers():
    """What is recorded grows, is read without a copy, and then grows no more."""
    numbers = fast_cells.Numbers()
    assert np.frombuffer(numbers, np.int64).tolist() == []
    for n in range(100):
        numbers.append(n)
        numbers.extend((-n, 1 << 62))
    with pytest.raises(OverflowError):
        numbers.extend([1, 1 << 63])
    assert len(numbers) == 300
    read = np.frombuffer(numbers, np.int64)
    assert read.tolist() == [x for n in range(100) for x in (n, -n, 1 << 62)]
    with pytest.raises(BufferError, match="cannot grow"):
        numbers.append(1)
    del read
    numbers.append(1)


def test_the_module_is_itself():
    cell = edbatch.cell(Scale())
    assert seen(lambda c: c is cell, cell)
    assert seen(lambda c: c.args) == "an attribute"
    assert seen(lambda c: c.__class__) is Scale
    assert seen(type) is Scale
    assert seen(lambda c: isinstance(c, Scale) and isinstance(c, nn.Module))
    assert seen(repr) == "Scale()"
    assert seen(lambda c: sorted(c.state_dict())) == ["weight"]
    assert seen(lambda c: c.forward.__self__ is c)


def test_attributes_can_be_set():
    cell = edbatch.cell(Scale())
    seen(lambda c: setattr(c, "note", 3), cell)
    assert cell.note == 3


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_copy_made_meanwhile_is_of_the_own_class(copied):
    found = seen(copied)
    assert type(found) is Scale
    x = torch.ones(3)
    torch.testing.assert_close(found(x), found.weight * 3)


def test_a_module_that_is_aliased_meanwhile():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = edbatch.cell(Scale())

        def forward(self, x):
            self.alias = self.cell
            assert self.alias is self.cell
            return self.alias(self.cell(x), self.cell(x))

    model = Model()
    edbatch.check(edbatch.batch(model), X)
    assert model.alias is model.cell
    assert [type(module) for module in model.modules()] == [Model, Scale]


def test_a_sequential_can_be_indexed():
    cell = edbatch.cell(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    batched = edbatch.batch(lambda x: cell(cell(cell(x))) + cell[0](cell[1](x)) + len(cell))
    torch.testing.assert_close(batched(X), batched.one_by_one(X))
    assert type(cell) is nn.Sequential


def test_inside_a_cell_the_class_is_its_own():
    classes = []

    class Looking(Scale):
        def forward(self, *args):
            classes.append((type(self), type(other)))
            return super().forward(*args)

    cell, other = edbatch.cell(Looking()), edbatch.cell(Scale())

    def function(x):
        for _ in range(3):
            y = cell(x) + other(x)
        for _ in range(3):
            y = y + cell(x, 1)  # a new signature: the cell is run to be captured
        return y

    edbatch.batch(function)(X)
    assert set(classes) == {(Looking, Scale)}


def test_an_error_leaves_nothing_behind():
    cell = edbatch.cell(Scale())

    def function(x):
        for _ in range(3):
            cell(x)
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        edbatch.batch(function)(X)
    assert type(cell) is Scale


def test_a_shape_error_of_a_known_cell_names_the_users_line():
    cell = nn.Linear(3, 3)

    def function(x):
        for _ in range(3):
            x = cell(x)
        return cell(x[:2])

    with pytest.raises(RuntimeError) as error:
        edbatch.batch(function)(X)
    assert "return cell(x[:2])" in error.value.__notes__[0]


def test_grad_modes_are_part_of_what_is_known():
    cell = edbatch.cell(Scale())

    def function(x):
        for _ in range(3):
            y = cell(x)
        with torch.no_grad():
            for _ in range(3):
                z = cell(x)
        return cell(y) + cell(z)

    batched = edbatch.batch(function)
    batched(X).sum().backward()
    ours, cell.weight.grad = cell.weight.grad, None
    batched.one_by_one(X).sum().backward()
    torch.testing.assert_close(ours, cell.weight.grad)


def test_values_of_another_call_are_tensors_for_a_known_cell():
    cell, kept = edbatch.cell(Scale()), []

    def function(x):
        for _ in range(3):
            cell(x)
        kept.append(x)
        return cell(kept[0])

    batched = edbatch.batch(function)
    batched(X)
    torch.testing.assert_close(batched(X + 1), torch.stack([cell(X[0])] * len(X)))


def test_a_batched_function_and_a_plain_loop_inside():
    cell = edbatch.cell(Scale())
    inner = edbatch.batch(lambda x: cell(cell(cell(x))))

    def function(x):
        for _ in range(3):
            x = cell(x)
        return cell(x) * (inner(X).sum() + inner.one_by_one(X).sum()).detach()

    batched = edbatch.batch(function)
    torch.testing.assert_close(batched(X), batched.one_by_one(X))


def test_a_cell_with_several_signatures():
    """Some calls take the short way, all are right, whatever the order."""
    cell = edbatch.cell(Scale())

    def function(x):
        for n in range(12):
            wide = (x * n).unsqueeze(0)
            x = cell(cell(wide)[0]) + cell(x)
        return x * 1e-3

    edbatch.check(function, X)


@needs_compiler
def test_few_signatures_of_a_cell_are_known(monkeypatch):
    cell = edbatch.cell(Scale())

    def function(signatures):
        def inside(x):
            for n in range(100):
                cell(*[x] * (n % signatures + 1))
            return x

        return inside

    assert long_way(monkeypatch, function(4)) == (4, 4 + 3)  # of the first call it is not yet known that it is a cell's
    assert long_way(monkeypatch, function(5))[1] > 4 * 20 - 5  # the fifth one always goes the long way


def test_one_model_in_many_threads():
    """Some record, some call the same modules plainly, with numbers alone and with values."""
    cell, table = edbatch.cell(Scale()), nn.Embedding(5, 3)
    start = threading.Barrier(4)
    expected = {n: (cell(cell(X[0])), table(torch.tensor(n))) for n in range(5)}
    failures = []

    def function(x, n):
        for _ in range(30):
            y = table(n)
            z = cell(x)
        return y + cell(z)

    batched = edbatch.batch(function)
    numbers = [0, 1, 2, 3]
    whole = batched.one_by_one(X, numbers).detach()

    def work(records):
        try:
            start.wait()
            for n in range(100):
                if records:
                    torch.testing.assert_close(batched(X, numbers), whole)
                else:
                    torch.testing.assert_close(cell(cell(X[0])), expected[n % 5][0])
                    torch.testing.assert_close(table(torch.tensor(n % 5)), expected[n % 5][1])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures
    assert (type(cell), type(table)) == (Scale, nn.Embedding)


def test_a_number_that_is_too_large_leaves_nothing_behind():
    table, layer = nn.Embedding(10, 3), nn.Linear(3, 3)

    def function(x, n):
        table(3), table(3)
        try:
            y = table(n)
        except edbatch.EdbatchError as error:
            assert "does not fit into 64 bits" in str(error)  # noqa: PT017
            y = x
        return layer(x) + layer(y)

    batched = edbatch.batch(function)
    for _ in range(5):
        found = batched(X, [1, 1 << 70, 2, -(1 << 64)])
    rows = [table.weight[1], X[1], table.weight[2], X[3]]
    torch.testing.assert_close(found, layer(X) + layer(torch.stack(rows)))


@pytest.mark.parametrize("slots", [(), ("kind",), ("ref",)])
@pytest.mark.parametrize("cls", [Lazy, PendingSum])
def test_a_lazy_value_made_by_its_class_alone_is_an_error(cls, slots):
    layer = nn.Linear(3, 3)

    def function(x):
        for h in (layer(x), layer(x)):
            whole, empty = h + x if cls is PendingSum else h, cls()
            for slot in slots:
                setattr(empty, slot, getattr(whole, slot))
            with pytest.raises(AttributeError):
                layer(empty)
        return x

    edbatch.batch(function)(X)
