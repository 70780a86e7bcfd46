"""Modules and parameters are named by the variables that lead to them."""

import functools
import gc
import weakref

import pytest
import torch
from names_of_types import (
    FIRST,
    SECOND,
    Color,
    Model,
    X,
    assert_independent_of_order,
    closure,
    names,
    of_globals,
    pick,
    step,
)
from torch import nn
from torch.nn import functional as F

import edbatch
from edbatch.recording.program import paths
from edbatch.recording.program.paths import find_paths

WEIGHTS = {"a": nn.Parameter(torch.ones(4)), "b": nn.Parameter(torch.ones(4))}


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


class GlobalsOfForward(nn.Module):
    def forward(self, i):
        return of_globals(i)


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
