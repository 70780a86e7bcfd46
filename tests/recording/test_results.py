"""What goes in and comes out: columns, shared keywords, every way to put results together, batches inside batches."""

import pytest
import torch
from torch import nn

import edbatch

X = torch.randn(4, 6, dtype=torch.float64)
W = nn.Parameter(torch.randn(6, 6, dtype=torch.float64))


def test_columns_and_shared_keywords():
    shared = torch.randn(6, dtype=torch.float64, requires_grad=True)

    def function(x, n, *, scale, vector):
        return x * n * scale + vector

    batched = edbatch.batch(function)
    ours = batched(X, (1, 2, 3, 4), scale=2.0, vector=shared)
    theirs = X * torch.arange(1, 5)[:, None] * 2.0 + shared
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours.sum(), shared)[0], torch.full((6,), 4.0, dtype=torch.float64))
    kernels = batched.pipeline.kernels
    before = {t: {s: set(k) for s, k in states.items()} for t, states in kernels._kernels.items()}
    batched(X, (1, 2, 3, 4), scale=3.0, vector=shared.detach() * 2)
    assert {t: {s: set(k) for s, k in states.items()} for t, states in kernels._kernels.items()} == before


def test_every_stack():
    def function(x, n):
        return {"rows": torch.stack([x * i for i in range(1, n + 1)]), "name": str(n), "one": x.sum()}

    lengths = [1, 3, 2, 1]
    rows = [torch.stack([x * i for i in range(1, n + 1)]) for x, n in zip(X, lengths, strict=True)]
    listed = edbatch.batch(function, stack=False)(X, lengths)
    assert [e["name"] for e in listed] == ["1", "3", "2", "1"]
    assert all(torch.equal(e["rows"], r) for e, r in zip(listed, rows, strict=True))
    joined = edbatch.batch(function, stack="cat")(X, lengths)
    assert torch.equal(joined["rows"][0], torch.cat(rows))
    assert joined["rows"][1].tolist() == lengths
    assert joined["name"] == ["1", "3", "2", "1"]
    assert joined["one"][1].tolist() == [1] * 4
    padded = edbatch.batch(function, stack="pad")(X, lengths)["rows"]
    assert torch.equal(padded, nn.utils.rnn.pad_sequence(rows, batch_first=True))
    stacked = edbatch.batch(function)(X, [2] * 4)
    assert stacked["rows"].shape == (4, 2, 6)
    assert stacked["name"] == ["2"] * 4
    for stack in (True, "pad", "cat", False):
        batched = edbatch.batch(lambda x: (x, x[0]), stack=stack)
        ours, theirs = batched(X), batched.one_by_one(X)
        assert torch.utils._pytree.tree_structure(ours) == torch.utils._pytree.tree_structure(theirs)
        for a, b in zip(torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(theirs), strict=True):
            assert torch.equal(a, b)


def test_cat_of_values_with_rows():
    """Values of one shape are joined without being taken apart."""
    batched = edbatch.batch(lambda x: (x.view(2, 3) * 2, x.view(1, 3, 2)), stack="cat")
    (two, twos), (one, ones) = batched(X)
    assert torch.equal(two, (X * 2).view(8, 3))
    assert torch.equal(one, X.view(4, 3, 2))
    assert (twos.tolist(), ones.tolist()) == ([2] * 4, [1] * 4)


def test_results_that_are_not_lazy():
    constant = torch.ones(2)
    ours = edbatch.batch(lambda x: (constant, W, 3, x))(X)
    assert ours[0].shape == (4, 2)
    assert ours[1].shape == (4, 6, 6)
    assert ours[2] == [3] * 4
    assert torch.equal(ours[3], X)


@pytest.mark.usefixtures("as_recorded")
def test_nested_batch():
    inner = edbatch.batch(lambda x, y: torch.tanh(x + y))

    def outer(x, n):
        return inner([x * 2] * n, [x * i for i in range(n)]).sum(0)

    batched = edbatch.batch(outer)
    ours = batched(X, [1, 2, 3, 4])
    expected = [sum(torch.tanh(2 * x + x * i) for i in range(n + 1)) for n, x in enumerate(X)]
    torch.testing.assert_close(ours, torch.stack(expected))
    assert batched.stats.num_nodes == 14 + 10 + 10 + 4  # products, sums of two, tanh of them, sums over rows
    assert batched.stats.num_batches == 4
    torch.testing.assert_close(batched.one_by_one(X, [1, 2, 3, 4]), ours)


def test_a_batched_call_inside_a_cell():
    inner = edbatch.batch(lambda x: x * 2)
    cell = edbatch.cell(lambda x: inner([x, x + 1]).sum(0))
    batched = edbatch.batch(lambda x: cell(x))
    torch.testing.assert_close(batched(X), X * 4 + 2)
    assert batched.stats.num_nodes == 4
    plain = edbatch.batch(lambda x: x + inner(torch.ones(3, 6, dtype=torch.float64)).sum(0))
    torch.testing.assert_close(plain(X), X + 6)


def test_nested_batch_of_lazy_values_stacks_them():
    inner = edbatch.batch(nn.Embedding(5, 3))
    outer = edbatch.batch(lambda n: inner(list(range(n))).sum(0))
    torch.testing.assert_close(outer([1, 2, 3]), torch.stack([inner.fn.weight[:n].sum(0) for n in (1, 2, 3)]))


def test_none_beside_tensors_in_a_list():
    function = lambda x, i: x * 2 if i else None  # noqa: E731
    ours = edbatch.batch(function, stack=False)(X, [0, 1, 1, 0])
    assert ours[0] is None
    assert torch.equal(ours[1], X[1] * 2)
