"""`edbatch.batch(fn, key=…)`: a known example is not recorded again, and graphs, values and gradients are the same."""

import copy
import random
import re
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

import edbatch
import zoo
from edbatch.errors import BatchError, LeakedValueError, WrongKeyError
from edbatch.frontend import known_examples
from edbatch.workloads import WORKLOADS


class Counting:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


def report(batched):
    return batched.pipeline.known.report


def assert_same_recordings(plain, known, columns, **keywords):
    (a, results_a), (b, results_b) = (x.pipeline.record(columns, keywords) for x in (plain, known))
    for name in ("types", "args", "starts"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert [t.name for t in a.node_types] == [t.name for t in b.node_types]
    for t, u in zip(a.node_types, b.node_types, strict=True):
        assert (t.slots, t.slot_specs, t.per_row) == (u.slots, u.slot_specs, u.per_row)
        assert all(x is y or torch.equal(x, y) for x, y in zip(t.shared, u.shared, strict=True))
    assert a.outside_specs == b.outside_specs
    assert all(torch.equal(x, y) for x, y in zip(a.outside, b.outside, strict=True))
    assert len(results_a.groups) == len(results_b.groups)
    for g, h in zip(results_a.groups, results_b.groups, strict=True):
        assert (g.leaf, g.spec, g.examples, g.lengths, g.is_ragged) == (
            h.leaf,
            h.spec,
            h.examples,
            h.lengths,
            h.is_ragged,
        )
        assert np.array_equal(g.refs, h.refs)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def gradients(results, model):
    leaves = [r for r in pytree.tree_leaves(results) if isinstance(r, torch.Tensor) and r.requires_grad]
    return torch.autograd.grad(sum(r.sum() for r in leaves), trained(model), allow_unused=True)


def assert_same_values(ours, theirs):
    for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def two_epochs(model, columns, stack, keys, reusable=True):
    """Two epochs in small, shuffled mini-batches, with a step of an optimizer after each."""
    counting = Counting(model.__call__)
    plain = edbatch.batch(model, policy="agenda", stack=stack)
    known = edbatch.batch(model, policy="agenda", stack=stack, key=lambda *example: keys(example))
    known.pipeline.function = counting
    number = len(columns[0])
    optimizer = torch.optim.SGD(trained(model), lr=0.01)
    for epoch in range(3):
        order = torch.randperm(number).tolist()
        before = counting.calls
        for chosen in (order[: number // 2], order[number // 2 :]):
            part = tuple([c[i] for i in chosen] for c in columns)
            ours, theirs = known(*part), plain(*part)
            assert_same_values(ours, theirs)
            optimizer.zero_grad()
            for p, a, b in zip(trained(model), gradients(ours, model), gradients(theirs, model), strict=True):
                assert_same_values([a], [b])
                p.grad = b
            assert_same_recordings(plain, known, part)
            optimizer.step()
        assert counting.calls - before == (number if epoch == 0 else 0) or not reusable


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda c: c.name)
def test_zoo(case):
    model, columns = zoo.make(case)
    numbers = {id(x): i for i, x in enumerate(columns[-1])}
    two_epochs(model, columns, case.stack, lambda example: numbers[id(example[-1])], case.name != "single ops")


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads(name):
    corpus = WORKLOADS[name].corpus(None, 0, 6)
    examples = corpus.train[:6]
    two_epochs(WORKLOADS[name].make(corpus, hidden=4), (examples,), "cat", lambda example: id(example[0]))


@settings(max_examples=20)
@given(
    st.sampled_from(
        [c for c in zoo.CASES if c.name in ("shared DAG", "lattice", "tagger", "attention", "twice the same")]
    ),
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), min_size=1, max_size=4),
)
def test_any_mini_batches(case, batches):
    """Known and unknown examples in any order give the recording of all of them."""
    model, columns = zoo.make(case)
    numbers = {id(x): i for i, x in enumerate(columns[-1])}
    plain = edbatch.batch(model, stack=case.stack)
    known = edbatch.batch(model, stack=case.stack, key=lambda *example: numbers[id(example[-1])])
    for chosen in batches:
        assert_same_recordings(plain, known, tuple([c[i] for i in chosen] for c in columns))


# ---- what is taken as it is on the day, and what does not last


class Scorer(nn.Module):
    """A chain of `steps` linear layers on a vector, and what tests want to change."""

    def __init__(self, dim=3):
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.scale = 1.0
        self.register_buffer("shift", torch.zeros(dim))

    def forward(self, x, steps):
        COUNT.append(steps)
        for _ in range(steps):
            x = torch.tanh(self.linear(x)) * self.scale
        return x


COUNT: list[int] = []


@pytest.fixture(autouse=True)
def _count():
    COUNT.clear()


def calls_of(function):
    """How many examples a call records."""
    before = len(COUNT)
    function()
    return len(COUNT) - before


def scorer(**options):
    model = Scorer()
    return model, edbatch.batch(model, policy="agenda", key=lambda x, steps: steps, **options)


XS, STEPS = [torch.full((3,), float(i)) for i in range(4)], [1, 2, 3, 4]


def assert_right(batched, *columns, **keywords):
    torch.testing.assert_close(batched(*columns, **keywords), batched.one_by_one(*columns, **keywords))
    COUNT.clear()


def test_tensors_of_columns_are_those_of_the_day():
    _, batched = scorer()
    assert_right(batched, XS, STEPS)
    assert calls_of(lambda: batched(torch.randn(4, 3), STEPS)) == 0
    assert_right(batched, torch.randn(4, 3), STEPS)
    x = torch.randn(3, requires_grad=True)
    batched([x] * 4, STEPS).sum().backward()
    ours, x.grad = x.grad, None
    batched.one_by_one([x] * 4, STEPS).sum().backward()
    torch.testing.assert_close(ours, x.grad)


def test_one_tensor_in_two_columns_and_inside_an_example():
    def function(x, y, example):
        COUNT.append(0)
        return x * 2 + y * 3 + torch.mul(example["z"], x)

    batched = edbatch.batch(function, policy="agenda", key=lambda x, y, example: example["number"])
    same, other = torch.ones(2), torch.full((2,), 5.0)
    example = {"number": 1, "z": same}
    assert_right(batched, [same], [same], [example])
    assert calls_of(lambda: batched([other], [same], [example])) == 0
    assert_right(batched, [other], [same], [example])
    assert_right(batched, [same], [other], [example])


def test_a_column_of_another_shape_is_recorded():
    batched = edbatch.batch(lambda x: torch.tanh(x).sum(), policy="agenda", key=lambda x: "always the same")
    for x in (torch.ones(2), torch.ones(3), torch.ones(2, dtype=torch.float64), torch.full((2,), 2.0)):
        assert_right(batched, [x])


def test_known_and_unknown_examples_in_one_mini_batch():
    _, batched = scorer()
    batched(XS[:2], [1, 3])
    assert calls_of(lambda: batched(XS, STEPS)) == 2
    assert_right(batched, XS, [4, 3, 2, 1])
    assert "4 of 4 examples were known" in report(batched)
    assert "4 of 4 examples were known" in batched.explain()


def test_the_same_example_twice_in_one_mini_batch():
    _, batched = scorer()
    assert calls_of(lambda: batched([XS[1], XS[2], XS[1]], [2, 2, 2])) == 3  # nothing was known when the call began
    assert calls_of(lambda: batched([XS[1], XS[2], XS[1]], [2, 2, 2])) == 0
    assert_right(batched, [XS[1], XS[2], XS[1]], [2, 2, 2])


def test_none_is_recorded_always():
    batched = edbatch.batch(Scorer(), policy="agenda", key=lambda x, steps: None if steps == 2 else steps)
    batched(XS, STEPS)
    assert calls_of(lambda: batched(XS, STEPS)) == 1


GENERATOR = torch.Generator()
DRAWS = {
    "torch": lambda: float(torch.rand(())),
    "python": random.random,
    "numpy": lambda: float(np.random.rand()),
    "a generator": lambda: float(torch.rand((), generator=GENERATOR)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_draws_random_numbers_is_recorded_always(draw):
    def function(x, steps):
        COUNT.append(steps)
        return x * draw() if steps == 2 else x * 2

    batched = edbatch.batch(function, policy="agenda", key=lambda x, steps: steps)
    batched(XS, STEPS)
    first = batched(XS, STEPS)
    assert calls_of(lambda: batched(XS, STEPS)) == 1
    assert "1 will always be recorded: it draws random numbers" in report(batched)
    second = batched(XS, STEPS)
    assert torch.equal(first[[0, 2, 3]], second[[0, 2, 3]])
    assert not torch.equal(first[1], second[1])


def test_sampling_with_a_generator_is_recorded_always():
    generators = [torch.Generator().manual_seed(1)]

    def function(x, generator):
        COUNT.append(0)
        return torch.bernoulli(torch.sigmoid(x), generator=generator)

    batched = edbatch.batch(function, policy="agenda", key=lambda x, generator: 0)
    batched([XS[0]], generators)
    other = [torch.Generator().manual_seed(7)]
    assert calls_of(lambda: batched([XS[0]], other)) == 1


def test_dropout_of_recorded_values_is_known_and_drawn_anew():
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5))
    batched = edbatch.batch(lambda x: nn.functional.dropout(model(x), 0.3), policy="agenda", key=lambda x: 0)
    batched([torch.ones(64)])
    first, second = batched([torch.ones(64)]), batched([torch.ones(64)])
    assert "1 of 1 examples were known" in report(batched)
    assert not torch.equal(first, second)


def test_modes_and_states_of_modules():
    model, batched = scorer()
    batched(XS, STEPS)
    for change in (
        lambda: setattr(model, "scale", 0.5),
        lambda: model.linear.register_forward_hook(lambda module, args, output: output * 2),
        lambda: setattr(model.linear, "weight", nn.Parameter(torch.eye(3))),
        lambda: setattr(model, "linear", nn.Linear(3, 3, bias=False)),
        lambda: model.linear.weight.requires_grad_(False),
        lambda: model.eval(),
    ):
        change()
        assert calls_of(lambda: batched(XS, STEPS)) == 4
        assert_right(batched, XS, STEPS)
        assert calls_of(lambda: batched(XS, STEPS)) == 0
    model.train()  # seen before, with other weights
    assert_right(batched, XS, STEPS)


def test_modes_around_the_call():
    model, batched = scorer()
    batched(XS, STEPS)
    for mode in (torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)):
        with mode():
            assert calls_of(lambda: batched(XS, STEPS)) == 4
            assert calls_of(lambda: batched(XS, STEPS)) == 0
    assert calls_of(lambda: batched(XS, STEPS)) == 0  # train, eval, train, eval, … records each once
    assert batched(XS, STEPS).requires_grad
    model.double()
    assert_right(batched, [x.double() for x in XS], STEPS)


def test_modules_of_a_closure_are_watched():
    model = Scorer()
    batched = edbatch.batch(lambda x, steps: model(x, steps), policy="agenda", key=lambda x, steps: steps)
    batched(XS, STEPS)
    model.scale = 3.0
    assert_right(batched, XS, STEPS)
    assert calls_of(lambda: batched(XS, STEPS)) == 0


def test_buffers_and_parameters_are_those_of_the_day():
    model = Scorer()

    def function(x):
        COUNT.append(0)
        return model.linear(x) + model.shift, model.linear.bias

    batched = edbatch.batch(function, policy="agenda", key=lambda x: 0, stack=False)
    batched([XS[1]])
    with torch.no_grad():
        model.shift += 1
        model.linear.weight *= 2
        model.linear.bias.data = torch.ones(3)
    ours, theirs = (f([XS[1]]) for f in (batched, batched.one_by_one))
    assert len(COUNT) == 2  # one of them one by one
    for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "function",
    [
        lambda model, x: x * torch.tanh(model.linear.bias),
        lambda model, x: model.linear(torch.tanh(model.linear.bias)) + x,
        lambda model, x: x * model.linear.bias.sum().item(),
        lambda model, x: x * (model.shift + 1),
        lambda model, x: (x, torch.tanh(model.linear.bias))[1] + x,
        lambda model, x: x if bool(model.shift[0] > 0) else -x,
    ],
)
def test_what_is_computed_from_parameters_and_buffers_is_of_the_day(function):
    class Model(Scorer):
        def forward(self, x):
            return function(self, x)

    model = Model()
    batched = edbatch.batch(model, policy="agenda", key=lambda x: 0)
    for _ in range(3):
        assert_right(batched, [XS[1]])
        with torch.no_grad():
            model.linear.bias.add_(1)
            model.shift.add_(1)


def test_what_a_parameter_is_like_may_be_read():
    model = Scorer()

    def function(x):
        COUNT.append(0)
        return model.linear(x + torch.zeros(model.linear.weight.shape[1], dtype=model.linear.weight.dtype))

    batched = edbatch.batch(function, policy="agenda", key=lambda x: 0)
    batched([XS[0]])
    assert calls_of(lambda: batched([XS[0]])) == 0


def test_writing_in_place_is_done_every_time():
    def function(x, steps):
        COUNT.append(0)
        buffer = torch.zeros(3)
        buffer[0] = steps
        return torch.mul(x, buffer)

    batched = edbatch.batch(function, policy="agenda", key=lambda x, steps: steps)
    batched(XS, STEPS)
    assert calls_of(lambda: batched(XS, STEPS)) == 4
    assert "4 will always be recorded: it writes a tensor in place" in report(batched)


def test_keywords():
    def function(x, scale, bias):
        COUNT.append(0)
        return torch.mul(x, scale) + bias

    batched = edbatch.batch(function, policy="agenda", key=lambda x: 0)
    bias = torch.ones(3)
    batched([XS[1]], scale=2.0, bias=bias)
    assert calls_of(lambda: batched([XS[1]], scale=2.0, bias=bias)) == 0
    bias += 1
    assert_right(batched, [XS[1]], scale=2.0, bias=bias)
    assert_right(batched, [XS[1]], scale=2.5, bias=bias)
    assert_right(batched, [XS[1]], scale=2, bias=bias)
    assert_right(batched, [XS[1]], scale=2.0, bias=torch.zeros(3))
    assert calls_of(lambda: batched([XS[1]], scale=2.0, bias=bias)) == 0


def test_keywords_that_cannot_be_compared():
    class Settings:
        scale = 2.0

    def function(x, settings):
        COUNT.append(0)
        return x * settings.scale

    batched = edbatch.batch(function, policy="agenda", key=lambda x: 0)
    settings = Settings()
    batched([XS[1]], settings=settings)
    settings.scale = 3.0
    assert_right(batched, [XS[1]], settings=settings)
    assert "a keyword is neither" in report(batched)


# ---- examples that use values of each other


def test_examples_that_use_values_of_another():
    memory = {}

    def function(x, steps):
        COUNT.append(0)
        before, memory["last"] = memory.get("last") if steps % 2 == 0 else None, torch.tanh(x)
        return memory["last"] if before is None else before * 2

    batched, plain = (edbatch.batch(function, policy="agenda", key=k) for k in (lambda x, steps: steps, None))
    batched(XS[:2], [1, 3])  # no example uses another
    ours = batched([XS[3], *XS[:3]], [5, 1, 2, 3])  # 1 is known, but 2 uses its value
    memory.clear()
    torch.testing.assert_close(ours, plain([XS[3], *XS[:3]], [5, 1, 2, 3]))
    assert "uses values of another" in report(batched)
    assert calls_of(lambda: batched(XS[:2], [1, 3])) == 2


def test_a_value_of_a_known_example_that_leaked():
    memory = {}

    def function(x, steps):
        if steps % 2:
            memory["last"] = torch.tanh(x)
            return memory["last"]
        return memory["last"] * 2

    batched, plain = (edbatch.batch(function, policy="agenda", key=k) for k in (lambda x, steps: steps, None))
    batched(XS[:1], [1])
    torch.testing.assert_close(batched(XS[:2], [1, 2]), plain(XS[:2], [1, 2]))
    with pytest.raises(LeakedValueError, match="outside the call"):
        batched(XS[:1], [2])


# ---- results


def test_results_of_other_kinds():
    def function(x, steps):
        COUNT.append(0)
        values = [torch.tanh(x) * i for i in range(steps)]
        total = values[0] + x + x
        return {"rows": torch.stack(values), "number": steps, "plain": torch.full((2,), steps), "sum": total, "x": x}

    for stack in ("cat", False):
        plain, known = (
            edbatch.batch(function, policy="agenda", key=k, stack=stack) for k in (None, lambda x, steps: steps)
        )
        for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
            columns = [XS[i] for i in order], [STEPS[i] for i in order]
            ours, theirs = known(*columns), plain(*columns)
            for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
                assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
            assert_same_recordings(plain, known, columns)
        assert calls_of(lambda known=known: known(XS, STEPS)) == 0


def test_a_leaf_that_is_a_value_for_some_and_a_tensor_for_others():
    constant = torch.ones(3)
    plain, known = (
        edbatch.batch(lambda x, steps: torch.tanh(x) if steps % 2 else constant, policy="agenda", key=k)
        for k in (None, lambda x, steps: steps)
    )
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        columns = [XS[i] for i in order], [STEPS[i] for i in order]
        assert_same_recordings(plain, known, columns)
        assert torch.equal(plain(*columns), known(*columns))


def test_results_do_not_share_memory():
    batched = edbatch.batch(lambda i: torch.zeros(2), policy="agenda", key=lambda i: i, stack=False)
    for _ in range(3):
        (result,) = batched([1])
        assert result.tolist() == [0, 0]
        result += 1


def test_other_structures_are_refused():
    batched = edbatch.batch(lambda x, i: (x,) * i, policy="agenda", key=lambda x, i: i)
    batched(XS[:1], [1])
    batched(XS[:1], [2])
    with pytest.raises(BatchError, match="example 1 returned another structure"):
        batched(XS[:2], [1, 2])


def test_what_is_returned_as_an_object_is_recorded_always():
    batched = edbatch.batch(lambda x: (x, object()), policy="agenda", key=lambda x: 0)
    batched([XS[0]])
    batched([XS[0]])
    assert "it returns something of type object" in report(batched)


# ---- wrong keys, bounds, errors


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ([1, 2], [1, 2, 3], "its call number 1 was torch.exp.* and is torch.tanh"),
        ([1, 2, 3, 4], [1, 2, 3], "its call number 2 was torch.tanh.* and is torch.exp"),
        ([1, 2], [1, 5], "its call number 0, embedding.*, has another number as operand 0"),
        ([1, [2, 3]], [1, [2, 3, 4]], "its call number 3, sum of values f32.3., had 2 values and has 3"),
        ([7, 2], [9, 2], r"its result\[1\] was 7 and is 9 now"),
        ([None, 2], [(1, 2), 2], r"it returned TreeSpec\(tuple.*"),
    ],
)
def test_debug_finds_a_wrong_key(before, now, message):
    embedding = nn.Embedding(10, 3)

    def function(numbers):
        first, second, *rest = numbers
        if isinstance(second, list):
            values = [embedding(0), embedding(0), embedding(0)]
            return sum(values[: len(second)]), first
        value = embedding(second)
        for _ in rest:
            value = torch.tanh(value)
        return torch.exp(value), first

    batched = edbatch.batch(function, policy="agenda", key=lambda numbers: "the same", stack=False)
    batched([before])
    batched([before, now])  # not noticed
    batched = edbatch.batch(function, policy="agenda", key=lambda numbers: "the same", stack=False, debug=True)
    batched([before])
    with pytest.raises(
        WrongKeyError, match=r"(?s)key 'the same' of example 1 of the mini-batch .*put what differs"
    ) as error:
        batched([before, now])
    assert re.search(message, str(error.value)), error.value


def test_debug_finds_other_tensors_and_says_nothing_of_right_keys():
    def function(example):
        COUNT.append(0)
        return torch.mul(linear(example["x"]), torch.tensor([2.0]))

    linear = nn.Linear(3, 3)
    batched = edbatch.batch(function, policy="agenda", key=lambda example: example["number"], debug=True)
    for _ in range(3):
        assert_right(batched, [{"x": x, "number": i} for i, x in enumerate(XS)])
    assert calls_of(lambda: batched([{"x": XS[0].clone(), "number": 0}])) == 1
    with pytest.raises(WrongKeyError, match=r"tensor number 0 that it uses \(f32\[3\]\) has other values"):
        batched([{"x": XS[1], "number": 0}])


def test_pieces_are_bounded(monkeypatch):
    monkeypatch.setattr(known_examples, "MAX_NODES", 3 * known_examples.OVERHEAD)
    _, batched = scorer()
    for steps in STEPS:
        batched(XS[:1], [steps])
    known = batched.pipeline.known
    assert known._num_nodes <= known_examples.MAX_NODES
    assert known._num_nodes == sum(len(p.types) + known_examples.OVERHEAD for p in known._pieces.values())
    assert calls_of(lambda: batched(XS[:1], [4])) == 0  # used last
    assert calls_of(lambda: batched(XS[:1], [1])) == 1  # used first


def test_worlds_are_bounded(monkeypatch):
    monkeypatch.setattr(known_examples, "MAX_WORLDS", 2)
    model, batched = scorer()
    for scale in (1.0, 2.0, 3.0):
        model.scale = scale
        batched(XS, STEPS)
    known = batched.pipeline.known
    assert len(known._worlds) == 2
    assert len(known._pieces) == 8
    assert calls_of(lambda: batched(XS, STEPS)) == 0


def test_modules_made_for_every_example_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(known_examples, "MAX_MODULES", 5)
    batched = edbatch.batch(lambda x, steps: nn.Tanh()(x), policy="agenda", key=lambda x, steps: steps)
    for _ in range(4):
        assert_right(batched, XS, STEPS)
    assert all(len(world.watch) <= 5 for world in batched.pipeline.known._worlds)


def test_errors_of_keys():
    with pytest.raises(BatchError, match="no function of one example"):
        edbatch.batch(Scorer(), key="number")
    with pytest.raises(BatchError, match="debug=True checks keys"):
        edbatch.batch(Scorer(), debug=True)
    for key, name in ((lambda x: [1], "list"), (lambda x: x, "Tensor")):
        with pytest.raises(BatchError, match=f"the key of example 0 is of type {name}"):
            edbatch.batch(torch.tanh, key=key)([XS[0]])
    with pytest.raises(ZeroDivisionError) as error:
        edbatch.batch(lambda i: i, key=lambda i: 1 / i)([1, 0])
    assert "while computing the key of example 1" in error.value.__notes__[0]


def test_an_error_of_an_unknown_example_names_it_and_spoils_nothing():
    model, batched = scorer()
    batched(XS[:1], [1])
    with pytest.raises(RuntimeError) as error:
        batched([XS[0], torch.ones(5)], [1, 2])
    assert "example 1 of the mini-batch" in error.value.__notes__[0]
    assert_right(batched, XS, STEPS)
    assert calls_of(lambda: batched(XS, STEPS)) == 0
    assert model.training


def test_threads_share_pieces():
    _, batched = scorer()
    expected = batched(XS, STEPS)
    wrong = []

    def run(seed):
        rng = random.Random(seed)
        for _ in range(30):
            order = rng.sample(range(4), 4)
            result = batched([XS[i] for i in order], [STEPS[i] for i in order])
            if not torch.allclose(result, expected[order]):
                wrong.append(order)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_copies_have_pieces_of_their_own():
    _, batched = scorer()
    batched(XS, STEPS)
    other = copy.deepcopy(batched)
    with torch.no_grad():
        other.fn.linear.weight.zero_()
    assert_right(other, XS, STEPS)
    assert_right(batched, XS, STEPS)
