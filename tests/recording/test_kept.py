"""What a function leaves on objects is a tensor after the call, with its gradients."""

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import edbatch
from edbatch.cells import compiled
from edbatch.recording.values import lazy

pytestmark = pytest.mark.skipif(not lazy.ARE_TENSORS, reason="needs the C part")


class State(NamedTuple):
    h: Any
    c: Any


@dataclass
class Tree:
    x: torch.Tensor
    children: list["Tree"] = field(default_factory=list)
    state: Any = None
    notes: dict = field(default_factory=dict)


class Slotted:
    __slots__ = ("value",)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3, dtype=torch.float64)
        self.holder = Slotted()
        self.seen = []

    def forward(self, tree):
        hs = [self(child)[0] for child in tree.children]
        h = torch.tanh(self.linear(tree.x + sum(hs)) if hs else self.linear(tree.x))
        tree.state = State(h, (h * 2, "text"))
        tree.notes["rows"] = torch.stack([h, tree.x])
        tree.notes["sum"] = h + tree.x
        self.last, self.holder.value = h, h * 3
        self.seen.append(h + 1)
        return h, h.sum()


def trees():
    generator = torch.Generator().manual_seed(0)

    def tree(*children):
        return Tree(torch.randn(3, dtype=torch.float64, generator=generator), list(children))

    return [tree(tree(), tree(tree())), tree(), tree(tree(), tree(), tree())]


def left(model, examples):
    """All that a call left behind, in order."""
    found, waiting = [model.last, model.holder.value, *model.seen], list(examples)
    for tree in waiting:
        found += [tree.state.h, tree.state.c[0], tree.notes["rows"], tree.notes["sum"]]
        waiting += tree.children
    return found


def gradients(model, tensors):
    loss = sum((t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in tensors)
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("key", [None, id])
def test_state_is_left_as_tensors_with_gradients(key):
    model = Encoder()
    plain, ours, theirs = copy.deepcopy(model), trees(), trees()
    batched = edbatch.batch(model, key=key)
    for _ in range(2):
        model.seen, plain.seen = [], []
        results, _ = batched(ours)
        expected = [plain(tree)[0] for tree in theirs]
        found = left(model, ours)
        assert all(type(t) is torch.Tensor for t in found)
        assert type(ours[0].state) is State
        assert ours[0].state.c[1] == "text"
        torch.testing.assert_close(found, left(plain, theirs))
        pairs = zip(
            gradients(model, [*found, *results]), gradients(plain, [*left(plain, theirs), *expected]), strict=True
        )
        for a, b in pairs:
            torch.testing.assert_close(a, b)
    if key is not None:
        assert "leaves values on objects" in batched.explain()


def test_without_gradients_state_is_left_too():
    model, examples = Encoder(), trees()
    with torch.no_grad():
        edbatch.batch(model)(examples)
    assert not model.last.requires_grad
    torch.testing.assert_close(
        model.last, torch.tanh(model.linear(examples[2].x + sum(c.state.h for c in examples[2].children)))
    )


def test_a_value_that_nobody_finds_behaves_like_its_tensor():
    held = set()

    def function(x):
        h = x * WEIGHT
        held.update({(h, torch.stack([h, x]))})
        return h.sum()

    box = {"held": held}
    edbatch.batch(lambda x: function(x))([X[0]])
    ((h, rows),) = box["held"]
    expected = X[0] * WEIGHT
    assert isinstance(h, torch.Tensor)
    torch.testing.assert_close(h + 0, expected)
    torch.testing.assert_close(2 * h[1] - h.sum(), 2 * expected[1] - expected.sum())
    torch.testing.assert_close(torch.cat([h, h]), torch.cat([expected, expected]))
    torch.testing.assert_close(rows.sum(0), expected + X[0])
    torch.testing.assert_close(sum([h, h]), 2 * expected)
    assert h.tolist() == expected.tolist()
    assert float(h.detach()[0]) == float(expected.detach()[0])
    assert h.shape == expected.shape
    assert h.requires_grad
    torch.testing.assert_close(copy.deepcopy(h.detach()), expected.detach())
    (gradient,) = torch.autograd.grad(h.sum(), WEIGHT)
    torch.testing.assert_close(gradient, X[0])
    h += 1
    torch.testing.assert_close(h * 1, expected + 1)


X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
WEIGHT = nn.Parameter(torch.arange(1.0, 4.0, dtype=torch.float64))


class Stateful(nn.Module):
    """Goes on from the state that the last call left."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(3, 3, dtype=torch.float64)
        self.state = None

    def forward(self, x):
        h = torch.tanh(self.cell(x)) if self.state is None else torch.tanh(self.cell(x) + self.state)
        self.state = h
        return h


def test_state_of_the_last_call_is_used_in_the_next():
    model = Stateful()
    plain = copy.deepcopy(model)
    batched = edbatch.batch(model)
    for _ in range(3):
        torch.testing.assert_close(batched(X), torch.stack([plain(x) for x in X]))
        torch.testing.assert_close(model.state, plain.state)
    for a, b in zip(gradients(model, [model.state]), gradients(plain, [plain.state]), strict=True):
        torch.testing.assert_close(a, b)


def test_values_that_are_hidden_are_operands_of_the_next_call():
    held = []
    hidden = {0: lambda: held}
    function = edbatch.batch(lambda x: (hidden[0]().append(x * WEIGHT), x)[1])
    function(X[:1])
    found = edbatch.batch(lambda x, kept: x * 2 + kept)([X[1]], [held[0] + 0])
    torch.testing.assert_close(found[0], X[1] * 2 + X[0] * WEIGHT)
    torch.testing.assert_close(edbatch.batch(lambda x: x * held[0])(X), X * (X[0] * WEIGHT))


def test_a_tensor_of_the_caller_that_was_written_has_the_values_after_the_call():
    def rows(x, i):
        table[i] = x * WEIGHT
        return x.sum()

    def total(x, i):
        nonlocal table
        table[0] += x * WEIGHT
        table[1, 2] = x[0]
        return x.sum()

    for function in (rows, total):
        table = torch.zeros(4, 3, dtype=torch.float64)
        edbatch.batch(function)(X, list(range(4)))
        ours, table = table, torch.zeros(4, 3, dtype=torch.float64)
        for i, x in enumerate(X):
            function(x, i)
        torch.testing.assert_close(ours, table)
        assert ours.requires_grad
        for a, b in zip(*[torch.autograd.grad((t * X).sum(), WEIGHT) for t in (ours, table)], strict=True):
            torch.testing.assert_close(a, b)


def test_nothing_is_kept_of_functions_that_leave_nothing(as_recorded):
    batched = edbatch.batch(lambda x: ((x * WEIGHT).sum(), x * 2))
    recorded, results = batched.pipeline.record_examples((X,), {})
    assert not results.kept
    assert len(recorded.types) == 12


def test_an_error_caught_in_a_capture_keeps_no_values_alive(monkeypatch):
    """As by an import of torch's at first use: it holds the frame that it was caught in, which holds it and the frames
    around. That is garbage, but not collected yet."""
    calls, original = [], compiled.compile_cell

    def compile_cell(*args, **kwargs):
        try:
            raise ImportError
        except ImportError as error:
            caught = error  # noqa: F841
        return original(*args, **kwargs)

    def function(x):
        calls.append(0)
        h = torch.tanh(x)
        return torch.exp(h) + h

    monkeypatch.setattr(compiled, "compile_cell", compile_cell)
    xs = list(torch.randn(4, 3, dtype=torch.float64))
    batched = edbatch.batch(function, stack=False, key=id)
    for _ in range(3):
        torch.testing.assert_close(batched(xs), [torch.tanh(x).exp() + torch.tanh(x) for x in xs])
    assert len(calls) == 4
    assert "key is not used" not in batched.explain()
