"""Every mistake a user can make has a message that says what happened, where, and what to do."""

import pytest
import torch
from torch import nn

import edbatch
from edbatch.errors import (
    BatchError,
    CheckError,
    GradientError,
    InPlaceError,
    LeakedValueError,
    PolicyError,
    RecordingError,
    ValueReadError,
)

X = [torch.ones(3), torch.zeros(3)]


def run(function, *columns, **keywords):
    return edbatch.batch(function, stack=False)(*(columns or (X,)), **keywords)


WEIGHT = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("function", "how"),
    [
        (lambda h: 1 if h.sum() > 0 else 2, "truth value"),
        (lambda h: int(h.sum()), r"by int\(\)"),
        (lambda h: float(h.sum()), r"by float\(\)"),
        (lambda h: h.sum().item(), r"by item\(\)"),
        (lambda h: h.tolist(), r"by tolist\(\)"),
        (lambda h: list(range(h.sum().long())), "index or a range"),
    ],
)
def test_reading_a_value(function, how):
    with pytest.raises(ValueReadError, match=how) as caught:
        run(lambda x: function(x * WEIGHT))
    assert "torch.where" in str(caught.value)
    assert "while recording example 0" in caught.value.__notes__[0]
    assert "test_errors.py" in caught.value.__notes__[0]


def test_value_kept_after_the_call():
    kept = []

    def function(x):
        kept.append(x * 2)
        return x

    edbatch.record(function, X)
    with pytest.raises(LeakedValueError, match="outside the call"):
        kept[0] + 1
    with pytest.raises(LeakedValueError, match="return them"):
        torch.relu(kept[0])
    with pytest.raises(LeakedValueError, match="outside the call"):
        run(lambda x: x + kept[0])
    with pytest.raises(LeakedValueError, match="outside the call"):
        run(lambda x: nn.Bilinear(3, 3, 2)(x, kept[0]))


def test_values_of_other_examples_of_the_same_call_may_be_used():
    seen = []

    def function(x):
        seen.append(x * 2)
        return x + seen[0]

    ours = edbatch.batch(function)(X)
    torch.testing.assert_close(ours, torch.stack([X[0] + 2 * X[0], X[1] + 2 * X[0]]))


def test_wrong_shapes_are_raised_while_recording_at_the_users_line():
    linear = nn.Linear(4, 2)
    with pytest.raises(RuntimeError, match=r"size|shape") as caught:
        run(lambda x: linear(x))
    assert "while recording example 0" in caught.value.__notes__[0]
    assert "linear(x)" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match="size"):
        run(lambda x: x + x[:2])
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        run(lambda x: x[7])


@pytest.mark.parametrize("weights", [torch.float64, torch.bfloat16])
def test_wrong_dtypes_are_raised_while_recording(weights):
    linear = nn.Linear(3, 2).to(weights)
    for function in (linear, lambda x: x @ linear.weight.t(), edbatch.cell(lambda x: linear(x))):
        with pytest.raises(RuntimeError, match="dtype") as caught:
            run(function)
        assert "while recording example 0" in caught.value.__notes__[0]


def test_an_error_of_the_user_names_the_example_and_leaves_nothing_behind():
    linear = nn.Linear(3, 2)
    model = nn.ModuleDict({"linear": linear})

    def function(x, i):
        y = linear(x)
        if i == 1:
            raise KeyError("mine")
        return y

    before = nn.Module.__call__
    batched = edbatch.batch(function)
    with pytest.raises(KeyError, match="mine") as caught:
        batched(X, [0, 1])
    assert "example 1" in caught.value.__notes__[0]
    assert nn.Module.__call__ is before
    assert "linear" not in model.__dict__
    torch.testing.assert_close(batched(X, [0, 0]), linear(torch.stack(X)))


def test_columns():
    with pytest.raises(BatchError, match="mini-batch is empty"):
        run(lambda x: x, [])
    with pytest.raises(BatchError, match=r"different lengths \(2, 1\)"):
        run(lambda x, y: x, X, [1])
    with pytest.raises(BatchError, match="at least one positional"):
        edbatch.batch(lambda: 1)()
    with pytest.raises(BatchError, match="by keyword"):
        run(lambda x, t: x, X, 0.5)


def test_results_that_cannot_be_stacked():
    def ragged(x, n):
        return {"a": x, "b": torch.stack([x] * n)}

    with pytest.raises(BatchError, match=r"result\['b'\] has different shapes.*stack=\"cat\""):
        edbatch.batch(ragged)(X, [1, 2])
    with pytest.raises(BatchError, match="another structure"):
        edbatch.batch(lambda x, n: [x] * n)(X, [1, 2])
    with pytest.raises(BatchError, match="more than the first dimension"):
        edbatch.batch(lambda x, n: torch.ones(n, n) * x[0], stack="cat")(X, [1, 2])
    with pytest.raises(BatchError, match="numbers of dimensions"):
        edbatch.batch(lambda x, n: x.reshape((1,) * n + (3,)), stack="pad")(X, [1, 2])
    with pytest.raises(BatchError, match="return one kind"):
        edbatch.batch(lambda x, n: x if n == 1 else "text")(X, [1, 2])


def test_writing_in_place():
    with pytest.raises(InPlaceError, match=r"entry of a column.*x = x\.clone\(\) first"):
        run(lambda x: x.add_(1))
    with pytest.raises(InPlaceError, match="out= has no gradients"):
        run(lambda x: torch.exp(x * WEIGHT, out=torch.empty(3)))
    with pytest.raises(InPlaceError, match="out= is given several tensors"):
        run(lambda x: torch.max(x, 0, out=(torch.empty(()), torch.empty((), dtype=torch.int64))))
    with pytest.raises(InPlaceError, match=r"shape \[3\].*result has shape \[2, 3\]"):
        run(lambda x: (x * 2).add_(torch.ones(2, 3)))

    def views(x):
        y = x * 2
        first = y[:2]
        y[0] = 1
        return first

    with pytest.raises(InPlaceError, match="such as a view of it"):
        run(views)


def test_batch_norm_in_a_cell():
    model = edbatch.cell(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    with pytest.raises(RecordingError, match="LayerNorm"):
        run(model)


def test_unhashable_static_argument():
    class Options:
        __hash__ = None

    function = edbatch.cell(lambda x, options: x)
    with pytest.raises(RecordingError, match="must be hashable"):
        run(lambda x: function(x, Options()))


def test_unknown_static_name():
    with pytest.raises(RecordingError, match="names no argument"):
        edbatch.cell(lambda x: x, static="mode")
    with pytest.raises(RecordingError, match="not int"):
        edbatch.cell(3)


def test_parameters_on_several_devices():
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3, device="meta")])
    model.forward = lambda x: model[0](x)
    with pytest.raises(BatchError, match=r"several devices \(cpu, meta\).*model.to"):
        edbatch.batch(model)(X)


def test_second_order_gradients_are_refused():
    linear = nn.Linear(3, 1)
    x = torch.ones(2, 3, requires_grad=True)
    y = edbatch.batch(linear)(x)
    with pytest.raises(GradientError, match="one_by_one"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_names_of_policies_and_stacks():
    with pytest.raises(PolicyError, match="depth"):
        edbatch.batch(lambda x: x, policy="nonsense")
    with pytest.raises(BatchError, match='"cat", "pad" or False'):
        edbatch.batch(lambda x: x, stack="sum")
    with pytest.raises(BatchError, match="batched already"):
        edbatch.batch(edbatch.batch(lambda x: x))
    with pytest.raises(BatchError, match="not int"):
        edbatch.batch(3)


def test_stack_of_nothing():
    with pytest.raises(RecordingError, match="empty list has no shape"):
        run(lambda x: torch.stack([x][:0]) + x)


def test_what_would_read_lazy_values():
    linear = nn.Linear(3, 3)
    with pytest.raises(ValueReadError, match=r"torch.stack\(values\) reads nothing"):
        run(lambda x: torch.tensor([linear(x)[0], linear(x)[1]]))
    with pytest.raises(RecordingError, match="call backward on what the batched function returns"):
        run(lambda x: linear(x).sum().backward())


def test_numbers_as_columns_and_keywords():
    with pytest.raises(
        BatchError, match="positional argument 0 is of type Tensor, but positional arguments are columns"
    ):
        run(lambda x: x, torch.tensor(1.0))
    with pytest.raises(KeyError, match="missing"):
        run(lambda x, scale: {}["missing"], X, scale=torch.tensor(1.0))


def test_a_class_is_no_module():
    with pytest.raises(BatchError, match=r"not its class; give Linear\(...\)"):
        edbatch.batch(nn.Linear)


def test_plans_of_unknown_types():
    batched = edbatch.batch(nn.Linear(3, 3))
    batched(X)
    with pytest.raises(KeyError, match=r"no type is called 'lstm'; there are Linear\(f32\[3\]\)"):
        batched.cell_plans["lstm"]


def test_nothing_to_explain():
    with pytest.raises(BatchError, match="call the batched function first"):
        edbatch.batch(lambda x: x).explain()


def test_check_finds_a_difference():
    calls = []

    def drifting(x):
        calls.append(1)
        return x * float(len(calls))

    with pytest.raises(CheckError, match=r"differs at .* batched, .* one by one"):
        edbatch.check(drifting, X)


@pytest.mark.parametrize(("error", "is_found"), [(1e-13, False), (1e-9, True)])
def test_check_forgives_what_rounding_leaves_of_a_small_result(error, is_found):
    """A result that is nearly zero is measured by those of the other examples."""
    calls = []

    def drifting(x, i):
        calls.append(1)
        return {"loss": (x * 0).sum() + 1.0 if i == 0 else (x * 0).sum() + 1e-9 + error * len(calls), "flag": x > 0}

    columns = torch.ones(2, 3, dtype=torch.float64), [0, 1]
    if is_found:
        with pytest.raises(CheckError, match=r"result\[1\]\['loss'\] differs at"):
            edbatch.check(drifting, *columns)
    else:
        edbatch.check(drifting, *columns)


def test_lazy_values_cannot_be_pickled():
    import copy

    with pytest.raises(TypeError, match="return it instead"):
        run(lambda x: copy.deepcopy(x * 2))


def test_an_error_while_running_names_the_cell_and_the_number():
    embedding = nn.Embedding(5, 3)
    with pytest.raises(IndexError) as caught:
        run(lambda i: embedding(i), [1, 20, 3])
    assert "while running embedding(int)" in caught.value.__notes__[0]
    assert "largest number it got is 20, in example 1" in caught.value.__notes__[0]


def test_a_column_given_by_keyword():
    with pytest.raises(TypeError) as caught:
        run(lambda x, y: x + y["a"], X, y=[1.0, 2.0])
    assert "Keywords (y) are shared by all examples; give columns by position" in caught.value.__notes__[0]


def test_shape_errors_do_not_log(caplog, capfd):
    with pytest.raises(RuntimeError, match="must match"):
        run(lambda x: x + torch.ones(4))
    assert not caplog.records
    assert capfd.readouterr().err == ""


def test_whole_sequence_modules_say_what_to_use():
    lstm = nn.LSTM(3, 2)
    batched = edbatch.batch(lambda x: lstm(torch.stack([x, x * 2]))[0])
    batched(X)
    assert "LSTMCell" in batched.explain()


def squares(x):
    return (x**2).sum()


TRANSFORMS = {
    "autograd.grad": lambda x: torch.autograd.grad(squares(x), x),
    "func.grad": torch.func.grad(squares),
    "func.vjp": lambda x: torch.func.vjp(squares, x)[0],
    "func.jvp": lambda x: torch.func.jvp(squares, (x,), (x,))[1],
    "func.jacfwd": torch.func.jacfwd(squares),
    "func.hessian": torch.func.hessian(squares),
    "vmap over a parameter": lambda x: torch.func.vmap(lambda w: w @ x)(nn.Parameter(torch.ones(2, 3))),
    "jacobian": lambda x: torch.autograd.functional.jacobian(squares, x),
    "hvp": lambda x: torch.autograd.functional.hvp(squares, x, x)[1],
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own use of it
@pytest.mark.parametrize("name", TRANSFORMS)
def test_gradients_inside_the_function(name):
    function = TRANSFORMS[name]
    with pytest.raises(RecordingError, match=r"put all of it into a cell \(edbatch.cell\)"):
        run(function)
    if name != "vmap over a parameter":  # a new one in every call, which a cell cannot know
        grad = [x.clone().requires_grad_() for x in X]
        ours, theirs = run(edbatch.cell(function), grad), [function(x) for x in grad]
        torch.testing.assert_close(list(ours), theirs)


def test_backward_inside_a_cell():
    linear = nn.Linear(3, 3)
    for backward in (torch.Tensor.backward, torch.autograd.backward, lambda loss: torch.autograd.backward([loss])):
        for mark in (edbatch.cell, lambda function: function):
            with pytest.raises(RecordingError, match="return the loss"):
                run(mark(lambda x, backward=backward: backward(linear(x).sum())))
    assert linear.weight.grad is None
