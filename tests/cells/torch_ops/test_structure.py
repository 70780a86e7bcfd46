"""The shape of the emitted programs: few, large, fused calls, and nothing stored twice."""

import bodies
import pytest
import torch
from one_by_one import assert_equal, can_train, compiled
from torch import nn

from edbatch.cells.torch_ops.across import sum_of_products


def programs(function, *shapes):
    """The training programs of a function, and the code of prologue, infer, forward, backward and finish."""
    cell = compiled(function, [bodies.reals(*shapes)()])
    _ = cell.torch_ops.infer
    training = cell.torch_ops.training((True,) * len(shapes), can_train(cell), (True,) * len(cell.outputs))
    return training, *cell.torch_ops.sources


PRODUCTS = "mm", "addmm", "bmm", "baddbmm", "addbmm"


def calls(source, name):
    """How many lines of a program call a function."""
    lines = (line.strip() for line in source.splitlines())
    return sum(line.startswith(f"{name}(") or f"= {name}(" in line for line in lines)


def test_linear_is_one_gemm_each_way():
    training, prologue, infer, forward, backward, finish = programs(nn.Linear(4, 5), 4)
    assert infer.splitlines()[1].strip() == "addmm(pro[1], rows[0], pro[2], out=outs[0])"
    assert (calls(forward, "addmm"), calls(backward, "mm"), calls(finish, "mm")) == (1, 1, 1)
    assert "bmm" not in prologue + infer + forward + backward + finish
    assert (training.saved, training.deferred) == ((), ())  # the end reads the gradient of the result where it lies
    assert (training.backward.rows, training.backward.outs) == ((False,), (False,))
    assert (training.finish_rows, training.split.finish.read("outs")) == ({0}, set())


def test_linear_of_rows_is_one_gemm_too():
    _, *sources, finish = programs(nn.Linear(4, 5), (3, 4))
    assert not any("bmm" in source for source in (*sources, finish))
    assert calls(finish, "mm") == 1


def test_lstm_cell_finishes_with_one_product_per_weight():
    module = nn.LSTMCell(4, 5)
    training, *sources, finish = programs(lambda x, h, c: module(x, (h, c)), 4, 5, 5)
    assert calls(finish, "mm") == 2
    assert len(training.deferred) == 1  # the gradient of all four gates together
    assert "bmm" not in finish
    assert [sum(calls(source, name) for name in PRODUCTS) for source in sources[1:]] == [2, 2, 2]


def test_tree_node_keeps_seven_values_and_defers_three():
    training, *_, backward, finish = programs(bodies.TreeNode(4), 4, 4, 4, 4)
    assert [spec.shape for spec in training.saved] == [(8,), (24,)]  # e, which finish reads; i, o, u, f1, f2, tanh(c)
    assert [spec.shape for spec in training.deferred] == [(4,), (4,), (12,)]
    assert calls(finish, "mm") == 3
    assert training.backward.rows == (False, True, False, True)
    assert "sums" not in backward.split("\n", 1)[1]  # bias gradients come from deferred values


def test_outputs_are_not_saved_again():
    training, *_ = programs(torch.sigmoid, 4)
    assert (training.saved, training.backward.outs) == ((), (True,))


def test_low_rank_weight_is_multiplied_once_per_mini_batch():
    a, b = bodies.weights((4, 2), (2, 4))
    _, prologue, _, forward, _, finish = programs(lambda x: (a @ b) @ x, 4)
    assert "mm_default" in prologue
    assert calls(forward, "mm") == 1
    assert "mm_default" in finish  # dA = dW @ B', after the sum over rows


def test_embedding_gradient_is_one_scatter_for_all_rows():
    cell = compiled(nn.Embedding(7, 4), [(torch.tensor(1),)])
    cell.torch_ops.training((False,), (True,), (True,))
    *_, finish = sources = cell.torch_ops.sources
    assert "embedding_dense_backward" in finish
    assert not any("vmap" in source for source in sources)


def test_in_place_reuse_does_not_overwrite_what_is_read_later():
    torch.set_default_dtype(torch.float64)
    try:

        def body(x):
            a = x.exp()
            b = a.sigmoid()
            c = a.view(2, 2).t()
            d = b.tanh()
            return c * 2, d + a, b[1:] * d[1:]

        assert_equal(body, [(torch.randn(4),) for _ in range(4)])
    finally:
        torch.set_default_dtype(torch.float32)


def test_sources_are_the_same_every_time():
    module = bodies.TreeNode(4)
    (_, *first), (_, *second) = (programs(module, 4, 4, 4, 4) for _ in range(2))
    assert first == second
    assert len(first) == 5


@pytest.mark.parametrize("count", [1, 31, 32, 33, 100])
def test_sums_of_products(count):
    left, right = torch.randn(count, 2, 3).double(), torch.randn(count, 4, 3).double().mT
    torch.testing.assert_close(sum_of_products(left, right), (left @ right).sum(0))
