"""How ops and their static arguments are named."""

import functools
from collections import namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from names_of_types import FIRST, Color, X, assert_independent_of_order, closure, names, of_globals, step
from torch import nn
from torch.nn import functional as F

import edbatch

NAMESAKES = nn.ModuleDict({"mul": edbatch.cell(nn.Bilinear(4, 4, 4)), "sum": nn.Linear(4, 4)})


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
