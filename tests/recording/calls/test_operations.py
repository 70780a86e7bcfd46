"""Random programs of operators, methods and torch functions are recorded in C as they are in Python: the same types and
numbers. Values are used again and again, among them sums that are still pending and stacks of any number of values."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_signature import BIAS, START, WEIGHT, X, lasting_key, long_way, while_recording  # noqa: F401
from torch.nn import functional as F

import edbatch
from edbatch.recording.calls.fast_cells import RECORDS_IN_C

if RECORDS_IN_C:
    from edbatch.recording._calls import Value

STEPS = {  # of values of three numbers each, in all the ways that are recorded differently
    "add": lambda a, b, n: a + b,
    "add a number": lambda a, b, n: a + n,
    "add to a number": lambda a, b, n: n + a,
    "sum": lambda a, b, n: sum([a, b, a][: 1 + n]),
    "torch.add": lambda a, b, n: torch.add(a, b),
    "subtract": lambda a, b, n: a - b,
    "multiply": lambda a, b, n: a * b * 0.5,
    "parameter on the left": lambda a, b, n: BIAS * a,
    "product": lambda a, b, n: WEIGHT @ a,
    "tensor on the left": lambda a, b, n: START - a,
    "negative": lambda a, b, n: -a,
    "method": lambda a, b, n: a.sigmoid(),
    "in-place": lambda a, b, n: F.relu(a * 1, inplace=True) + F.elu(a * b, 1.0, n > 0),
    "plus-equal": lambda a, b, n: plus_equal(a, b),
    "by name": lambda a, b, n: torch.tanh(a),
    "in Python": lambda a, b, n: F.relu(input=a) if n else F.relu(a, inplace=False),
    "swapped": lambda a, b, n: F.l1_loss(target=a, input=b, reduction="none"),
    "halves": lambda a, b, n: torch.cat(torch.split(a, [1, 2])[:: 2 * (n % 2) - 1]),
    "numbers": lambda a, b, n: torch.stack([a[n], b[-1], a[0]]),
    "slices": lambda a, b, n: torch.cat((a[n:], b[:n])),
    "another mode": lambda a, b, n: without_grad(a, b),
    "rows": lambda a, b, n: torch.stack([a, b, a][: 1 + n]).sum(0),
    "rows of sums": lambda a, b, n: torch.stack((a + b, a)).mean(dim=0),
    "rows, row by row": lambda a, b, n: (torch.stack([a, b, b][: 1 + n]).tanh() * a).softmax(0)[0],
    "rows twice": lambda a, b, n: (r := torch.stack([a, b][: 1 + n])).logsumexp(0) + (r * 2.0).sum(0),
    "max of rows": lambda a, b, n: torch.stack([a, b, b][: 1 + n]).max(0)[0],
    "module": lambda a, b, n: torch.nn.Softplus(n + 1)(a),
}


def plus_equal(a, b):
    a = a * 1
    view = a + b
    a += b
    return a * view


def without_grad(a, b):
    with torch.no_grad():
        total = a + b
        return total * a + b


steps = st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9), st.integers(0, 2))


def record(program):
    """Keys of types, types and args of a program, run three times in each of two examples."""
    found = []

    def run(recorder, values):
        found.append(recorder)
        for _ in range(3):
            pool = [values["value"], values["computed"]]
            for name, i, j, n in program:
                pool.append(STEPS[name](pool[i % len(pool)], pool[j % len(pool)], n))
            for value in pool:
                recorder.resolve(value)

    recording = while_recording(run, X)
    recording.check()
    keys = [(context, lasting_key(key)) for key, context, _ in found[0].signatures]
    return keys, recording.types.tolist(), recording.args.tolist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80, deadline=None)
@given(program=st.lists(steps, min_size=1, max_size=8))
def test_random_programs_are_recorded_as_in_python(long_way, as_recorded, program):  # noqa: F811
    assert record(program) == long_way(record, program)


@pytest.mark.parametrize("name", sorted(STEPS))
def test_each_step_is_equal_to_one_by_one(name):
    def function(x):
        a, b = x * 1.5, x + 1
        for n in (0, 1, 2, 1, 0, 2):
            a, b = STEPS[name](a, b, n), a
        return a + b

    edbatch.check(edbatch.batch(function), X)


def test_calls_without_values_are_refused():
    for wrong in (lambda x: x * "text", lambda x: x @ None, lambda x: x[3], lambda x: x["a"], lambda x: x.sum(dim=7)):
        for calls in (1, 3):
            with pytest.raises((TypeError, IndexError, edbatch.errors.EdbatchError)):
                edbatch.batch(lambda x, wrong=wrong, calls=calls: [wrong(x * 2) for _ in range(calls)])(X)


@pytest.mark.skipif(not RECORDS_IN_C, reason="there is no such class without a C compiler")
def test_the_base_class_alone_has_no_operators():
    for operate in (lambda v: v * 2, lambda v: 2 + v, lambda v: v + v, lambda v: -v, lambda v: v[0]):
        with pytest.raises((TypeError, AttributeError)):
            operate(Value())


def test_values_of_an_earlier_recording_are_tensors():
    kept = []
    edbatch.batch(lambda x: (kept.append(x * 2), x)[1])(X)

    def function(x):
        for _ in range(4):
            y = x * x + x[0] + torch.sigmoid(x)
        return y * kept[0]

    found = edbatch.batch(function)(X)
    kept[0] = torch.as_tensor(kept[0].tolist(), dtype=X[0].dtype)
    for ours, x in zip(found, X, strict=True):
        torch.testing.assert_close(ours, function(x))
    kept = []
    with pytest.raises(ZeroDivisionError):
        edbatch.batch(lambda x: (kept.append(x * 2), 1 / 0))(X)
    for use in (lambda v: v * v, lambda v: v.tanh(), lambda v: v[0], lambda v: v + v, torch.sigmoid, lambda v: -v):
        with pytest.raises(edbatch.errors.LeakedValueError, match="outside the call"):
            use(kept[0])


def test_values_cannot_be_copied():
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        edbatch.batch(copy.copy)(X)
