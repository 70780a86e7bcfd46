"""Known examples: what is read afresh in every call, and what makes an example be recorded every time."""

import random

import numpy as np
import pytest
import torch
from recorded_once import COUNT, STEPS, XS, Scorer, assert_right, calls_of, report, scorer
from torch import nn
from torch.utils import _pytree as pytree

import edbatch


@pytest.fixture(autouse=True)
def _count():
    COUNT.clear()


def test_tensors_of_columns_are_read_afresh():
    _, batched = scorer()
    assert_right(batched, XS, STEPS)
    assert calls_of(lambda: batched(torch.randn(4, 3), STEPS)) == 0
    assert_right(batched, torch.randn(4, 3), STEPS)
    x = torch.randn(3, requires_grad=True)
    batched([x] * 4, STEPS).sum().backward()
    ours, x.grad = x.grad, None
    batched.one_by_one([x] * 4, STEPS).sum().backward()
    torch.testing.assert_close(ours, x.grad)


CONSTANTS = (2, 3, 2.0, True, 0.0, -0.0, 0, False, np.float32(1.5), np.float32(2.5), np.int64(2), np.bool_(True))


def test_constants_of_columns_are_read_afresh():
    def function(x, number):
        COUNT.append(0)
        return torch.mul(x, number) if number > 1 else torch.copysign(x, torch.tensor(float(number)))

    batched = edbatch.batch(function, policy="agenda", key=lambda x, number: "the same")
    for number in CONSTANTS:
        assert calls_of(lambda number=number: batched(XS[1:2], [number])) == 1
    for number in CONSTANTS:
        assert_right(batched, XS[1:3], [number] * 2)
        assert calls_of(lambda number=number: batched(XS[1:3], [number] * 2)) == 0
    assert_right(batched, XS, [3, 2, 3, -0.0])


def test_labels_are_read_afresh():
    loss = edbatch.cell(lambda h, label: nn.functional.cross_entropy(h, label))
    batched = edbatch.batch(lambda tree, label: loss(tree["x"], label), key=lambda tree, label: tree["number"])
    trees = [{"x": x, "number": i} for i, x in enumerate(XS)]
    for labels in ([0, 1, 2, 0], [2, 2, 1, 0], np.array([2, 2, 1, 0])):
        assert_right(batched, trees, labels)


@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_of_constants_in_columns_are_read_afresh(kind):
    table = nn.Embedding(5, 3)

    def function(x, tags):
        COUNT.append(0)
        return sum(table(int(tag)) for tag in tags) * x

    batched = edbatch.batch(function, policy="agenda", key=lambda x, tags: "the same")
    for tags in ([1, 2], [2, 1], [1.0, 2.0], [True, 2], ["1", "2"], [1]):
        assert calls_of(lambda tags=tags: batched(XS[1:2], [kind(tags)])) == 1
        assert calls_of(lambda tags=tags: batched(XS[1:2], [kind(tags)])) == 0
        assert_right(batched, XS[1:3], [kind(tags)] * 2)


def test_why_examples_are_not_known():
    model = Scorer()
    batched = edbatch.batch(model, policy="agenda", key=lambda x, steps: None if steps == 4 else 0 if steps < 3 else 1)
    assert report_of(batched, XS[:1], [1]).endswith("0 of 1 examples were known; 1 were new")
    assert report_of(batched, XS[:1], [1]).endswith("1 of 1 examples were known")
    said = report_of(batched, XS, STEPS)
    assert "1 of 4 examples were known; 1 had other constants, shapes" in said
    assert "1 were new; 1 had None as key" in said
    model.scale = 2.0
    assert "0 of 1 examples were known; 1 were known in other modes" in report_of(batched, XS[:1], [1])


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


def test_buffers_and_parameters_are_read_afresh():
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
def test_what_is_computed_from_parameters_and_buffers_is_read_afresh(function):
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


BUFFER = torch.zeros(3)
WEIGHT = nn.Parameter(torch.ones(3))
SWAPPED = torch.zeros(3)


def swapped():
    """A tensor that was made by the example, and has the memory of another one since."""
    made = torch.zeros(3)
    made.data = SWAPPED
    return made


@pytest.mark.parametrize(
    "write",
    [
        lambda steps: BUFFER.fill_(steps),
        lambda steps: swapped().fill_(steps),
        lambda steps: torch.from_numpy(BUFFER.numpy()).fill_(steps),
        lambda steps: BUFFER[:2].fill_(steps).sum() + torch.zeros(3),
        lambda steps: torch.zeros(3).copy_(WEIGHT.detach()),
    ],
)
def test_writing_in_place_is_done_every_time(write):
    def function(x, steps):
        COUNT.append(0)
        return torch.mul(x, write(steps))

    batched = edbatch.batch(function, policy="agenda", key=lambda x, steps: steps)
    batched(XS, STEPS)
    assert calls_of(lambda: batched(XS, STEPS)) == 4
    assert "4 will always be recorded: it writes a tensor in place" in report(batched)


def written_twice(x, steps):
    made = torch.zeros(3)
    made[0] = steps
    y = torch.mul(x, made)
    made[1:].fill_(steps)  # y reads it as it was
    return y + made


@pytest.mark.parametrize(
    "function",
    [
        lambda x, steps: x * torch.zeros(1, 3).scatter_(1, torch.tensor([[steps % 3]]), 1.0)[0],
        written_twice,
        lambda x, steps: x * torch.zeros_like(BUFFER).add_(BUFFER.clone().fill_(steps)),
        lambda x, steps: x * torch.add(torch.ones(3), steps, out=torch.empty(3)),
    ],
)
def test_writing_what_an_example_made_itself_is_recorded_once(function):
    def counted(x, steps):
        COUNT.append(0)
        return function(x, steps)

    batched = edbatch.batch(counted, policy="agenda", key=lambda x, steps: steps, stack=False)
    batched(XS, STEPS)
    results = []
    assert calls_of(lambda: results.extend(batched(XS, STEPS))) == 0
    torch.testing.assert_close(results, [function(x, steps) for x, steps in zip(XS, STEPS, strict=True)])


def test_a_write_into_what_another_example_made_is_done_every_time():
    kept = []

    def function(x, steps):
        COUNT.append(0)
        kept.append(torch.zeros(3))
        return torch.mul(x, kept[0].add_(1))

    batched = edbatch.batch(function, policy="agenda", key=lambda x, steps: steps)
    batched(XS, STEPS)
    assert calls_of(lambda: batched(XS, STEPS)) >= 3


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


class Scale(nn.Module):
    """Never called itself: only its parameter is used."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.arange(1.0, 5.0))


def shrink(net):
    net.scale.data = net.scale.data[:1].clone()


@pytest.mark.parametrize("change", [nn.Module.half, nn.Module.double, shrink])
def test_a_parameter_of_a_module_that_is_not_called_changes(change):
    net, x = Scale(), torch.ones(2, 4)
    batched = edbatch.batch(lambda x, i: torch.tanh(x * net.scale), policy="agenda", key=lambda x, i: i)
    assert_right(batched, x, [1, 2])
    change(net)
    assert_right(batched, x, [1, 2])


@pytest.mark.parametrize("change", [torch.Tensor.double, lambda w: w[:1].clone()])
def test_a_tensor_given_by_keyword_changes(change):
    w, x = torch.arange(1.0, 5.0), torch.ones(2, 4)
    batched = edbatch.batch(lambda x, i, w: torch.tanh(x * w), policy="agenda", key=lambda x, i, w=None: i)
    assert_right(batched, x, [1, 2], w=w)
    w.data = change(w.data)
    assert_right(batched, x, [1, 2], w=w)


def test_a_tensor_of_a_closure_that_was_a_column_once():
    cell, fixed = nn.Linear(3, 3), torch.ones(3)

    def function(x, i):
        cell(x)
        return cell(x) + 10 * cell(fixed)

    batched = edbatch.batch(function, policy="agenda", key=lambda x, i: i)
    assert_right(batched, [fixed], [0])
    assert_right(batched, [torch.zeros(3)], [0])
    assert_right(batched, [fixed, torch.zeros(3)], [1, 2])
    assert "2 of 2 examples were known" in report_of(batched, [fixed, torch.zeros(3)], [1, 2])


def report_of(batched, *columns):
    batched(*columns)
    return report(batched)


def test_an_example_that_changes_a_module_is_recorded_every_time():
    class Fading(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.factor = nn.Linear(3, 3), 1.0

        def forward(self, x, i):
            y = self.linear(x) * self.factor
            self.factor *= 0.5
            return y

    model, x = Fading(), torch.ones(2, 3)
    batched = edbatch.batch(model, policy="agenda", key=lambda x, i: i)
    for order in ([1, 2], [2, 1], [1, 1]):
        model.factor = 1.0
        ours = batched(x, order)
        model.factor = 1.0
        torch.testing.assert_close(ours, batched.one_by_one(x, order))
    assert "changed while" in report(batched)
