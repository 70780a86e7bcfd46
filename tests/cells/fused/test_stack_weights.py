"""`stack_products`: which products become one, and which have to stay apart."""

import pytest
import torch
from captured import BIAS, VECTOR, WEIGHTS, op_names, simple_body
from torch.nn import functional as F

from edbatch.cells.body.body import live_values
from edbatch.cells.fused.stack_weights import stack_products

A, B = WEIGHTS


def products(body, values):
    """The shapes of the products that values are computed from."""
    ops = [body.op(i) for i in sorted(live_values(body, values))]
    return [op.spec.shape for op in ops if op is not None and op.name == "mm.default"]


def test_products_of_one_operand_are_one_product():
    body = simple_body(lambda x: (x @ A).tanh() * (x @ B))
    stacked = stack_products(body)
    assert products(body, body.outputs) == [(1, 4), (1, 4)]
    assert products(stacked, stacked.outputs) == [(1, 8)]


def test_gradients_that_are_added_up_are_one_product():
    body = simple_body(lambda x: (x @ A).tanh() * (x @ B))
    stacked = stack_products(body)
    before, after = (len(products(b, b.row_grads)) - len(products(b, b.outputs)) for b in (body, stacked))
    assert (before, after) == (2, 1)


@torch.no_grad()
def test_stacked_weights_are_shared_values():
    """So they are put together once per mini-batch."""
    body = stack_products(simple_body(lambda x: (x @ A).tanh() * (x @ B)))
    (stacking,) = [i for i, spec in enumerate(body.specs) if spec.shape == (4, 8)]
    assert op_names(body, [stacking]) == ["cat"]
    assert not body.is_row[stacking]


@torch.no_grad()
def test_a_bias_that_a_kernel_can_add_is_added_apart():
    body = simple_body(lambda x: F.linear(x[None], A, BIAS).tanh())
    assert "addmm" in op_names(body)
    assert op_names(stack_products(body)) == ["view", "permute", "mm", "add", "tanh"]


@torch.no_grad()
@pytest.mark.parametrize("function", [
    lambda x, y: (x @ A).tanh() * (y @ B),  # of two operands
    lambda x, y: x @ A + y @ B,  # a sum in forward: its rounding is that of torch
    lambda x, y: (x @ x.outer(y)) * (x @ y.outer(y)),  # of matrices that every row has its own of
    lambda x, y: F.linear((x * y)[None], A, BIAS),  # no kernel reads the result, so torch adds the bias as it goes
], ids=["two operands", "a sum", "own matrices", "a bias at the end"])  # fmt: skip
def test_other_products_stay_as_they_are(function):
    body = simple_body(function, VECTOR, VECTOR)
    assert stack_products(body) == body
