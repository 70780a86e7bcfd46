"""Names of node types: the same in every process and for every order of examples, and never shared by two types."""

import enum
import functools
import gc
import os
import subprocess
import sys
import weakref
from collections import namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import edbatch
import zoo
from edbatch.frontend import paths
from edbatch.frontend.paths import find_paths

X = torch.ones(4)
FIRST, SECOND = nn.Linear(4, 4), nn.Linear(4, 4)
NAMESAKES = nn.ModuleDict({"mul": edbatch.cell(nn.Bilinear(4, 4, 4)), "sum": nn.Linear(4, 4)})
WEIGHTS = {"a": nn.Parameter(torch.ones(4)), "b": nn.Parameter(torch.ones(4))}


def names(fn, *columns, **keywords):
    found = edbatch.record(fn, *columns, **keywords).type_names
    assert len(set(found)) == len(found)
    return set(found)


def by_example(fn, *columns, **keywords):
    """The names of the nodes of every example, without sums at its end: those of all results are recorded last."""
    recording = edbatch.batch(fn).pipeline.record(columns, keywords)[0]
    found = recording.graph.type_names
    assert len(set(found)) == len(found)
    ends = [*recording.starts[1:], len(recording.types)]
    examples = [[found[t] for t in recording.types[a:b]] for a, b in zip(recording.starts, ends, strict=True)]
    for example in examples:
        while example and example[-1].startswith("sum of values"):
            example.pop()
    return examples


def assert_independent_of_order(fn, *columns, **keywords):
    backwards = [list(c)[::-1] for c in columns]
    assert by_example(fn, *columns, **keywords) == by_example(fn, *backwards, **keywords)[::-1]
    found = names(fn, *columns, **keywords)
    assert found == names(fn, *backwards, **keywords)
    assert not any("#" in name for name in found)
    return found


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda c: c.name)
def test_the_order_of_examples_does_not_change_the_names(case):
    model, columns = zoo.make(case)
    found = assert_independent_of_order(model, *columns)
    assert max(map(len, found)) < 120


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda c: c.name)
def test_the_mode_around_the_call_does_not_change_the_names(case):
    model, columns = zoo.make(case)
    training = by_example(model.train(), *columns)
    evaluation = by_example(model.eval(), *columns)
    with torch.no_grad():
        without_grad = by_example(model, *columns)
    with torch.inference_mode():
        inference = by_example(model, *columns)
    assert training == evaluation == without_grad == inference


# ---- modules and parameters by the variables that lead to them


def pick(cells):
    return lambda i: cells[i](X)


def of_globals(i):
    return SECOND(X) if i else FIRST(X)


def in_comprehension(i):
    return sum(cell(X) for cell in ([SECOND] if i else [FIRST]))


def through_another(i):
    return of_globals(i)


def by_default(i, one=nn.Linear(4, 4), *, two=nn.Linear(4, 4)):  # noqa: B008
    return two(X) if i else one(X)


class Holder:
    def __init__(self):
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def run(self, i):
        return self.two(X) if i else self.one(X)

    __call__ = run


class Model(nn.Module):
    """Holds two cells, where torch looks for them or where it does not."""

    def __init__(self, cells):
        super().__init__()
        self.cells = cells

    def forward(self, i):
        return list(self.cells.values() if hasattr(self.cells, "values") else self.cells)[i](X)


class GlobalsOfForward(nn.Module):
    def forward(self, i):
        return of_globals(i)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def closure():
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    return lambda i: two(X) if i else one(X)


def pair():
    return nn.Linear(4, 4), nn.Linear(4, 4)


def decorated():
    one, two = pair()

    @torch.enable_grad()
    def function(i):
        return two(X) if i else one(X)

    return function


def partial():
    one, two = pair()
    return functools.partial(lambda i, one, two: two(X) if i else one(X), one=one, two=two)


REACHED = {
    "closure": (closure, "one", "two"),
    "list in a closure": (lambda: pick(list(pair())), "cells.0", "cells.1"),
    "globals": (lambda: of_globals, "FIRST", "SECOND"),
    "globals in a comprehension": (lambda: in_comprehension, "FIRST", "SECOND"),
    "globals of another function": (lambda: through_another, "FIRST", "SECOND"),
    "globals of forward": (GlobalsOfForward, "FIRST", "SECOND"),
    "defaults": (lambda: by_default, "one", "two"),
    "decorated": (decorated, "one", "two"),
    "partial": (partial, "one", "two"),
    "method": (lambda: Holder().run, "one", "two"),
    "callable object": (Holder, "one", "two"),
    "object in a closure": (lambda: (lambda holder: lambda i: holder.run(i))(Holder()), "holder.one", "holder.two"),
    "module list": (lambda: Model(nn.ModuleList(pair())), "cells.0", "cells.1"),
    "list attribute": (lambda: Model(list(pair())), "cells.0", "cells.1"),
    "tuple attribute": (lambda: Model(pair()), "cells.0", "cells.1"),
    "dict attribute": (lambda: Model(dict(zip("ab", pair(), strict=True))), "cells.a", "cells.b"),
    "keys of an enum": (lambda: Model(dict(zip(Color, pair(), strict=True))), "cells.RED", "cells.BLUE"),
    "keys of tuples": (
        lambda: Model(dict(zip([("s", 1), ("s", 2)], pair(), strict=True))),
        "cells.s,1",
        "cells.s,2",
    ),
    "module dict": (lambda: Model(nn.ModuleDict(dict(zip("ab", pair(), strict=True)))), "cells.a", "cells.b"),
    "module in a closure": (
        lambda: (lambda model: lambda i: model(i))(Model(list(pair()))),
        "model.cells.0",
        "model.cells.1",
    ),
    "marked functions": (
        lambda: pick([edbatch.cell(lambda x: x * 2), edbatch.cell(lambda x: x * 3)]),
        "cells.0",
        "cells.1",
    ),
    "batched function": (
        lambda: (lambda inner: lambda i: inner([i])[0])(edbatch.batch(closure())),
        "inner.fn.one",
        "inner.fn.two",
    ),
}


@pytest.mark.parametrize(("make", "one", "two"), REACHED.values(), ids=list(REACHED))
def test_modules_are_called_by_the_way_to_them(make, one, two):
    found = assert_independent_of_order(make(), [0, 1, 1, 0])
    assert found == {f"{one}(f32[4])", f"{two}(f32[4])"}


def test_a_module_registered_twice_has_its_first_path():
    model = Model(nn.ModuleList(pair()))
    model.again = model.cells
    assert names(model, [0, 1]) == {"cells.0(f32[4])", "cells.1(f32[4])"}


def test_one_variable_name_for_two_things():
    """The nearest one has the plain name."""
    one = nn.Linear(4, 4)

    def outer(FIRST):
        return lambda i: of_globals(0) if i else FIRST(X)

    assert assert_independent_of_order(outer(one), [0, 1]) == {"FIRST(f32[4])", "FIRST'(f32[4])"}


def test_modules_made_later_are_found():
    cells = {}
    batched = edbatch.batch(lambda label: cells[label](X))
    for label in "abc":
        cells[label] = nn.Linear(4, 4)
        assert names(batched, [label]) == {f"cells.{label}(f32[4])"}


def test_many_entries():
    cells = {f"r{i}": nn.Linear(4, 4) for i in range(150)}
    data = list(range(10_000))
    assert names(lambda i: cells[i](X) * data[3], ["r140"]) == {"cells.r140(f32[4])", "operator.mul(f32[4], int)"}


CALLED = []


def own_code(*args):
    CALLED.append(args[1:])
    raise ValueError("the user's code")


class Slotted:
    __slots__ = ()
    __getattr__ = own_code


class OwnDict(dict):
    __iter__ = __len__ = items = values = own_code


class OwnList(list):
    __iter__ = __len__ = own_code


class OwnKey:
    name = property(own_code)


class Proxy:
    __class__ = property(own_code)


def test_no_code_of_the_user_runs_while_paths_are_looked_for():
    things = [Slotted(), Proxy(), OwnList([Slotted()]), {OwnKey(): X}]
    cells = OwnDict(one=FIRST)
    CALLED.clear()
    assert names(lambda i: cells["one"](X) if things else None, [0]) == {"cells.one(f32[4])"}
    assert CALLED == []


def test_an_object_that_cannot_be_read_leads_nowhere():
    class Unreadable:
        def __getattribute__(self, name):
            raise ValueError("not for you")

    class Meta(type):
        @property
        def __module__(cls):
            raise ValueError("not for you")

    things = [Unreadable(), Meta("Strange", (), {}), Meta("Strange", (), {})(), FIRST]
    assert names(lambda i: things[3](X), [0]) == {"things.3(f32[4])"}


def test_paths_of_the_model_come_before_those_of_keywords():
    class Helper:
        pass

    model, helper = Ops(), Helper()
    model.lin, helper.model = nn.Linear(4, 4), model
    model.forward = lambda i, *, helper: torch.add(helper.model.lin(X), helper.model.bias)
    assert names(model, [0], helper=helper) == {"lin(f32[4])", "torch.add(f32[4], bias)"}


def test_names_do_not_keep_models_alive():
    def use():
        model = Model(nn.ModuleList(pair()))
        names(lambda i: step(FIRST(X), model.forward), [0])
        names(lambda i: step(FIRST(X), model.zero_grad), [0])
        names(lambda i: step(FIRST(X), how=lambda: model), [0])
        return weakref.ref(model)

    model = use()
    gc.collect()
    assert model() is None


def test_one_recording_looks_for_paths_once(monkeypatch):
    walks = []
    monkeypatch.setattr(paths, "find_paths", lambda root: walks.append(root) or find_paths(root))
    batched = edbatch.batch(lambda i: step(FIRST(X), lambda: i))
    for number in (1, 2):
        names(batched, range(8))
        assert len(walks) == number


def test_modules_and_tensors_given_by_keyword():
    def function(i, *, cells, scale):
        return cells[i](X) * scale["by"]

    scale = {"by": torch.ones(4)}
    found = names(function, ["a", "b"], cells={"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}, scale=scale)
    assert found == {"cells.a(f32[4])", "cells.b(f32[4])", "operator.mul(f32[4], scale.by)"}


def test_what_no_variable_leads_to_is_numbered():
    """The last resort: the names then depend on the order of appearance, but two types never share one."""
    examples = [(nn.Linear(4, 4), nn.Parameter(X)), (nn.Linear(4, 4), nn.Parameter(X))]
    found = names(lambda example: torch.add(example[0](X), example[1]), examples)
    shared = "torch.add(f32[4], shared f32[4])"
    assert found == {"Linear(f32[4])", "Linear(f32[4]) #2", shared, f"{shared} #2"}


# ---- parameters in ops


class Ops(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias, self.scale = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        self.weight = nn.Parameter(torch.ones(8, 4))
        self.register_buffer("mean", torch.ones(4))

    def forward(self, i):
        x = F.relu(X * self.scale)
        upper, lower = self.weight.chunk(2)
        results = [
            lambda: torch.add(x, self.bias),
            lambda: torch.add(x, self.scale),
            lambda: torch.add(x, self.mean),
            lambda: torch.add(x, WEIGHTS["b" if i else "a"]),
            lambda: torch.mv(upper, x),
            lambda: torch.mv(lower, x),
            lambda: torch.mv(upper @ lower, x),
            lambda: torch.mv(lower @ upper, x),
        ]
        return results[i]()


def test_parameters_in_ops_are_called_by_their_paths():
    found = assert_independent_of_order(Ops(), range(8))
    assert {f"torch.add(f32[4], {name})" for name in ("bias", "scale", "mean", "WEIGHTS.b")} <= found
    assert {f"torch.mv(Tensor.chunk(weight, 2)[{i}], f32[4])" for i in (0, 1)} <= found


def test_long_chains_of_parameters_have_short_names():
    weight = nn.Parameter(torch.eye(4))

    def function(steps):
        product = weight
        for _ in range(steps):
            product = product @ product
        return torch.mv(product, FIRST(X))

    found = assert_independent_of_order(function, [40, 41, 1500])
    assert len(found) == 4
    assert max(map(len, found)) < 100


# ---- ops and arguments


def test_functions_of_one_name_are_told_apart():
    """A function of torch, a method, an operator, a property and modules of the same names."""
    calls = [
        lambda x: torch.mul(x, x), lambda x: x.mul(x), lambda x: x * x, lambda x: NAMESAKES["mul"](x, x),
        lambda x: x.sum(), lambda x: torch.sum(x), lambda x: NAMESAKES["sum"](x), lambda x: x + x,
        lambda x: torch.stack([x, x]).sum(0), lambda x: torch.tanh(torch.stack([x, x])).sum(0),
        lambda x: torch.stack([x, x]).softmax(0)[0], lambda x: torch.tanh(torch.stack([x, x])).softmax(0)[0],
        lambda x: NAMESAKES["sum"](torch.stack([x, x])).sum(0),
        lambda x: torch.stack([x, x]).T, lambda x: torch.stack([x, x]).mT,
    ]  # fmt: skip
    found = assert_independent_of_order(lambda i: calls[i](FIRST(X)), range(len(calls)))
    assert {"torch.mul(f32[4], f32[4])", "Tensor.mul(f32[4], f32[4])", "operator.mul(f32[4], f32[4])"} <= found
    assert {"NAMESAKES.mul(f32[4], f32[4])", "NAMESAKES.sum(f32[4])", "NAMESAKES.sum(rows f32[4])"} <= found
    assert {"Tensor.sum(f32[4])", "torch.sum(f32[4])", "sum of values f32[4]", "sum of rows f32[4]"} <= found
    assert {"Tensor.T(f32[2,4])", "Tensor.mT(f32[2,4])", "stack of 2 values f32[4]"} <= found


def test_what_torch_fills_in_is_not_shown():
    target = torch.tensor(1)
    assert names(lambda i: F.cross_entropy(FIRST(X), target, ignore_index=i), [-100, -1]) == {
        "FIRST(f32[4])",
        "functional.cross_entropy(f32[4], i64[])",
        "functional.cross_entropy(f32[4], i64[], ignore_index=-1)",
    }


@dataclass(frozen=True)
class Options:
    color: Color
    function: object


class Opaque:
    pass


class Talkative:
    def __repr__(self):
        return f"<Talkative at {hex(id(self))}>"


@edbatch.cell(static="how")
def step(x, how):
    return x * 2


Point = namedtuple("Point", "x y")
STATIC = {
    "'word'": lambda: "word",
    "2": lambda: 2,
    "None": lambda: None,
    "(1, 'a')": lambda: (1, "a"),
    "{'k': 1}": lambda: {"k": 1},
    "Point(1, 2)": lambda: Point(1, 2),
    "Color.RED": lambda: Color.RED,
    "Opaque": Opaque,
    "<Talkative>": Talkative,
    "float32": lambda: torch.float32,
    "torch.tanh": lambda: torch.tanh,
    "functional.gelu": lambda: F.gelu,
    "of_globals": lambda: of_globals,
    "closure.lambda": closure,
    "Color": lambda: Color,
    "Options(color=Color.BLUE, function=closure.lambda)": lambda: Options(Color.BLUE, closure()),
    "partial torch.clamp(min=0)": lambda: functools.partial(torch.clamp, min=0),
    "{'a', 'b', 'c'}": lambda: frozenset("cab"),
    "[1, 5 x 0]": lambda: [1, 0, 0, 0, 0, 0],
}


@pytest.mark.parametrize(("text", "make"), STATIC.items(), ids=list(STATIC))
def test_static_arguments(text, make):
    assert names(lambda i: step(FIRST(X), make()), [0]) == {"FIRST(f32[4])", f"step(f32[4], {text})"}


def test_long_static_arguments_are_cut():
    texts = ["x" * 1000, "x" * 1000 + "y", "two\nlines"]
    found = assert_independent_of_order(lambda i: step(FIRST(X), texts[i]), range(3))
    assert len(found) == 4
    assert max(map(len, found)) < 90


@dataclass(eq=False)
class Cyclic:
    left: object = None
    right: object = None
    unset: int = field(init=False)

    def __post_init__(self):
        self.left = self.right = self


@dataclass(eq=False)
class Failing:
    words: object = None

    def __getattribute__(self, name):
        if name == "words":
            raise ValueError("not for you")
        return super().__getattribute__(name)


class Silent:
    def __repr__(self):
        raise ValueError("no words")


@pytest.mark.parametrize("kind", [Cyclic, Failing, Silent])
def test_no_static_argument_makes_naming_fail(kind):
    value = kind()
    (found,) = names(lambda i: step(FIRST(X), value), [0]) - {"FIRST(f32[4])"}
    assert found.startswith(f"step(f32[4], {kind.__name__}")
    assert len(found) < 90


def test_fields_that_were_never_set_are_left_out():
    value = Cyclic()
    value.left, value.right = 1, None
    assert "step(f32[4], Cyclic(left=1, right=None))" in names(lambda i: step(FIRST(X), value), [0])


@pytest.mark.parametrize("kind", [tuple, frozenset])
def test_only_the_beginning_of_large_static_arguments_is_read(kind):
    read = []

    class Word:
        def __repr__(self):
            read.append(self)
            return "word"

    value = Options(Color.RED, kind(Word() for _ in range(300_000)))
    (found,) = names(lambda i: step(FIRST(X), value), [0]) - {"FIRST(f32[4])"}
    assert len(read) <= 1000
    assert found.startswith("step(f32[4], Options(color=Color.RED, function=")


def test_many_operands_are_all_counted():
    cell = edbatch.cell(lambda x: X + 0)
    assert names(lambda n: cell([X] * n), [2000, 3000]) == {"cell([2000 x f32[4]])", "cell([3000 x f32[4]])"}


def test_structure_of_arguments_and_numbers():
    calls = [(X, 1), [X, 1], {"a": X, "b": 1}, {"b": 1, "a": X}, X, 1, 1.0, torch.tensor(1), Point(X, X), [X] * 7]
    cell = edbatch.cell(lambda x: X + 0)
    found = assert_independent_of_order(lambda i: cell(calls[i]), range(len(calls)))
    assert {"cell((f32[4], int))", "cell([f32[4], int])", "cell({'a': f32[4], 'b': int})", "cell(float)"} <= found
    assert {"cell(int)", "cell(i64[])", "cell(Point(f32[4], f32[4]))", "cell([7 x f32[4]])"} <= found
    assert len(found) == len(calls)


def test_methods_are_called_by_their_class_and_object():
    class Tree(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.children_ = nn.ModuleList(Tree(0) for _ in range(number))
            self.linear = nn.Linear(4, 4)

        @edbatch.cell
        def join(self, x):
            return self.linear(x)

        def forward(self, i):
            return self.children_[i].join(X)

    start = "test_methods_are_called_by_their_class_and_object.Tree.join"
    found = assert_independent_of_order(Tree(2), [0, 1])
    assert found == {f"{start}(children_.0, f32[4])", f"{start}(children_.1, f32[4])"}


def test_autograd_functions_are_called_by_their_class():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    class Triple(Double):
        pass

    calls = [Double, Triple]
    found = assert_independent_of_order(lambda i: calls[i].apply(FIRST(X)), [0, 1])
    assert found == {"FIRST(f32[4])", "Double.apply(f32[4])", "Triple.apply(f32[4])"}


# ---- what surrounds a call


def test_only_what_differs_from_the_whole_call_is_named():
    @torch.no_grad()
    def without_grad(x):
        return FIRST(x) + x

    def function(i):
        x = SECOND(X)
        if i == 0:
            return FIRST(x) + x
        if i == 1:
            return without_grad(x)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=i == 2):
            return FIRST(x)

    found = assert_independent_of_order(function, range(4))
    plain = {"SECOND(f32[4])", "FIRST(f32[4])", "sum of values f32[4]"}
    added = {"FIRST(f32[4]) without grad", "sum of values f32[4] without grad"}
    assert found == plain | added | {"FIRST(f32[4]) with autocast to cpu bfloat16"}
    with torch.no_grad():
        assert names(function, [0, 1]) == plain
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert names(function, [2, 3]) == {"SECOND(f32[4])", "FIRST(bf16[4])", "FIRST(bf16[4]) without autocast"}


def test_a_module_in_another_mode_than_the_model_has_the_same_name():
    model = Model(nn.ModuleList([nn.Dropout(), nn.Linear(4, 4)]))
    found = names(model, [0, 1])
    model.cells[0].eval()
    assert names(model, [0, 1]) == found


def test_the_mode_of_a_function_of_torch_is_not_named():
    def function(i, *, training):
        return F.dropout(FIRST(X), 0.25, training)

    found = names(function, [0], training=True)
    assert found == {"FIRST(f32[4])", "functional.dropout(f32[4], p=0.25)"}
    assert names(function, [0], training=False) == found
    batched = edbatch.batch(lambda x, on: F.dropout(x, 1.0, on))
    assert batched(torch.ones(2, 4), [True, False]).tolist() == [[0] * 4, [1] * 4]


def test_the_device_of_the_model_is_not_named():
    from edbatch.frontend.names import Names
    from edbatch.frontend.paths import Paths
    from edbatch.spec import Spec

    gpu, cpu = Spec((4,), torch.float32, torch.device("cuda:1")), Spec((4,), torch.float32, torch.device("cpu"))
    on_gpu, on_cpu = (Names(Paths(FIRST), {}, torch.device(where)) for where in ("cuda:0", "cpu"))
    assert [on_gpu.spec(gpu), on_gpu.spec(cpu)] == ["f32[4]", "f32[4]@cpu"]
    assert [on_cpu.spec(gpu), on_cpu.spec(cpu)] == ["f32[4]@cuda", "f32[4]"]


# ---- other processes

PROGRAM = """
import json, sys
import torch
import edbatch, zoo, test_type_names as program

reverse = sys.argv[1] == "reverse"
found = {}
for case in zoo.CASES[3:7]:
    model, columns = zoo.make(case)
    found[case.name] = sorted(edbatch.record(model, *[list(c)[::-1 if reverse else 1] for c in columns]).type_names)
for name, (make, *_) in program.REACHED.items():
    found[name] = sorted(edbatch.record(make(), [1, 0] if reverse else [0, 1]).type_names)
for name, make in program.STATIC.items():
    value = make()
    found[name] = sorted(edbatch.record(lambda i: program.step(program.FIRST(program.X), value), [0]).type_names)
print(json.dumps(found))
"""


def test_another_process_gives_the_same_names():
    def start(seed, order):
        path = os.pathsep.join([os.path.dirname(__file__), os.path.dirname(zoo.__file__)])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PROGRAM, order]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    processes = [start("1", "forward"), start("2", "reverse")]
    first, second = (process.communicate()[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert first == second
    assert "#" not in first
