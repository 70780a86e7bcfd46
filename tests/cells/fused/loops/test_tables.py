"""Rows of shared tables, such as embeddings, are read by generated kernels."""

import pytest
import torch
import torch.nn.functional as F
from fused_kernels import DIM, assert_equal, calls, rows, the_cell
from torch import nn

import edbatch

WORDS = 7
NUMBERS = [0, 5, 2, 6, 2]


class Leaf(nn.Module):
    """An embedding that a product and elementwise ops read."""

    def __init__(self, **options):
        super().__init__()
        self.table, self.linear = nn.Embedding(WORDS, DIM, **options), nn.Linear(DIM, DIM)

    def forward(self, x, n):
        word = self.table(n)
        return torch.tanh(self.linear(word) + x) * word


def test_no_torch_op_is_left(compiled):
    batched = assert_equal(edbatch.cell(Leaf().double()), rows(), NUMBERS)
    cell = the_cell(batched)
    assert calls(cell.infer.forward) == (2, 1)
    assert not any("index_select" in text for text in cell.sources)


@pytest.mark.parametrize("options", [{"padding_idx": 2}, {"scale_grad_by_freq": True}])
def test_options_of_embeddings(compiled, options):
    assert_equal(edbatch.cell(Leaf(**options).double()), rows(), NUMBERS)


TABLE = torch.randn(WORDS, DIM, dtype=torch.float64)


@pytest.mark.parametrize("function", [
    lambda x, n: F.embedding(n, TABLE) * x, lambda x, n: TABLE.index_select(0, n.view(1)) * x,
    lambda x, n: (F.embedding(n, TABLE), x * x), lambda x, n: F.embedding(n, TABLE)[1:4].sum() * x,
    lambda x, n: F.embedding(n, TABLE[:, ::2].t()) * x[:1], lambda x, n: F.embedding(n % 1, TABLE[:1]) * x,
    lambda x, n: F.embedding(n, torch.full((WORDS, DIM), 2.5)) * x, lambda x, n: torch.ones(WORDS, DIM)[n] * x,
    lambda x, n: F.embedding(F.embedding(x.argmax(), TABLE).argmax(), TABLE) + F.embedding(n, TABLE) * x,
])  # fmt: skip
def test_kinds_of_tables(compiled, function):
    assert_equal(edbatch.cell(function), rows(), [0, 2, 1, 0, 2])


@pytest.mark.parametrize("number", [-1, WORDS, 10**12])
def test_a_row_that_does_not_exist_is_an_error(compiled, number):
    batched = edbatch.batch(edbatch.cell(Leaf()))
    with torch.no_grad(), pytest.raises(IndexError, match="an index is out of bounds") as caught:
        batched(rows(dtype=torch.float32), [0, number, 5, 1, 2])
    assert f"number it got is {number}, in example 1" in caught.value.__notes__[0]
