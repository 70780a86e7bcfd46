"""Banks of pieces: what is dropped and what stays, memory, growth while others read, and joining after all of that."""

import gc
import random
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_once import COUNT, XS, assert_same_recordings, calls_of, report, scorer
from torch import nn

import edbatch
from edbatch.replay import known_examples
from edbatch.replay.joining import join
from edbatch.replay.piece_bank import PieceBank

LINEAR = nn.Linear(3, 3)


def function(x, steps):
    """Results of every kind: a value, rows, a tensor, a constant, a column; steps 0 records no node at all."""
    COUNT.append(steps)
    values = [x]
    for i in range(steps):
        values.append(torch.tanh(LINEAR(values[-1])) if i % 2 else torch.exp(values[-1]) + values[0] + x)
    return {"last": values[-1], "rows": torch.stack(values), "tensor": torch.full((2,), steps), "number": steps}


def batch(**options):
    return edbatch.batch(function, policy="agenda", stack="cat", **options)


def batch_known(**options):
    return batch(key=lambda x, steps: steps, **options)


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=2, max_size=8), st.integers(1, 6))
@pytest.mark.usefixtures("as_recorded")
def test_pieces_come_and_go(batches, room):
    """Whatever was dropped meanwhile, mini-batches are as if recorded anew."""
    plain, known = batch(), batch_known()
    before = known_examples.MAX_BYTES
    known_examples.MAX_BYTES = room * 700
    try:
        for steps in batches:
            assert_same_recordings(plain, known, ([XS[s % 4] for s in steps], steps))
            (world,) = known.pipeline.known._worlds
            assert world.bank.num_bytes == world.bank.sizes().sum() <= known_examples.MAX_BYTES
            assert sorted(world.numbers.values()) == list(range(world.bank.num_pieces))
    finally:
        known_examples.MAX_BYTES = before


def test_what_was_used_last_is_kept_over_all_worlds(monkeypatch):
    model, batched = scorer()
    batched(XS, [1, 2, 3, 4])
    model.eval()
    batched(XS, [1, 2, 3, 4])
    model.train()
    batched(XS[:2], [3, 4])
    known = batched.pipeline.known
    num_bytes = sum(world.bank.num_bytes for world in known._worlds)
    monkeypatch.setattr(known_examples, "MAX_BYTES", num_bytes)
    batched(XS[:1], [5])
    evaluating, training = (world.keys for world in known._worlds)
    assert training == {3, 4, 5}  # 1 and 2 were used before all those of the other world
    assert 2 <= len(evaluating) <= 4
    assert calls_of(lambda: batched(XS[:3], [3, 4, 5])) == 0
    assert calls_of(lambda: batched(XS[:2], [1, 2])) == 2


def test_many_keys():
    batched = edbatch.batch(lambda x, i: x * i, policy="agenda", key=lambda x, i: i)
    numbers = list(range(3000))
    x = torch.ones(1)
    batched([x] * 3000, numbers)
    (world,) = batched.pipeline.known._worlds
    assert world.bank.num_pieces == 3000
    random.Random(0).shuffle(numbers)
    assert batched([x] * 3000, numbers).flatten().tolist() == numbers
    assert "3000 of 3000 examples were known" in report(batched)


def test_nothing_is_kept_of_pieces_that_were_dropped(monkeypatch):
    alive = []

    def function(x, i):
        tensor = torch.full((3,), float(i))
        alive.append(weakref.ref(tensor))
        return torch.mul(x, tensor), tensor

    batched = edbatch.batch(function, policy="agenda", key=lambda x, i: i)
    batched([XS[0]] * 5, range(5))
    gc.collect()
    assert sum(ref() is not None for ref in alive) == 5
    monkeypatch.setattr(known_examples, "MAX_BYTES", 2000)
    batched([XS[0]], [5])
    batched.stats = None
    gc.collect()
    (world,) = batched.pipeline.known._worlds
    assert 1 <= world.bank.num_pieces < 5
    assert sum(ref() is not None for ref in alive) == world.bank.num_pieces == len(world.bank.others)


def test_types_and_structures_of_dropped_pieces_are_dropped(monkeypatch):
    batched = edbatch.batch(
        lambda x, i: (torch.tanh(x),) if i else [torch.exp(x)], policy="agenda", key=lambda x, i: i, stack=False
    )
    batched(XS[:1], [0])
    (world,) = batched.pipeline.known._worlds
    monkeypatch.setattr(known_examples, "MAX_BYTES", int(world.bank.num_bytes * 8 / 7) + 8)
    batched(XS[:1], [1])
    assert [t.node_type.name for t in world.bank.types.items] == ["torch.tanh(f32[3])"]
    assert len(world.bank.structures.items) == len(world.types) == 1


def test_a_number_is_valid_as_long_as_its_bank():
    batched = batch_known()
    batched(XS[:3], [1, 2, 3])
    pipeline = batched.pipeline
    examples = list(zip(XS[:3], [1, 2, 3], strict=True))
    call = pipeline.known.look_up(examples, {})
    arrays = call.bank.rows, call.bank.flat
    before = [call.bank.piece(number) for number in call.numbers]
    batched([XS[0]] * 40, range(40))
    assert all(a is not b for a, b in zip(arrays, (call.bank.rows, call.bank.flat), strict=True))
    call.world.keep_only(np.array([0]))
    assert call.world.bank is not call.bank
    for number, piece in zip(call.numbers, before, strict=True):
        assert np.array_equal(call.bank.piece(number).args, piece.args)
    recording, _ = join(call.bank, call.numbers, examples, pipeline.type_sets, call.world.joined)
    expected, _ = batch().pipeline.record_examples([XS[:3], [1, 2, 3]], {})
    assert np.array_equal(recording.args, expected.args)
    assert np.array_equal(recording.types, expected.types)


def test_arrays_grow_by_doubling():
    batched = batch_known()
    bank, sizes = PieceBank(), set()
    batched(XS, [1, 2, 3, 4])
    (world,) = batched.pipeline.known._worlds
    for _ in range(100):
        bank.append(world.bank, np.arange(4))
        sizes.add(len(bank.flat))
    assert bank.num_pieces == 400
    assert bank.num_bytes == 100 * world.bank.num_bytes
    assert len(sizes) < 10


def test_threads_while_pieces_are_dropped(monkeypatch):
    monkeypatch.setattr(known_examples, "MAX_BYTES", 6000)
    plain, known = batch(), batch_known()
    xs = [torch.full((3,), float(i)) for i in range(12)]
    expected = {i: plain.one_by_one([xs[i]], [i])["last"][0] for i in range(12)}
    wrong, kept = [], []

    def run(seed):
        rng = random.Random(seed)
        for _ in range(40):
            order = rng.sample(range(12), 4)
            result = known([xs[i] for i in order], order)["last"][0]
            if not torch.allclose(result, torch.cat([expected[i] for i in order])):
                wrong.append(order)
            with known.pipeline.known._lock:
                kept.append(sum(world.bank.num_bytes for world in known.pipeline.known._worlds))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(kept) == 120
    assert max(kept) <= 6000


def test_tensors_that_pieces_hold_count(monkeypatch):
    monkeypatch.setattr(known_examples, "MAX_BYTES", 1_000_000)
    linear = nn.Linear(1000, 2).double()
    batched = edbatch.batch(
        lambda i: linear(torch.full((1000,), i / 2, dtype=torch.float64)), policy="agenda", key=lambda i: i
    )
    for i in range(400):
        batched([i])
    held = [t for world in batched.pipeline.known._worlds for o in world.bank.others.values() for t in o.outside]
    assert 0 < sum(t.nbytes for t in held if isinstance(t, torch.Tensor)) <= 1_000_000
    torch.testing.assert_close(batched([0, 399]), batched.one_by_one([0, 399]))
