"""`simplify`: which ops vanish, which are written in another way, and which stay as they are."""

import pytest
import torch
from captured import VECTOR, captured_body, op_names, simple_body

from edbatch.cells.body.simplify import simplify


def test_copies_and_reshapes_there_and_back_vanish():
    body = captured_body(lambda x: x.clone().reshape(2, 2).contiguous().view(4).tanh())
    assert {"clone", "view", "detach"} < set(op_names(body))
    assert op_names(simplify(body)) == ["tanh", "tanh_backward"]


def test_dead_and_repeated_ops_are_gone():
    def function(x):
        torch.exp(x)
        return x.sigmoid() * x.sigmoid() + x.clone().detach().clone() * 0

    names = op_names(simple_body(function))
    assert names.count("sigmoid") == 1
    assert "exp" not in names
    assert "clone" not in names


@torch.no_grad()
def test_parts_of_a_split_are_slices():
    body = captured_body(lambda x: sum(x.split(2)))
    assert op_names(simplify(body)) == ["slice", "slice", "add", "add"]


@torch.no_grad()
def test_integers_are_converted_before_they_meet_floats():
    body = simple_body(torch.mul, VECTOR, VECTOR.long())
    assert op_names(body) == ["_to_copy", "mul"]
    assert all(body.spec(v).dtype == torch.float32 for v in body.ops[1].operands)


@pytest.mark.parametrize("function", [
    torch.tanh,
    lambda x: x[:2] * x[2:].exp(),
    lambda x: torch.cat([x.view(2, 2).t(), x.view(2, 2)]) @ x.view(2, 2),
    lambda x: x.sigmoid() * x.sigmoid() + x.clone().detach().clone() * 0,
])  # fmt: skip
def test_simple_bodies_stay_as_they_are(function):
    body = simple_body(function)
    assert simplify(body) == body


@torch.no_grad()
@pytest.mark.parametrize(("function", "op"), [
    (lambda x: x.double(), "_to_copy"),  # a copy, but not of the same numbers
    (lambda x: x.view(2, 2).t(), "permute"),
    (lambda x: x[1:], "slice"),
    (lambda x: x.sum(0), "sum"),
])  # fmt: skip
def test_what_looks_like_a_copy_and_is_none_stays(function, op):
    assert op_names(simple_body(function))[-1] == op


@torch.no_grad()
def test_equal_calls_that_draw_numbers_stay_apart():
    assert op_names(simple_body(lambda x: torch.rand(4) - torch.rand(4))) == ["rand", "rand", "sub"]
