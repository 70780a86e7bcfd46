"""The example's own data can be read while it is recorded; nothing else can."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

import edbatch
from edbatch.errors import ValueReadError
from like_torch import like_torch, like_torch_with_key

TABLE = nn.Embedding(9, 3, dtype=torch.float64)
WEIGHT = nn.Parameter(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
WORDS = [torch.tensor(words) for words in ([1, 2, 3], [4, 5, 0, 0], [7], [1, 2, 3], [0, 8])]
OTHERS = [torch.tensor(words) for words in ([1, 0, 8], [3, 5, 1, 0], [2], [4, 2, 1], [8, 0])]


def rows(words, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(len(w), 3, dtype=torch.float64, generator=generator).requires_grad_() for w in words]


def as_a_list(words, x):
    return functools.reduce(lambda h, w: torch.tanh(TABLE(torch.tensor(w)) @ WEIGHT + h), words.tolist(), x.sum(0))


def one_after_the_other(words, x):
    h = x[0]
    for word, row in zip(words, x, strict=True):
        h = torch.tanh(TABLE(word) @ WEIGHT + h) if int(word) > 2 else h * row
    return h


def by_an_item(words, x):
    return x.sum(0) * words[0].item() if words[-1].item() else TABLE(words).sum(0)


def by_numpy(words, x):
    return (x @ WEIGHT).sum(0) * float(words.numpy().sum()) + float(np.asarray(x.detach()).max())


def by_data(words, x):
    return x.sum(0) @ WEIGHT if x.data[0, 0] > 0 else x.sum(0)


def by_any(words, x):
    mask = words == 0
    return TABLE(words).sum(0) if mask.any() else (x @ WEIGHT).sum(0)


def masked(words, x):
    return (x[words != 8] @ WEIGHT).sum(0) + torch.masked_select(x, x > 0).sum()


def at_nonzero(words, x):
    places = words.nonzero().flatten()
    return (x[places] @ WEIGHT).sum(0) + x[torch.where(words > 1)].sum(0)


def computed(words, x):
    length = (words != 0).sum()
    scale = torch.relu(words - 2).sum() + 1
    return x[:length].sum(0) @ WEIGHT * scale.item() + TABLE(words.max() - words)[0]


def repeated(words, x):
    return torch.repeat_interleave(x @ WEIGHT, words, dim=0).sum(0) + words.repeat_interleave(2).sum()


def as_a_range(words, x):
    return sum((x[i % len(x)] for i in range(words.max())), x[0] @ WEIGHT)


def contained(words, x):
    return x.sum(0) @ WEIGHT if 8 in words else x.sum(0)


def stacked(words, x):
    first, last = torch.stack([x[0], x[-1] * 2]).tolist()
    return x.sum(0) @ WEIGHT * first[1] * last[0] + torch.stack([x[0], x[-1]]).max(0).values.sum().item()


def summed(words, x):
    return x.sum(0) @ WEIGHT * (x[0] + x[0] + x[-1]).sum().item()


def made_a_tensor_of(words, x):
    return (TABLE(torch.tensor(list(words))) * torch.tensor([word * 0.5 for word in words])[:, None]).sum(0)


def unique(words, x):
    return TABLE(torch.unique(words)).sum(0) + torch.bincount(words).shape[0] * x[0]


def compared(words, x):
    is_same = torch.equal(words, words.flip(0)) or torch.allclose(x, x * 2)
    return x.sum(0) @ WEIGHT if is_same else x.sum(0)


def half_in_autocast(words, x):
    with torch.autocast("cpu", torch.bfloat16):
        product = x.float() @ x.float().T
    return x.sum(0) @ WEIGHT * float(product.dtype == torch.bfloat16) * product[0, 0].item()


READERS = [
    as_a_list, one_after_the_other, by_an_item, by_numpy, by_data, by_any, masked, at_nonzero, computed, repeated,
    as_a_range, contained, stacked, summed, made_a_tensor_of, unique, compared, half_in_autocast,
]  # fmt: skip


@pytest.mark.parametrize("function", READERS, ids=lambda f: f.__name__)
def test_data_is_read_like_in_torch_also_where_other_numbers_have_the_same_key(function):
    columns, others = (WORDS, rows(WORDS, 1)), (OTHERS, rows(OTHERS, 2))
    like_torch_with_key(function, *columns, others=others, parameters=[TABLE.weight, WEIGHT])


def test_numbers_that_were_read_are_parts_of_the_key():
    calls = []

    def function(words, x):
        calls.append(0)
        return x.sum(0) * words.tolist()[0]

    batched = edbatch.batch(function, policy="agenda", key=lambda words, x: len(words))
    for count in (5, 0, 0):
        del calls[:]
        batched(WORDS, rows(WORDS, 1))
        assert len(calls) == count
    assert "the numbers in column 0 are read, and so are parts of the key" in batched.explain()
    batched(WORDS, rows(WORDS, 2))
    assert not calls
    batched(OTHERS, rows(OTHERS, 1))
    assert len(calls) == 5


def test_who_reads_nothing_needs_no_numbers_in_keys():
    batched = edbatch.batch(lambda words: TABLE(words).sum(0), key=len)
    batched(WORDS)
    batched(OTHERS)
    assert "5 of 5 examples were known" in batched.explain()
    assert "are read" not in batched.explain()


def test_what_was_read_is_recorded_like_what_was_not():
    def function(words, read):
        doubled = words * 2
        if read:
            doubled.tolist()
        return TABLE(doubled // 2).sum(0)

    graphs = [edbatch.record(function, WORDS, [read] * 5) for read in (True, False)]
    assert [graph.num_nodes for graph in graphs] == [graphs[0].num_nodes] * 2


@pytest.mark.parametrize("read", [
    lambda h: h.item(), bool, int, float, lambda h: h.tolist(), lambda h: range(h.long()), lambda h: f"{h:.2f}",
    lambda h: torch.equal(h, h), lambda h: 1.0 in h[None], lambda h: h.numpy(), lambda h: h[None].nonzero(),
    lambda h: torch.tensor([h]), lambda h: torch.tensor(h), lambda h: torch.unique(h), lambda h: torch.where(h),
    lambda h: WEIGHT[h > 0], lambda h: WEIGHT[: h.long()],
])  # fmt: skip
@pytest.mark.parametrize("make", [
    lambda x: (x @ WEIGHT).sum(), lambda x: nn.functional.dropout(x).sum(), lambda x: x.sum() + WEIGHT.sum(),
], ids=["parameters", "random numbers", "partly"])  # fmt: skip
def test_what_depends_on_parameters_or_chance_cannot_be_read(read, make):
    state = torch.get_rng_state()
    with pytest.raises(ValueReadError, match="depends on parameters or random numbers"):
        edbatch.batch(lambda x: (read(make(x)), x)[1])(rows(WORDS, 1))
    assert torch.equal(torch.get_rng_state(), state)


def test_arrays_of_columns_are_copies_that_cannot_be_written():
    def function(x):
        x.detach().numpy()[0] = 1.0
        return x

    with pytest.raises(ValueError, match="read-only"):
        edbatch.batch(function)(rows(WORDS, 1))
    with pytest.raises(RuntimeError, match="requires grad"):
        edbatch.batch(lambda x: (x.numpy(), x)[1])(rows(WORDS, 1))


def test_a_value_is_read_as_it_was_before_its_column_was_written():
    columns = [torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)]

    def function(x, i):
        y = x + 1
        plain[i] += 5
        return y * y.sum().item() + x.sum().item()

    plain = columns
    expected = [torch.full((2,), 8.0, dtype=torch.float64) + 2, torch.full((2,), 2.0, dtype=torch.float64)]
    found = edbatch.batch(function, stack=False)(columns, [0, 1])
    torch.testing.assert_close(found, expected)


def test_long_chains_are_read_without_recursion():
    def function(words):
        for _ in range(3000):
            words = words + 1
        return TABLE(words - words.min())

    like_torch(function, WORDS[:2], parameters=[TABLE.weight])


def test_buffers_and_keywords_may_take_part():
    shift = torch.tensor([1, 1, 1])
    batched = edbatch.batch(lambda words, shift: TABLE.weight[0] * (words[:1] + shift).sum().item())
    torch.testing.assert_close(batched(WORDS, shift=shift), batched.one_by_one(WORDS, shift=shift))


def test_functions_of_the_user_run_again_for_the_numbers_alone():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    cell = edbatch.cell(lambda x: (x * 3, x.sum()))

    def function(x):
        y, total = cell(Double.apply(x))
        return (y @ WEIGHT).sum(0) * (total.item() + Double.apply(x)[0, 0].item())

    like_torch(function, rows(WORDS, 1), parameters=[WEIGHT])
