"""Writes in place: the caller's value sees them, or they are refused; they are never lost."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import edbatch
from edbatch.errors import InPlaceError, RecordingError
from like_torch import like_torch

X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
relu = nn.ReLU(inplace=True)


@edbatch.cell
def adds_one(a):
    a += 1
    return a * 3


@edbatch.cell
def writes_the_second(a, b):
    b.mul_(a)
    return b


def result_dropped(x):
    h = x * 2
    F.relu(h, inplace=True)
    return h + 1


def value_and_result(x):
    h = x * 2
    y = relu(h)
    return y + h


def written_by_a_cell(x):
    h = x * 2
    y = adds_one(h)
    return y, h * x


def written_by_a_cell_and_given_back(x):
    h, g = x * 2, x + 1
    y = writes_the_second(g, h)
    y += 1
    return y * x, h * 2, g


def other_names(x):
    a = x * 2
    b, kept = a, [a]
    a += x
    a *= 2
    return a, b * 1, kept[0] * 3


def before_and_after(x):
    a = x * 2
    before = torch.tanh(a)
    rows = torch.stack([a, a])
    a -= 1
    return before, torch.tanh(a), rows.sum(0)


def grows(x):
    total = x * 0
    for i in range(3):
        total += x * i
    return total, total * 2


def grows_from_a_plain_tensor(x):
    total = torch.zeros(3, dtype=torch.float64)
    other = total
    for i in range(3):
        total += x * i
    other *= 2
    return total + other, other * x, other.shape[0] * other


def rows_grow(x):
    rows = torch.stack([x, x * 2])
    rows += x
    rows *= 2
    return rows.sum(0), torch.tanh(rows).sum(0)


def starts_with_the_first(x):
    xs = [x * i for i in range(1, 4)]
    total = xs[0]
    for y in xs[1:]:
        total += y
    return total, xs[0] * 1


def sum_is_a_new_value(x):
    h = x * 2
    s = sum([h])
    s += 1
    return s, h * 1


class User(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, x):
        return self.linear(x)


def modules():
    return {
        "beside a user's module": nn.Sequential(User(), nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True)).eval(),
        "first of a cell": nn.Sequential(User(), nn.Sequential(nn.ReLU(inplace=True), nn.Tanh())),
        "twice": nn.Sequential(User(), nn.ELU(inplace=True), nn.LeakyReLU(inplace=True), nn.Hardtanh(inplace=True)),
    }


FUNCTIONS = [
    result_dropped, value_and_result, written_by_a_cell, written_by_a_cell_and_given_back, other_names,
    before_and_after, grows, grows_from_a_plain_tensor, rows_grow, starts_with_the_first, sum_is_a_new_value,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_writes_are_seen(function):
    like_torch(function, X)


@pytest.mark.parametrize("name", modules())
def test_modules_that_write_in_place(name):
    like_torch(modules()[name], X)


def view_written(x):
    h = x * 2
    v = h[0]
    v += 1
    return h


def base_written(x):
    h = x * 2
    v = h[:2]
    h += 1
    return v


def part_written(x):
    h = x * 2
    a, _ = h.chunk(2)
    F.relu(a, inplace=True)
    return h


def row_written(x):
    rows = torch.stack([x * 2, x])
    first = rows[0]
    first += 1
    return rows.sum(0)


def rows_written(x):
    rows = torch.stack([x * 2, x])
    first = rows[0]
    rows += 1
    return first


def same_twice(x):
    h = x * 2
    return writes_the_second(h, h)


def column_written(x):
    x += 1
    return x


def identity_written(x):
    h = x * 2
    g = h.contiguous()
    g += 1
    return h


def written_without_grad(x):
    h = x * 2
    with torch.no_grad():
        h += 1
    return h


def wider(x):
    h = x.sum()
    h += x
    return h


def other_dtype(x):
    h = x > 0
    h += x
    return h


def plain_view(x):
    total = torch.zeros(3, dtype=torch.float64)
    part = total[:2]
    total += x
    return part * x[0]


def parameter_row(x):
    row = WEIGHT[0]
    with torch.no_grad():
        row += 1
    return x * row


WEIGHT = nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
REFUSED = [
    base_written, part_written, rows_written, same_twice, column_written, identity_written, written_without_grad,
    wider, other_dtype, plain_view, parameter_row,
]  # fmt: skip


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_others_would_see_is_refused(function):
    with pytest.raises(InPlaceError, match=r"written|in place"):
        edbatch.batch(function)(X.clone().requires_grad_())


def test_a_cell_that_runs_one_by_one_and_writes_its_argument_is_refused():
    @edbatch.cell
    def cell(a):
        a += 1
        return a * a.sum().item()

    with pytest.raises(InPlaceError, match="writes one of its arguments in place"):
        edbatch.batch(lambda x: cell(x * 2))(X)


class Shared(nn.Module):
    """Examples that compute with parameters alone, of which one writes what it computed."""

    def __init__(self, write, others):
        super().__init__()
        self.p = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("b", torch.ones(3, dtype=torch.float64))
        self.write, self.others = write, others

    def forward(self, x, i):
        return self.write(self, x) if i == 2 else self.others(self, x)


def writes_a_result(model, x):
    v = model.p * 2
    v += 1
    return x * v


def writes_twice(model, x):
    s = 0
    s += model.p * 1
    s += model.p * 1
    return x * s


def writes_data(model, x):
    y = x * model.p
    model.p.data.mul_(2)
    return y


def writes_detached(model, x):
    y = x * model.p
    model.p.detach().add_(1)
    return y


def writes_a_view_of_a_result(model, x):
    v = model.p * 2
    y = x * v
    with torch.no_grad():
        v[:1].add_(1)
    return y


def writes_the_buffer(model, x):
    y = x * model.b
    model.b += 1
    return y


def reads(model, x):
    return x * (model.p * 2)


WRITES = [writes_a_result, writes_twice, writes_data, writes_detached, writes_a_view_of_a_result, writes_the_buffer]


@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("others", [reads, writes_twice], ids=lambda f: f.__name__)
def test_what_examples_share_is_not_changed_for_others(write, others):
    model = Shared(write, others)
    untouched = copy.deepcopy(model)
    expected = [untouched(x, i) for i, x in enumerate(X)]
    try:
        found = edbatch.batch(model, stack=False)(X, list(range(4)))
    except InPlaceError:
        return
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(model.state_dict(), untouched.state_dict())


def test_a_result_of_parameters_that_nobody_else_holds_may_be_written():
    like_torch(Shared(writes_twice, writes_twice), X, list(range(4)))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_a_cell_that_writes_what_others_read_is_refused():
    counter = edbatch.cell(Counter())
    expected = [copy.deepcopy(counter)] * 4
    torch.testing.assert_close(edbatch.batch(counter)(X), torch.stack([c(x) for c, x in zip(expected, X, strict=True)]))
    with pytest.raises(InPlaceError, match="also read elsewhere"):
        edbatch.batch(lambda x: counter(x) + counter.calls)(X)


class Keeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        self.last = x * 2
        return self.last + 1


def test_a_lazy_value_is_not_kept_in_a_buffer():
    model = Keeping()
    before = model.last
    with pytest.raises(RecordingError, match="buffer 'last'"):
        edbatch.batch(model)(X)
    assert model.last is before


@edbatch.cell
def second_as_it_is(a, b):
    return a + 1, b


def test_a_tensor_that_a_cell_gave_back_is_not_written_later():
    total = torch.zeros(3, dtype=torch.float64)

    def model(x):
        _, same = second_as_it_is(x, total)
        total.add_(1)
        return same * x

    with pytest.raises(InPlaceError, match=r"view.*clone"):
        edbatch.batch(model)(X)


def test_an_item_at_a_tensor_is_a_view():
    with pytest.raises(InPlaceError, match=r"x\.clone\(\) first"):
        edbatch.batch(lambda x: relu(x[torch.tensor(0)]))(X.clone())
    like_torch(lambda x: relu((x * 2)[torch.tensor([0])]) + x[torch.tensor(-1)], X.clone())


def test_out_in_a_cell_is_refused():
    cell = edbatch.cell(lambda a, b: torch.add(a, b, out=b))
    with pytest.raises(InPlaceError, match="out="):
        edbatch.batch(lambda x: cell(x, x * 2))(X.clone())


def test_a_buffer_written_through_a_detached_view():
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    model.register_buffer("offset", torch.zeros(3, dtype=torch.float64))

    def forward(x):
        offset = model.weight + model.offset  # once for all examples, but for what is written
        model.offset.detach()[0] += 1
        return x * offset

    ours = edbatch.batch(forward)(X)
    model.offset.zero_()
    torch.testing.assert_close(ours, torch.stack([forward(x) for x in X]))


def test_a_table_that_its_lookups_normalise_is_read_nowhere_else():
    table = nn.Embedding(5, 3, max_norm=0.5, dtype=torch.float64)
    numbers = torch.tensor([0, 1, 1, 4])
    for function in (lambda x, i: table(i) * table.weight.sum(), lambda x, i: table(i) * x @ table.weight.T):
        with pytest.raises(InPlaceError, match="also read elsewhere"):
            edbatch.batch(function)(X, numbers)


def test_two_calls_with_a_table_that_its_lookups_normalise_before_one_backward():
    table = nn.Embedding(5, 3, max_norm=0.5, dtype=torch.float64)
    plain = copy.deepcopy(table)
    numbers = torch.tensor([0, 1, 1, 4])
    batched = edbatch.batch(lambda x, i: table(i) * x)
    (batched(X, numbers).sum() + batched(X, numbers + 0).sum()).backward()
    sum((plain(i) * x).sum() for _ in range(2) for x, i in zip(X, numbers, strict=True)).backward()
    torch.testing.assert_close(table.weight.grad, plain.weight.grad)
    torch.testing.assert_close(table.weight, plain.weight)


def test_rows_and_a_value_of_fixed_length_are_not_written_into_one_another():
    table = nn.Embedding(5, 3, dtype=torch.float64)

    def model(x, numbers):
        rows = torch.stack([x, x * 2])
        rows += table(numbers)
        return rows

    columns = X, torch.randint(5, (4, 2))
    with pytest.raises(InPlaceError, match=r"x = x \+ y"):
        edbatch.batch(model)(*columns)
    like_torch(lambda x, numbers: torch.stack([x, x * 2]) + table(numbers), *columns, parameters=[table.weight])


MATRICES = [torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (2, 3, 2)]
SQUARE = nn.Parameter(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


def methods(x):
    h = x @ SQUARE
    h.add_(1).mul_(2)
    h.masked_fill_(h.detach() > 3, 0.5)
    g = h * 2
    g.copy_(h.sum(0))
    k = h + 1
    k.zero_()
    k.fill_(2.0)
    k.index_add_(0, torch.tensor([0]), x[:1])
    k.scatter_(1, torch.tensor([[0], [1]]), 7.0)
    torch.relu_(g)
    others = [x @ SQUARE for _ in range(3)]
    F.elu_(others[0])
    others[1].clamp_(max=0.5)
    others[2].sub_(x.float())
    return h.sum(0), g.sum(0), k.sum(0), *[other.sum(0) for other in others]


def buffer_of_rows(x):
    rows = torch.zeros(len(x), 3, dtype=torch.float64)
    for i in range(len(x)):
        rows[i] = torch.tanh(x[i] @ SQUARE + (rows[i - 1] if i else 0))
    return rows.sum(0), rows[-1], rows.max(0).values


def rows_that_are_added_to(x):
    rows = torch.ones(len(x), 3, dtype=torch.float64)
    for i in range(len(x)):
        rows[i] += x[i] @ SQUARE
        rows[i] += x[0]
        rows[i] *= 2
    return rows.sum(0)


def parts_of_a_buffer(x):
    part = torch.zeros(len(x), 3, dtype=torch.float64)
    part[1:] = x[1:] @ SQUARE
    part[0, 1] = x[0, 0]
    part[:, 2] = 5
    part[part > 4] = 1.0
    part[0][part[0] == 1.0] = 3.0
    part[[0, 1]] = part[[1, 0]]
    return part.sum(0)


def parts_of_a_value(x):
    h = x @ SQUARE
    h[0] = h[1] * 2
    h[1, :2] = x[0, :2]
    h[0] += x[1]
    h[-1, 0] += 1
    h[h > 1] = 0.0
    h[:, 1] *= 2
    h[torch.tensor([0, 1])] = x[:2] * 2
    h[..., 0] = 7
    return h.sum(0)


def made_like_another(x):
    b = x.new(2, 3).zero_()
    b[0] = x[0] @ SQUARE
    c = x.new_zeros(4)
    c[1] = b.sum()
    return b, c


def given_for_results(x):
    with torch.no_grad():
        b = torch.empty(3, dtype=torch.float64)
        torch.add(x[0], x[1], out=b)
        c = x * 2
        torch.mul(x, x @ SQUARE, out=c)
    return b * x[0] @ SQUARE, c.sum(0)


def views_that_are_gone(x):
    h = x @ SQUARE
    total = h.view(-1)[:2].sum()
    h.add_(total)
    v = h.t()
    other = v.sum()
    del v
    h.mul_(other)
    return h.sum(0)


def rows_of_a_stack(x):
    rows = torch.stack([x[0] * 2, x[1]])
    first = rows[0]
    first += 1
    rows[1] = first * 2
    del first
    rows[0] += x[0]
    return rows.sum(0) @ SQUARE


def random_numbers_in_their_places(x):
    h = x @ SQUARE
    h.uniform_(2.0, 3.0)
    g = (x * 2).normal_(1.0, 0.0)
    return (h >= 2).all() & (h <= 3).all() & (g == 1).all()


IN_PLACE = [
    row_written, view_written, methods, buffer_of_rows, rows_that_are_added_to, parts_of_a_buffer, parts_of_a_value,
    made_like_another, given_for_results, views_that_are_gone, rows_of_a_stack, random_numbers_in_their_places,
]  # fmt: skip


@pytest.mark.parametrize("function", IN_PLACE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("key", [None, lambda x: str(x.tolist())])
def test_values_that_nobody_else_sees_are_written(function, key):
    is_square = function in (methods, given_for_results, made_like_another)
    columns = [x.clone().requires_grad_() for x in MATRICES if len(x) == 2 or not is_square]
    like_torch(function, columns, parameters=[SQUARE], key=key)


def test_rows_of_a_buffer_are_batched_whatever_their_number():
    batched = edbatch.batch(buffer_of_rows, stack=False)
    batched([x.clone() for x in MATRICES])
    assert batched.stats.num_types <= 12
    assert not [name for name in batched.pipeline._last_types.names if "stack of" in name and "rows" not in name]


def a_row_while_its_view_lives(x):
    rows = torch.zeros(2, 3, dtype=torch.float64)
    rows[0] = x[0]
    first = rows[0]
    rows[0] = x[1]
    return first


def a_buffer_while_its_view_lives(x):
    rows = torch.zeros(2, 3, dtype=torch.float64)
    first = rows[0]
    rows[1] = x[0]
    return first + rows[1]


def a_part_after_another_view(x):
    h = x * 2
    view, first = h[0, :2], h[0]
    first += 1
    return view + h[0, 1]


@pytest.mark.parametrize(
    "function", [a_row_while_its_view_lives, a_buffer_while_its_view_lives, a_part_after_another_view]
)
def test_writes_that_a_living_view_would_see_are_refused(function):
    with pytest.raises(InPlaceError, match=r"such as a view of it"):
        edbatch.batch(function)([x.clone() for x in MATRICES])


def test_numbers_and_flags_are_written_into_values():
    def flags(x):
        z, is_large = x[0].clone(), x > 0
        z[1] = True
        is_large[0] = False
        return z * 2, is_large

    batched = edbatch.batch(flags)
    columns = torch.randn(4, 3, 3, dtype=torch.float64)
    for ours, theirs in zip(batched(columns), zip(*map(flags, columns), strict=True), strict=True):
        assert torch.equal(ours, torch.stack(theirs))
