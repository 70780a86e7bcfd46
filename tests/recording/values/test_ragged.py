"""Rows of any length and n-ary sums: one type whatever their number, and right in every use."""

import pytest
import torch
from torch import nn

import edbatch

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(4, 6, dtype=torch.float64, generator=GENERATOR)
Y = torch.rand(4, 6, dtype=torch.float64, generator=GENERATOR) + 0.5


def test_sums_are_n_ary():
    def running(xs):
        total = 0
        for x in xs:
            total = total + x
        return total

    for function in (running, sum, lambda xs: torch.stack(xs).sum(0)):
        batched = edbatch.batch(lambda x, n, function=function: function([x * i for i in range(n)]))
        torch.testing.assert_close(
            batched(X, [1, 2, 3, 4]), torch.stack([x * k for x, k in zip(X, [0, 1, 3, 6], strict=True)])
        )
        assert [t.num_batches for t in batched.stats.types] == [1, 1]
    empty = edbatch.batch(lambda x: sum([]) + x)  # Python's empty sum is 0
    assert torch.equal(empty(X), X)


def test_a_mean_is_one_node():
    def function(x, n):
        values = [x * i for i in range(1, n + 1)]
        rows = torch.stack(values)
        return rows.mean(0), (rows * 2).mean(0)

    batched = edbatch.batch(function)
    x = X.clone().requires_grad_()
    first, second = batched(x, [1, 2, 3, 4])
    torch.testing.assert_close(first, x * torch.tensor([[1.0], [1.5], [2.0], [2.5]]))
    torch.testing.assert_close(second, 2 * first)
    (gradient,) = torch.autograd.grad((first + second).sum(), x)
    torch.testing.assert_close(gradient, torch.tensor([[3.0], [4.5], [6.0], [7.5]]).expand(4, 6).double())
    means = [t for t in batched.stats.types if t.name.startswith("mean of")]
    assert [(t.num_nodes, t.num_batches) for t in means] == [(4, 1), (4, 1)]
    assert batched.stats.num_nodes == 10 + 8 + 2 * 4  # products; copies and doubles of the rows; means


def test_a_sum_used_twice_is_not_expanded_twice():
    def fibonacci(x):
        a, b = x, x * 2
        for _ in range(40):
            a, b = b, a + b
        return b * 1e-8

    edbatch.check(fibonacci, X)
    assert edbatch.record(fibonacci, X[:1]).num_nodes < 50


def test_sums_keep_the_grad_mode_they_were_made_in():
    def function(x):
        with torch.no_grad():
            s = x + x * 2
        return s + x

    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(edbatch.batch(function)(x).sum(), x)
    assert torch.equal(g, torch.ones_like(x))


def test_rows_of_different_lengths_are_one_type():
    linear = nn.Linear(6, 6).double()

    def function(xs):
        rows = torch.stack([x * 2 for x in xs])
        return torch.tanh(linear(rows)).sum(0), (rows * 2 + 1).mean(dim=0), rows @ xs[0] @ rows

    lists = [list(X[:n]) for n in (1, 2, 3, 4)]
    batched = edbatch.batch(function)
    edbatch.check(batched, lists)
    batched(lists)
    assert len({t.name for t in batched.stats.types}) == batched.stats.num_types == batched.stats.num_batches


OF_ROWS = [
    lambda rows, x: rows.sum(-1),
    lambda rows, x: (rows * x).sum(dim=1).softmax(0),
    lambda rows, x: torch.mean(rows, (1,)),
    lambda rows, x: torch.sum(rows, 1, keepdim=True) * rows,
    lambda rows, x: rows.unsqueeze(1).sum((1, -1)),
    lambda rows, x: rows.max(1).values,
    lambda rows, x: torch.max(rows, dim=-1)[0] + rows.argmax(-1),
    lambda rows, x: torch.softmax(rows, -1) + nn.functional.log_softmax(rows, dim=1),
    lambda rows, x: rows.cumsum(1) + torch.logsumexp(rows, 1, keepdim=True),
    lambda rows, x: rows[:, :1].squeeze(-1) + rows[:, 2] + rows[..., 3],
    lambda rows, x: rows[:, None, 1:3].squeeze(1)[:, -1],
    lambda rows, x: rows[..., None] * x[:1],
    lambda rows, x: rows[:, 1].unsqueeze(-1) * rows,
    lambda rows, x: torch.log_softmax(rows @ x, dim=0),
    lambda rows, x: rows.log_softmax(-2) + nn.functional.log_softmax(rows @ x, 0).unsqueeze(1),
]


@pytest.mark.parametrize("function", OF_ROWS)
def test_functions_of_the_other_dimensions_of_rows_are_one_type(function):
    weight = nn.Parameter(Y[0].clone())

    def weighted(xs):
        values = function(torch.stack([x * weight for x in xs]), xs[0] * weight)
        return values.sum(0), 10 + (values * 2).logsumexp(0)  # not near zero, where rounding is all there is

    lists = [list(X[:n]) for n in (2, 3, 2, 4)]
    edbatch.check(weighted, lists)
    batched = edbatch.batch(weighted, stack=False)
    batched(lists[:1])
    of_one_length = batched.stats.num_types
    batched(lists)
    assert batched.stats.num_types == of_one_length > 4


def test_other_functions_of_rows_are_typed_by_length():
    def function(xs):
        rows = torch.stack([x * 2 for x in xs])
        weights = (rows @ xs[0]).softmax(0)
        return (
            rows.flatten()[-1],
            rows.std(),
            torch.sort(weights).values[0],
            rows[0],
            rows[-1, 2],
            torch.cat([rows, rows]).sum(),
        )

    lists = [list(X[:n]) for n in (2, 3, 2, 4)]
    edbatch.check(function, lists)


def test_a_sum_used_after_it_was_added_to_itself():
    def function(x, y):
        s = x + y
        u = s + s
        v = u + s
        return s * 1.0, u * 1.0, v * 1.0, s + v

    edbatch.check(function, X, Y)


def test_rows_of_numbers_and_of_integers():
    linear = nn.Linear(6, 2).double()

    def function(x):
        return linear(torch.stack([x[i] for i in range(6)])), torch.stack([(x * 9).int(), (x * 5).int()]).sum(0)

    edbatch.check(function, X)


def test_leaked_rows():
    kept = []

    def keep(x):
        kept.append(torch.stack([x * 1, x * 2]))
        return x

    edbatch.record(keep, X)
    for function in (lambda x: kept[0], lambda x: kept[0][0], lambda x: kept[0].sum(0)):
        with pytest.raises(edbatch.EdbatchError, match="outside the call"):
            edbatch.batch(function)(X)


def test_a_product_with_rows_is_not_taken_for_a_broadcast():
    """With as many rows as entries both `weights @ rows` and `rows * weights` are right, and mean different things."""

    def function(x):
        rows = torch.stack([x, x * 2, x * 3, x * 4, x * 5, x * 6])
        weights = rows @ x
        return (
            weights @ rows,
            (rows * weights).sum(0),
            weights @ rows,
            (rows * x).mean(dim=0),
            torch.softmax(weights, 0),
        )

    edbatch.check(edbatch.batch(function), X)


def test_rows_of_different_lengths_are_refused_also_when_the_function_is_known():
    def function(x):
        two, three = (torch.stack([x] * n) * 1 for n in (2, 3))
        return (two * two).sum(0) + (three * three).sum(0) + (two * three).sum(0)

    with pytest.raises(RuntimeError, match="must match"):
        edbatch.batch(function)(X)


@pytest.mark.parametrize(
    "function",
    [
        lambda rows, x: rows.sum(1).max(),
        lambda rows, x: torch.max(rows.sum(1)),
        lambda rows, x: torch.max(rows, torch.tensor(0.0, dtype=torch.float64)),
        lambda rows, x: rows.max(torch.zeros(6, dtype=torch.float64)),
        lambda rows, x: torch.max(rows, x),
        lambda rows, x: torch.max(rows, rows * 2),
        lambda rows, x: torch.max(x, rows),
        lambda rows, x: rows.max(0).values + rows.sum(0) + rows.mean(dim=0),
        lambda rows, x: rows.sum(),
        lambda rows, x: torch.stack([x.sum(), x.mean()]).sum() + torch.stack([x.sum(), x.mean()]).mean(),
    ],
)
def test_reductions_are_told_from_what_only_looks_like_them(function):
    def twice(x, n):
        return [function(torch.stack([x * i for i in range(1, n + 1)]), x) for _ in range(2)]

    edbatch.check(edbatch.batch(twice, stack=False), X, [3, 3, 3, 3])


@pytest.mark.parametrize("function", [torch.sum, torch.mean, torch.softmax, torch.amax])
def test_leaked_rows_in_functions(function):
    kept = []
    edbatch.record(lambda x: kept.append(torch.stack([x, x])) or x, X)
    with pytest.raises(edbatch.EdbatchError, match="outside the call"):
        edbatch.batch(lambda x: x + function(kept[0], 0))(X)


def test_the_sum_of_masks_is_a_number():
    """Python's sum() begins with 0, which makes numbers of masks."""
    edbatch.check(lambda x: sum(x > i for i in range(-1, 2)), X)
    edbatch.check(lambda x: 0 + (x > 0), X)


@pytest.mark.parametrize(
    "function",
    [lambda x: x[:0] + x[1:1] + x[:0], lambda x: torch.stack([x[:0], x[1:1]]).mean(0), lambda x: sum([x[:0]] * 3)],
)
def test_sums_and_means_of_values_without_elements(compilation, function):
    assert edbatch.batch(function)(X).shape == (len(X), 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: torch.sum(input=rows, dim=1).sum(0),
        lambda rows: torch.softmax(input=rows, dim=0).sum(0),
        lambda rows: nn.functional.linear(input=rows, weight=torch.ones(2, 6, dtype=torch.float64)).sum(0),
    ],
)
def test_rows_given_by_keyword(function):
    weight = nn.Parameter(Y[0].clone())
    edbatch.check(lambda x, n: function(torch.stack([x * weight] * n)), X, [1, 2, 3, 2])
