"""Calls for which batching cannot pay run one by one: which ones, when that is looked at again, what stays right."""

import pytest
import torch
from torch import nn

import edbatch
from edbatch import paying
from edbatch.paying import FIRST_REST, LONGEST_REST, Estimate, Ways
from edbatch.recording.calls.fast_cells import RECORDS_IN_C
from edbatch.stats import Stopwatch

pytestmark = pytest.mark.usefixtures("judged")
LOSS = Estimate(2.0, 1.0, 1.0, False)
GAIN = Estimate(1.0, 2.0, 9.0, False)


class Layers(nn.Module):
    """Every example has layers of its own, so there is nothing to batch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3 + i) for i in range(4))

    def forward(self, x, i):
        return {"sum": torch.tanh(self.layers[i](x)).sum()}


def columns():
    return torch.randn(4, 3, requires_grad=True), range(4)


def test_what_cannot_pay_runs_one_by_one_with_the_same_results_and_gradients():
    model, (x, i) = Layers(), columns()
    batched = edbatch.batch(model)
    found = []
    for _ in range(3):
        model.zero_grad()
        result = batched(x, i)["sum"]
        found.append((result, *torch.autograd.grad(result.sum(), [x, *model.parameters()])))
    assert batched.runs_alone
    for later in found[1:]:
        for a, b in zip(found[0], later, strict=True):
            torch.testing.assert_close(a, b)
    assert batched.explain().startswith("the last call ran one by one: batching costs about ")
    assert "The last batched call:\n" in batched.explain()


def test_what_pays_stays_batched():
    cell = nn.LSTMCell(8, 8)

    def chain(words):
        state = torch.zeros(8), torch.zeros(8)
        for word in words:
            state = cell(word, state)
        return state[0]

    batched = edbatch.batch(chain)
    sentences = [list(torch.randn(6, 8)) for _ in range(16)]
    for _ in range(5):
        batched(sentences)
        assert not batched.runs_alone
    assert "one by one: batching" not in batched.explain()


def test_each_number_of_examples_and_each_mode_is_judged_for_itself():
    linear = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    batched = edbatch.batch(linear, stack=False)
    for _ in range(3):
        batched(torch.randn(1, 8))
        alone = batched.runs_alone
        batched(torch.randn(200, 8))
        assert not batched.runs_alone
        with torch.no_grad():
            batched(torch.randn(1, 8))
    assert alone


def test_numbers_reach_cells_as_tensors_one_by_one_too():
    embedding = nn.Embedding(5, 3)
    batched = edbatch.batch(lambda word: embedding(word))
    for _ in range(3):
        assert torch.equal(batched([2]), embedding.weight[2:3])
    assert batched.runs_alone


def test_random_numbers_are_always_drawn_in_batches():
    dropout = nn.Dropout(0.5)
    batched = edbatch.batch(lambda x: dropout(x))
    for _ in range(4):
        torch.manual_seed(1)
        again = batched(torch.ones(1, 50))
        torch.manual_seed(1)
        assert torch.equal(again, batched(torch.ones(1, 50)))
    assert not batched.runs_alone


def test_known_examples_that_are_checked_are_always_recorded():
    batched = edbatch.batch(Layers(), key=lambda x, i: i, debug=True)
    for _ in range(4):
        batched(*columns())
        assert not batched.runs_alone


def test_the_function_runs_once_per_example_and_call():
    calls = []

    def function(x):
        calls.append(1)
        return x + 1

    batched = edbatch.batch(function)
    for number in range(1, 6):
        batched(torch.ones(2))
        assert len(calls) == 2 * number


def test_it_can_be_switched_off_and_survives_pickling():
    import pickle
    from dataclasses import replace

    batched = edbatch.batch(nn.Linear(2, 2))
    batched.switches = replace(batched.switches, may_run_alone=False)
    for _ in range(4):
        batched(torch.ones(1, 2))
        assert not batched.runs_alone
    again = pickle.loads(pickle.dumps(edbatch.batch(nn.Linear(2, 2))))
    for _ in range(3):
        again(torch.ones(1, 2))
    assert again.runs_alone
    assert not pickle.loads(pickle.dumps(again)).runs_alone


def test_rests_grow_while_batching_does_not_pay_and_end_when_it_does():
    ways, rest = Ways(), FIRST_REST
    while rest < 4 * LONGEST_REST:
        assert ways.runs_alone("kind") is None
        assert ways.is_asked("kind")
        ways.judge("kind", LOSS)
        for _ in range(min(rest, LONGEST_REST)):
            assert ways.runs_alone("kind") is LOSS
        rest *= 2
    assert ways.runs_alone("kind") is None
    ways.is_asked("kind")
    ways.judge("kind", GAIN)
    assert ways.runs_alone("kind") is None


def test_batched_calls_are_judged_ever_more_rarely():
    ways, asked = Ways(), []
    for number in range(1, 70):
        if ways.is_asked("kind"):
            asked.append(number)
            ways.judge("kind", GAIN)
    assert asked == [1, 2, 4, 8, 16, 32, 64]


def test_kinds_of_calls_are_bounded(monkeypatch):
    monkeypatch.setattr(paying, "MAX_KINDS", 3)
    ways = Ways()
    for kind in range(9):
        assert ways.is_asked(kind)
        ways.judge(kind, LOSS)
    assert [ways.runs_alone(kind) for kind in range(9)] == [None] * 6 + [LOSS] * 3


def test_recording_in_python_counts_more_than_in_c():
    cell = nn.Linear(3, 3)

    def function(x, in_python):
        for _ in range(40):
            x = torch.where(x > 0, x, -x) if in_python else cell(x)
        return x

    estimates = []
    for in_python in (False, True):
        batched = edbatch.batch(function)
        execution, _ = batched.pipeline.prepare((torch.ones(4, 3), [in_python] * 4), {}, batched.policy, Stopwatch())
        recording = execution.plan.recording
        assert recording.num_recorded == 4 * 40 * (3 if in_python else 1)
        estimates.append(recording.num_in_python)
    assert RECORDS_IN_C is (estimates[0] < 40)
    assert estimates[1] >= 4 * 40  # comparisons are recorded in Python


def test_known_examples_cost_no_recording():
    batched = edbatch.batch(nn.Linear(3, 3), key=lambda x: 1)
    for _ in range(2):
        execution, _ = batched.pipeline.prepare((torch.ones(4, 3),), {}, batched.policy, Stopwatch())
        assert execution.plan.recording.num_recorded == 0
