"""Functions over rows, of stacked values, are torch's where rows hold infinities or are not numbers."""

import pytest
import torch

import edbatch
from odd_values import ODD, REDUCTIONS

same = edbatch.cell(lambda x: x * 1)
LENGTHS = [4, 1, 2, 3, 4, 7]


def assert_equal(name, examples, dtype):
    """Values and gradients of a reduction over stacked values, which are the rows of each example."""
    batched = edbatch.batch(lambda rows: REDUCTIONS[name](torch.stack([same(row) for row in rows]), 0), stack=False)
    ours, theirs = batched(examples), [REDUCTIONS[name](rows, 0) for rows in examples]
    tolerance = {"rtol": 2e-6, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 1e-14, "atol": 1e-14}
    torch.testing.assert_close(list(ours), theirs, equal_nan=True, **tolerance)
    if ours[0].requires_grad:
        weights = [torch.randn_like(result) for result in theirs]
        grads = (torch.autograd.grad(results, examples, weights) for results in (ours, theirs))
        torch.testing.assert_close(*grads, equal_nan=True, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_rows_with_a_case_in_each_column(name, trained, dtype):
    """Or its first rows, or, in longer segments, it with some rows again."""
    x = torch.tensor(list(ODD.values()), dtype=dtype).T.contiguous()
    assert_equal(name, [torch.cat([x, x])[:length].clone().requires_grad_(trained) for length in LENGTHS], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_rows_of_one_number(name, dtype):
    assert_equal(name, [torch.tensor(case, dtype=dtype, requires_grad=True) for case in ODD.values()], dtype)


def test_log_softmax_is_one_node(double):
    """Far below the largest row it keeps its digits."""
    batched = edbatch.batch(lambda rows: torch.stack([same(row) for row in rows]).log_softmax(0), stack=False)
    rows = torch.tensor([[1e8, 0.0], [1e8 + 1, 1e-9], [1e8 - 3, -1e9]])
    torch.testing.assert_close(batched([rows])[0], rows.log_softmax(0), rtol=1e-15, atol=0)
    assert [t.num_nodes for t in batched.stats.types if "log_softmax" in t.name] == [1]
    assert batched.stats.num_nodes == 2 * len(rows) + 1  # each row is taken and multiplied
