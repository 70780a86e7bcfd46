"""Keys of signatures: the short cuts for calls that a recording knows find what `Parts` builds, and nothing else."""

import math
import operator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import edbatch
from edbatch.layout.layout import Slot
from edbatch.recording import interception, recorder
from edbatch.recording.calls import fast_cells, fast_functions
from edbatch.recording.calls.signature import Parts, lasting_key
from edbatch.recording.program.marking import active
from edbatch.spec import Spec

X = torch.arange(6, dtype=torch.float64).view(2, 3) / 4
WEIGHT = nn.Parameter(torch.eye(3, dtype=torch.float64))
BIAS = nn.Parameter(torch.ones(3, dtype=torch.float64))
START = torch.ones(3, dtype=torch.float64)


class Sum(nn.Module):
    """The sum of all tensors in its arguments."""

    def forward(self, *args, how=None, **kwargs):
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        return sum((a.double().sum() for a in leaves if isinstance(a, torch.Tensor)), BIAS), BIAS * 2


PLAIN, STATIC = edbatch.cell(Sum()), edbatch.cell(Sum(), static="how")


def values_of(x):
    """What arguments are made of, by name."""
    return {
        "value": x, "computed": x * 1.5, "number": x.sum(), "sum": x + x, "growing": 0 + x, "rows": torch.stack([x, x]),
        "parameter": BIAS, "tensor": START,
    }  # fmt: skip


names = st.sampled_from(["value", "computed", "number", "sum", "growing", "rows", "parameter", "tensor"])
ints = st.integers(-3, 3)
floats = st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0, math.inf, -math.inf, math.nan])
constants = st.one_of(ints, floats, st.booleans(), st.none(), st.sampled_from(["sum", "mean", "keywords"]))
parts = st.one_of(names.map(lambda name: ("value", name)), constants.map(lambda c: ("constant", c)))
plain_parts = st.one_of(names.map(lambda name: ("value", name)), st.one_of(ints, floats).map(lambda c: ("constant", c)))


def containers(inner):
    few = st.lists(inner, max_size=3)
    named = st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    return st.one_of(few.map(lambda v: ("tuple", v)), few.map(lambda v: ("list", v)), named.map(lambda v: ("dict", v)))


arguments = st.recursive(parts, containers, max_leaves=4)
flat_arguments = st.one_of(plain_parts, st.lists(plain_parts, max_size=3).map(lambda v: ("tuple", v)))


def built(argument, values):
    """The argument that a drawn description says."""
    kind, what = argument
    if kind == "value":
        return values[what]
    if kind == "dict":
        return {k: built(v, values) for k, v in what.items()}
    return what if kind == "constant" else {"tuple": tuple, "list": list}[kind](built(v, values) for v in what)


BODY = []  # what the batched function does: one function for all, so that kernels are captured once
BATCHED = edbatch.batch(lambda x: (BODY[-1](active.get(), values_of(x)), x)[1])


def while_recording(function, examples=X[:1]):
    """Call a function with a recorder and values of its recording, once for each example; gives the recording."""
    BODY[:] = [function]
    return BATCHED.pipeline.record_examples((examples,), {})[0]


def general(recorder, target, args, **how):
    """Key and data of a call as `Parts` builds them."""
    found = Parts(recorder, **how)
    found.take_call(target, args, {})
    return tuple(found.key), found.flat


@given(st.lists(arguments | flat_arguments, max_size=3))
def test_keys_of_cells_are_those_of_parts(drawn):
    def compare(recorder, values):
        args = tuple(built(argument, values) for argument in drawn)
        PLAIN(values["value"])  # known as a cell
        key, flat = fast_cells.signature_of(recorder, PLAIN, args)
        if key:
            assert (key, flat) == general(recorder, recorder.key_of(PLAIN), args, is_cell=True)

    while_recording(compare)


@given(st.lists(flat_arguments, max_size=3))
def test_usual_calls_of_cells_have_a_key(drawn):
    def find(recorder, values):
        args = tuple(built(argument, {**values, "rows": values["value"]}) for argument in drawn)
        assert fast_cells.signature_of(recorder, PLAIN, args)[0]

    while_recording(find)


@given(st.lists(arguments, max_size=3), st.booleans())
def test_keys_of_functions_are_those_of_parts(drawn, are_data):
    def compare(recorder, values):
        args = tuple(built(argument, values) for argument in drawn)
        key, flat = [torch.where], []
        if all(fast_functions._take(a, key, flat, are_data=are_data) for a in args):
            like = Spec.of(START) if are_data else None
            assert (tuple(key), flat) == general(recorder, torch.where, args, number_like=like)

    while_recording(compare)


def in_other_modes(v, n):
    with torch.set_grad_enabled(n % 2 == 0):
        return (v["value"] + v["computed"]).tanh() * v["sum"]


def rows_in_other_modes(v, n):
    rows = torch.stack([v["value"], v["computed"]])
    with torch.set_grad_enabled(n % 2 == 0):
        return rows.sum(0) + rows.exp().softmax(0)[0]


def rows_of(value, n):
    return torch.stack([value] * (1 + n % 3))


CALLS = {
    "plus a number": (lambda v, n: v["value"] + n, ints | floats),
    "a product": (lambda v, n: v["value"] * n, ints | floats | st.sampled_from([True])),
    "a number less": (lambda v, n: n - v["value"], ints | floats),
    "torch.add": (lambda v, n: torch.add(v["value"], v["computed"], alpha=n), ints | floats),
    "of a parameter": (lambda v, n: torch.mul([BIAS, v["value"]][n % 2], v["computed"]), ints),
    "clamp": (lambda v, n: torch.clamp(v["value"], min=n, max=v["number"]), st.none()),
    "clamp by a number": (lambda v, n: torch.clamp(v["value"], n, 3), ints | floats.filter(math.isfinite)),
    "cat": (lambda v, n: torch.cat([v["value"], v["computed"]][: 1 + n % 2], dim=n % 2 - 1), ints),
    "cat of a tuple": (lambda v, n: torch.cat((v["value"], START, BIAS)), ints),
    "where": (lambda v, n: torch.where(v["value"] > 0, v["value"], n), floats),
    "linear": (lambda v, n: F.linear(v["value"], WEIGHT, [BIAS, None][n % 2]), ints),
    "mv": (lambda v, n: torch.mv(WEIGHT, v["value"]), ints),
    "sum": (lambda v, n: torch.sum(v["value"], dim=(0,), keepdim=n % 2 == 0), ints),
    "a pending sum": (lambda v, n: torch.tanh(v["value"] + v["computed"]), ints),
    "an index": (lambda v, n: v["value"][n % 3], ints),
    "a slice": (lambda v, n: v["value"][n % 3 :], ints),
    "softmax": (lambda v, n: F.softmax(v["value"], dim=n % 2 - 1), ints),
    "torch.sigmoid": (lambda v, n: torch.sigmoid(v["value"] + v["computed"] if n % 2 else v["computed"]), ints),
    "methods": (lambda v, n: v["value"].tanh().unsqueeze(n % 2).squeeze(dim=n % 2).view((3,)), ints),
    "chunk": (lambda v, n: torch.chunk(v["value"], 1 + n % 3, dim=-1)[0].sum() * v["value"].split([1, 2])[1], ints),
    "functions written in Python": (lambda v, n: F.relu(F.dropout(v["value"], 0.0, training=n % 2 == 0)), ints),
    "operands by name": (lambda v, n: F.mse_loss(target=v["value"], input=v["computed"]), ints),
    "a function of itself": (lambda v, n: F.mse_loss(target=v["value"], input=v["value"]), ints),
    "operators": (lambda v, n: -v["value"] - v["computed"] * BIAS - 0.5 * abs(v["number"]) ** n, st.integers(1, 3)),
    "a tensor on the left": (lambda v, n: START * v["value"] - BIAS @ v["computed"], ints),
    "a tensor on the right": (lambda v, n: v["value"] / START + 2.0, ints),
    "a tensor alone": (lambda v, n: [v["value"] / START, v["value"].exp(), v["value"] * START.exp()][1:], ints),
    "a tensor and a parameter": (lambda v, n: [v["value"] * START, BIAS * v["value"], BIAS * START][n % 3], ints),
    "a row of a parameter": (lambda v, n: WEIGHT[n % 3] * v["value"], ints),
    "0 + x": (lambda v, n: [0, 0.0, False, 3][n % 4] + v["computed"], ints),
    "long sums": (lambda v, n: (sum([v["value"], v["computed"], v["value"]]) + v["sum"]).exp() + v["growing"], ints),
    "a sum twice": (lambda v, n: torch.maximum(v["sum"], v["sum"]) * v["sum"], ints),
    "sums that branch": (
        lambda v, n: [s := v["value"] + v["computed"], s + v["value"], s + v["computed"]][n % 3],
        ints,
    ),
    "indices": (lambda v, n: v["value"].view(3, 1)[n % 3, 0] * v["value"][None, -1 - n % 3, ..., None], ints),
    "an ellipsis": (lambda v, n: v["value"].view(1, 3)[..., n % 3 : 3][0, ...], ints),
    "in other modes": (lambda v, n: in_other_modes(v, n), ints),
    "rows in other modes": (lambda v, n: rows_in_other_modes(v, n), ints),
    "a dtype": (lambda v, n: v["value"].to([torch.float32, torch.float64][n % 2]), ints),
    "a result with names": (lambda v, n: v["value"].max([0, -1][n % 2], keepdim=n > 0).values, ints),
    "einsum": (lambda v, n: torch.einsum(["i,i->", "i,i->i"][n % 2], v["value"], v["computed"]), ints),
    "rows twice": (lambda v, n: [r := rows_of(v["value"], n), r.tanh() * r, r.sum(0)][2], ints),
    "rows of two lengths": (lambda v, n: torch.stack([v["value"]] * 2) + torch.stack([v["value"]] * (1 + n % 2)), ints),
    "softmax of rows": (
        lambda v, n: rows_of(v["number"], n).softmax(0) @ rows_of(v["value"], n),
        ints,
    ),
    "sum of rows": (lambda v, n: torch.stack([v["value"]] * (1 + n % 3), dim=0).sum(dim=[0, -1][n % 2]), ints),
    "rows of sums": (lambda v, n: torch.stack([v["sum"], v["growing"]]).logsumexp(0), ints),
    "elements of rows": (lambda v, n: torch.stack([v["value"], v["computed"]])[n % 2].exp(), ints),
    "rows": (lambda v, n: rows_of(v["value"], n).max(0)[0], ints),
    "mean of rows": (lambda v, n: rows_of(v["value"], n).mean(dim=0), ints),
    "rows times a number": (lambda v, n: torch.tanh(rows_of(v["value"], n)) * v["number"], ints),
    "rows times a vector": (lambda v, n: rows_of(v["value"], n) @ v["computed"], ints),
    "rows in a layer": (lambda v, n: F.linear(rows_of(v["value"], n), WEIGHT), ints),
}
USUAL = [
    "plus a number",
    "a product",
    "torch.add",
    "of a parameter",
    "linear",
    "mv",
    "sum",
    "softmax",
    "clamp by a number",
    "methods",
    "chunk",
    "functions written in Python",
    "operators",
]
IN_C = [
    "torch.sigmoid",
    "long sums",
    "indices",
    "an ellipsis",
    "a dtype",
    "einsum",
]  # the short cut in Python knows less
calls = st.one_of(
    *[numbers.map(lambda n, name=name: (name, n)) for name, (_, numbers) in CALLS.items()],
    st.tuples(st.just("cell"), st.lists(arguments, max_size=2)),
    st.tuples(st.just("usual cell"), st.lists(flat_arguments, max_size=3)),
    st.tuples(st.just("cell with keywords"), st.dictionaries(st.sampled_from("ab"), arguments, max_size=2)),
    st.tuples(st.just("static"), constants),
)


def call(name, drawn, values):
    if name == "static":
        return STATIC(values["value"], how=drawn)
    if name == "cell with keywords":
        return PLAIN(values["value"], **{k: built(v, values) for k, v in drawn.items()})
    if name in ("cell", "usual cell"):
        return PLAIN(*[built(argument, values) for argument in drawn])
    return CALLS[name][0](values, drawn)


def record(program):
    """What is recorded of some calls, each of them made several times: keys of types, types and args of nodes."""
    found = []

    def make(recorder, values):
        found.append(recorder)
        for name, drawn in program:
            for _ in range(3):
                fresh = values_of(values["value"])
                for result in torch.utils._pytree.tree_leaves(call(name, drawn, fresh)):
                    recorder.resolve(result)

    recording = while_recording(make, X)
    recording.check()
    assert len(found) == len(X)
    keys = [(context, lasting_key(key)) for key, context, _ in found[0].signatures]
    return keys, recording.types.tolist(), recording.args.tolist()


def without_operations_in_c(self, context):
    self.sums_grow_in = context


@pytest.fixture
def long_way(monkeypatch):
    """A function that does something without any short cut."""

    def do(function, *args):
        with monkeypatch.context() as patch:
            patch.setattr(interception, "signature_of", lambda *call: ((), []))
            patch.setattr(recorder, "known", lambda *call: None)
            patch.setattr(recorder, "known_rows", lambda *call: None)
            patch.setattr(recorder.Recorder, "record_in", without_operations_in_c)
            return function(*args)

    return do


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(program=st.lists(calls, min_size=1, max_size=4))
def test_short_cuts_record_what_the_long_way_records(long_way, as_recorded, program):
    assert record(program) == long_way(record, program)


def taken_apart(monkeypatch, program):
    """The keys of all calls that are taken apart while a program is recorded."""
    keys, take_call = [], Parts.take_call

    def take(self, *args):
        templates = take_call(self, *args)
        keys.append(lasting_key(self.key))
        return templates

    with monkeypatch.context() as patch:
        patch.setattr(Parts, "take_call", take)
        record(program)
    return keys


@pytest.mark.parametrize("name", [*USUAL, "usual cell", *(IN_C if fast_cells.RECORDS_IN_C else [])])
def test_usual_calls_are_taken_apart_once(monkeypatch, long_way, name):
    """All others of their six calls, three in each of two examples, take the short cut."""
    program = [(name, [("value", "sum"), ("constant", 2)] if name == "usual cell" else 1)]
    keys = taken_apart(monkeypatch, program)
    assert len(set(keys)) == len(keys)
    assert len(long_way(taken_apart, monkeypatch, program)) >= len(keys) + 5


def test_functions_of_rows_that_lie_in_memory_are_taken_apart_once(monkeypatch):
    keys = taken_apart(monkeypatch, [("rows times a number", 1)])
    assert [key[0] for key in keys if Slot.REPEAT in key] == [operator.mul]
