"""`Phases`: which ops run in generated kernels, which as torch ops, and what has to wait for what."""

import pytest
import torch
from captured import VECTOR, WEIGHTS, op_names, simple_body

from edbatch.cells.body.split import inference as inference_of
from edbatch.cells.fused.phases import LONGEST_CHAIN, Phases

pytestmark = pytest.mark.usefixtures("inference")


@pytest.fixture
def inference():
    with torch.no_grad():
        yield


def phases_of(function, *row, exact_math=False):
    body = simple_body(function, *row)
    return Phases(body, inference_of(body).forward, exact_math)


def names(phases, indices):
    """Of the ops but for views, which are in kernels and in torch ops what their readers make of them."""
    return op_names(phases.body, [i for i in indices if not phases.is_view(i)])


def test_a_product_parts_the_kernels_before_and_after_it():
    phases = phases_of(lambda x: (x.exp() @ WEIGHTS[0]).tanh().neg())
    assert names(phases, phases.soft) == ["exp", "tanh", "neg"]
    assert names(phases, phases.hard) == ["mm"]
    ops = [i for i in phases.program.ops if not phases.is_view(i)]
    assert [(*op_names(phases.body, [i]), phases.level[i]) for i in ops] == [
        ("exp", 0), ("mm", 0), ("tanh", 1), ("neg", 1),
    ]  # fmt: skip


def test_what_does_not_read_a_product_does_not_wait_for_it():
    phases = phases_of(lambda x: ((x @ WEIGHTS[0]).tanh(), x.exp()))
    level_of = {name: phases.level[i] for i in phases.soft for name in op_names(phases.body, [i])}
    assert (level_of["exp"], level_of["tanh"]) == (0, 1)


def test_long_chains_along_rows_are_cut_by_a_torch_op():
    def chain(x, length):
        for _ in range(length):
            x = x.softmax(0)
        return x

    assert phases_of(lambda x: chain(x, LONGEST_CHAIN)).hard == []
    longer = phases_of(lambda x: chain(x, LONGEST_CHAIN + 1))
    assert names(longer, longer.hard) == ["_softmax"]


def test_elementwise_ops_alone_stay_one_kernel():
    phases = phases_of(lambda x, y: (x.exp() + y).tanh() * y, VECTOR, VECTOR)
    assert phases.hard == []
    assert set(phases.level.values()) == {0}


@pytest.mark.parametrize(("function", "row"), [
    (lambda x: x.sort().indices, VECTOR),
    (torch.erfinv, VECTOR),  # elementwise, but kernels do not know it
    (lambda x: x / 2, VECTOR.long()),  # torch makes floats of integers by rules of its own
])  # fmt: skip
def test_what_kernels_do_not_know_is_left_to_torch(function, row):
    phases = phases_of(function, row)
    assert phases.soft == set()
    assert phases.hard == list(phases.program.ops)
    assert set(phases.level.values()) == {0}


def test_exact_math_leaves_approximated_functions_to_torch():
    def function(x):
        return (x * 2).tanh()

    assert phases_of(function).hard == []
    exact = phases_of(function, exact_math=True)
    assert names(exact, exact.soft) == ["mul"]
    assert names(exact, exact.hard) == ["tanh"]
