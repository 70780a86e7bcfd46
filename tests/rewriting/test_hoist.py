"""Hoisted recordings: which nodes are split, that results stay the same, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import edbatch
from edbatch.rewriting.rewrite import rewrite

pytestmark = pytest.mark.usefixtures("double")

WORDS, DIM = 11, 4


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.w, self.u = nn.Embedding(WORDS, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, word, h):
        return torch.tanh(self.w(self.table(word)) + self.u(h))


class Chain(nn.Module):
    """The states of a recurrent network along a list of words."""

    def __init__(self, step=Step):
        super().__init__()
        self.step = edbatch.cell(step())
        self.h0 = nn.Parameter(torch.randn(DIM))

    def forward(self, words):
        h, states = self.h0, []
        for word in words:
            h = self.step(word, h)
            states.append(h)
        return torch.stack(states).sum(0), h


CHAINS = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]


def batches_of(function, *columns, policy="bound-greedy"):
    """How many nodes and batches every type has; checked to be equal to one by one, with gradients."""
    batched = edbatch.batch(function, policy=policy)
    edbatch.check(batched, *columns)
    batched(*columns)
    return {t.name: (t.num_nodes, t.num_batches) for t in batched.stats.types}


def test_input_products_of_a_chain_run_ahead():
    found = batches_of(Chain(), CHAINS)
    assert found["step(int, f64[4]) ahead"] == (10, 1)
    assert found["step(int, f64[4])"] == (10, 4)


def test_equal_nodes_ahead_are_one():
    """A word that comes again, in whatever example, is looked up and multiplied once."""
    found = batches_of(Chain(), [[1, 2, 1], [2, 1], [1, 3, 3, 3]])
    assert found["step(int, f64[4]) ahead"] == (3, 1)
    assert found["step(int, f64[4])"] == (9, 4)


def test_types_by_first_appearance_and_topological_order():
    recording, _ = rewrite(*edbatch.batch(Chain()).pipeline.record_examples((CHAINS,), {}))
    recording.graph.check()
    names = [t.name for t in recording.node_types]
    assert names[:2] == ["step(int, f64[4]) ahead", "step(int, f64[4])"]
    assert list(dict.fromkeys(recording.types.tolist())) == list(range(len(names)))
    assert recording.types[recording.starts].tolist() == [0] * len(CHAINS)
    nodes = np.flatnonzero(recording.types == 0)
    assert (recording.types[nodes + 1] == 1).all()


def test_names_are_the_same_in_every_recording():
    model = Chain()
    assert edbatch.record(model, CHAINS).type_names == edbatch.record(Chain(), CHAINS[::-1]).type_names
    with torch.no_grad():
        assert edbatch.record(model.eval(), CHAINS).type_names == edbatch.record(model, CHAINS).type_names


def test_without_recurrence_cells_stay_whole():
    found = batches_of(Chain(), [[1], [2], [3]])
    assert found["step(int, f64[4])"] == (3, 1)
    assert not any(name.endswith("ahead") for name in found)


def test_nothing_is_touched_where_nothing_runs_ahead():
    step = edbatch.cell(nn.Linear(DIM, DIM))
    recorded, results = edbatch.batch(lambda x: step(step(x))).pipeline.record_examples((torch.randn(3, DIM),), {})
    after, same = rewrite(recorded, results)
    assert after is recorded
    assert same is results


def test_recurrence_over_several_types():
    """Two cells that feed each other, and a sum between them: each one's own input runs ahead."""

    class Ladder(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = edbatch.cell(Step()), edbatch.cell(Step())
            self.h0 = nn.Parameter(torch.randn(DIM))

        def forward(self, words):
            a = b = self.h0
            for word in words:
                a, b = self.left(word, a + b), self.right(word, a)
            return a, b

    found = batches_of(Ladder(), CHAINS)
    assert found["left(int, f64[4]) ahead"] == found["right(int, f64[4]) ahead"] == (10, 1)


def test_operands_that_are_computed():
    """A second layer reads the states of the first, which are outside of its own recurrence."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.u = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

        def forward(self, x, h):
            return torch.tanh(self.w(x) + self.u(h)) * x, x.sum()

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = edbatch.cell(Step()), edbatch.cell(Layer())
            self.h0 = nn.Parameter(torch.randn(DIM))

        def forward(self, words):
            a = b = self.h0
            total = 0
            for word in words:
                a = self.first(word, a)
                b, extra = self.second(a, b)
                total = total + extra
            return b, total

    found = batches_of(Layers(), CHAINS)
    assert found["second(f64[4], f64[4]) ahead"] == (10, 1)
    assert found["second(f64[4], f64[4])"] == (10, 4)


def test_lists_and_columns_of_tensors():
    """Operands from outside, and sums of any number of states."""

    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.u = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
            self.cell = edbatch.cell(lambda x, h: torch.tanh(self.w(x) + self.u(h)))

        def forward(self, x, length):
            states = [x]
            for _ in range(length):
                states.append(self.cell(x, sum(states[-3:])))
            return states[-1]

    found = batches_of(Sums(), torch.randn(4, DIM), [2, 5, 3, 1])
    ahead = [counts for name, counts in found.items() if name.endswith("ahead")]
    assert ahead == [(4, 1)]  # every step reads the same x


class Dropping(Step):
    def forward(self, word, h):
        return torch.tanh(nn.functional.dropout(self.w(self.table(word)), 0.5, self.training) + self.u(h))


def test_dropout_stays_where_it_is_but_evaluation_is_hoisted():
    model = Chain(Dropping)
    assert not any(name.endswith("ahead") for name in edbatch.record(model, CHAINS).type_names)
    found = batches_of(model.eval(), CHAINS)
    assert found["step(int, f64[4]) ahead"] == (10, 1)


def test_cells_run_one_by_one_stay_whole():
    model = Chain()
    model.step.register_forward_hook(lambda *_: None)
    assert not any(name.endswith("ahead") for name in edbatch.record(model, CHAINS).type_names)


def test_parameters_are_read_afresh():
    """Both parts read parameters when they run."""
    model = Chain()
    batched = edbatch.batch(model)
    batched(CHAINS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    for ours, theirs in zip(batched(CHAINS), batched.one_by_one(CHAINS), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_frozen_weights_and_partial_gradients():
    model = Chain()
    model.step.w.requires_grad_(False)
    model.step.table.requires_grad_(False)
    assert batches_of(model, CHAINS)["step(int, f64[4]) ahead"] == (10, 1)
    model.requires_grad_(False)
    assert batches_of(model, CHAINS)["step(int, f64[4]) ahead"] == (10, 1)


def test_gradients_of_inputs_from_outside():
    x = torch.randn(3, 5, DIM, requires_grad=True)
    cell = edbatch.cell(nn.RNNCell(DIM, DIM))

    def function(rows):
        h = torch.zeros(DIM)
        for i in range(5):
            h = cell(rows[i], h)
        return h

    batched = edbatch.batch(function)
    ours, theirs = (torch.autograd.grad(f(x).pow(2).sum(), x)[0] for f in (batched, batched.one_by_one))
    torch.testing.assert_close(ours, theirs)
    assert any(t.name.endswith("ahead") for t in batched.stats.types)


def test_errors_name_the_example():
    with pytest.raises(IndexError) as caught:
        edbatch.batch(Chain())([[1, 2], [3, WORDS]])
    assert any("example 1" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("policy", ["depth", "agenda", "ratio-greedy", "learned"])
def test_every_policy(policy):
    batches_of(Chain(), CHAINS, policy=policy)
