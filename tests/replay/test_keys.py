"""Keys of examples: wrong ones are found, errors name the example, and what is kept for them is bounded."""

import copy
import random
import re
import threading

import pytest
import torch
from recorded_once import COUNT, STEPS, XS, Scorer, assert_right, calls_of, scorer
from torch import nn

import edbatch
from edbatch.errors import BatchError, WrongKeyError
from edbatch.replay import known_examples


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
    before, now = {"numbers": before}, {"numbers": now}

    def function(example):
        first, second, *rest = example["numbers"]
        if isinstance(second, list):
            values = [embedding(0), embedding(0), embedding(0)]
            return sum(values[: len(second)]), first
        value = embedding(second)
        for _ in rest:
            value = torch.tanh(value)
        return torch.exp(value), first

    batched = edbatch.batch(function, policy="agenda", key=lambda example: "the same", stack=False)
    batched([before])
    batched([before, now])  # not noticed
    batched = edbatch.batch(function, policy="agenda", key=lambda example: "the same", stack=False, debug=True)
    batched([before])
    with pytest.raises(
        WrongKeyError, match=r"(?s)key 'the same' of example 1 of the mini-batch .*put what differs"
    ) as error:
        batched([before, now])
    assert re.search(message, str(error.value)), error.value


def test_debug_finds_a_wrong_key_within_one_mini_batch():
    function, key = lambda x, example: (x * example["n"]).sum(), lambda x, example: example["n"] > 0
    batched = edbatch.batch(function, policy="agenda", key=key, debug=True)
    with pytest.raises(WrongKeyError, match="key True of example 2"):
        batched([torch.ones(2)] * 3, [{"n": 1.0}, {"n": -1.0}, {"n": 2.0}])


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
    _, batched = scorer()
    batched(XS, STEPS)
    (world,) = batched.pipeline.known._worlds
    monkeypatch.setattr(known_examples, "MAX_BYTES", world.bank.num_bytes * 8 // 7 + 8)  # an eighth is dropped at once
    for steps in (3, 1, 4, 2):
        assert calls_of(lambda steps=steps: batched(XS[:1], [steps])) == 0
    batched(XS[:1], [5])
    assert world.bank.num_bytes == world.bank.sizes().sum() <= known_examples.MAX_BYTES
    assert sorted(world.keys) == [2, 4, 5]
    assert [calls_of(lambda steps=steps: batched(XS[:1], [steps])) for steps in (5, 4, 2)] == [0, 0, 0]
    assert calls_of(lambda: batched(XS[:1], [3])) == 1


def test_worlds_are_bounded(monkeypatch):
    monkeypatch.setattr(known_examples, "MAX_WORLDS", 2)
    model, batched = scorer()
    for scale in (1.0, 2.0, 3.0):
        model.scale = scale
        batched(XS, STEPS)
    known = batched.pipeline.known
    assert len(known._worlds) == 2
    assert [world.bank.num_pieces for world in known._worlds] == [4, 4]
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


def test_debug_finds_another_number_of_tensors_and_takes_nan_for_nan():
    tensors = [torch.ones(2), torch.full((2,), float("nan"))]
    key = edbatch.batch(lambda x, n: torch.stack([x, *tensors[: n["of"]]]).sum(0), key=lambda x, n: 0, debug=True)
    key(torch.ones(1, 2), [{"of": 1}])
    with pytest.raises(WrongKeyError, match=r"tensors from outside|values and has"):
        key(torch.ones(1, 2), [{"of": 2}])
    right = edbatch.batch(lambda x, n: x + torch.full((2,), float("nan")), key=lambda x, n: n, debug=True)
    for _ in range(2):
        assert right(torch.ones(1, 2), [1]).isnan().all()


@pytest.mark.parametrize("key", [[1], torch.ones(1), (1, [2]), (1, (2, torch.ones(1))), {}], ids=str)
def test_what_is_no_key(key):
    batched = edbatch.batch(lambda x: x + 1, key=lambda x: key)
    with pytest.raises(BatchError, match=r"the key of example 0 is of type .* give a number, a string or a tuple"):
        batched(torch.ones(2, 3))


def test_pieces_are_not_given_up_while_another_thread_looks_at_them():
    _, batched = scorer()
    batched(XS, STEPS)
    known = batched.pipeline.known
    thread = threading.Thread(target=known.give_up)
    with known._lock:
        thread.start()
        thread.join(0.2)
        assert known._worlds
    thread.join()
    assert not known._worlds
