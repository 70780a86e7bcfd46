"""What tests of `edbatch.batch(fn, key=…)` share: models that count how often they are recorded, and comparisons."""

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

import edbatch


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
    (a, results_a), (b, results_b) = (x.pipeline.record_examples(columns, keywords) for x in (plain, known))
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
