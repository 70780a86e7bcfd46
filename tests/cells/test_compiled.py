"""Compiled cells equal one by one: values, gradients of rows, gradients of shared tensors."""

import bodies
import pytest
import torch
import torch.nn.functional as F
from one_by_one import assert_equal, can_train, compiled, run_infer, run_training
from torch import nn

from edbatch.cells.compiled import compile_cell
from edbatch.spec import Spec

every = pytest.mark.parametrize("case", bodies.CASES, ids=lambda c: c.name)


@every
@pytest.mark.usefixtures("double")
def test_equal_float64(case):
    assert_equal(case.make(), [case.draw() for _ in range(6)])


@pytest.mark.parametrize("case", bodies.MODULES + bodies.WEIGHTS, ids=lambda c: c.name)
def test_equal_float32(case):
    assert_equal(case.make(), [case.draw() for _ in range(3)], tolerance=1e-4)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("masks", [
    ((True, False, True, False), (True,) * 6, (True, True)),
    ((False,) * 4, (True,) * 6, (True, True)),
    ((True,) * 4, (False,) * 6, (True, True)),
    ((True,) * 4, (True,) * 6, (True, False)),
    ((True,) * 4, (True,) * 6, (False, True)),
    ((True, True, False, False), (True, False) * 3, (False, True)),
    ((True,) * 4, (True,) * 6, (False, False)),
])  # fmt: skip
def test_only_wanted_gradients(masks):
    assert_equal(bodies.TreeNode(4), [bodies.reals(4, 4, 4, 4)() for _ in range(5)], masks=masks)


def test_absent_tangents_leave_no_trace():
    cell = compiled(lambda x, y: (x.tanh() + y, x.sigmoid()), [bodies.reals(4, 4)()])
    training = cell.torch_ops.training((True, True), (), (True, False))
    assert training.split.backward.read("out_grads") == {0}
    assert "sigmoid_backward" not in cell.source
    assert "full" not in cell.source


@pytest.mark.usefixtures("double")
def test_explicit_shared_operands():
    weight, bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3))
    cell, _ = assert_equal(F.linear, [(torch.randn(4),) for _ in range(5)], shared=(weight, bias))
    assert cell.enclosed == ()
    assert cell.shared == (Spec.of(weight), Spec.of(bias))


@pytest.mark.usefixtures("double")
def test_rows_may_be_strided_views():
    module = bodies.TreeNode(4)
    cell = compiled(module, [bodies.reals(4, 4, 4, 4)()])
    wide = [torch.randn(5, 8) for _ in range(4)]
    strided, dense = [w[:, ::2] for w in wide], [w[:, ::2].contiguous() for w in wide]
    training = cell.torch_ops.training((True,) * 4, can_train(cell), (True, True))
    grads = [torch.randn(8, 5).t()[:, :4], torch.randn(4).expand(5, 4)]
    ours, theirs = (run_training(cell, training, rows, cell.enclosed, grads) for rows in (strided, dense))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_bound_tensors_are_found_once_by_identity():
    weight, buffer = nn.Parameter(torch.randn(4, 4)), torch.randn(4)
    cell = compiled(lambda x: (x @ weight + buffer) @ weight.t() * buffer.sum(), [(torch.randn(4),)])
    assert [id(t) for t in cell.enclosed] == [id(weight), id(buffer)]
    assert can_train(cell) == (True, False)


def test_same_argument_twice_at_capture_stays_two_arguments():
    h = torch.randn(4)
    cell = compiled(lambda a, b: a - b, [(h, h)])
    a, b = torch.randn(2, 3, 4)
    torch.testing.assert_close(run_infer(cell, [a, b], ())[0], a - b)


def test_results_without_tensors():
    cell = compiled(lambda x: (x.size(), x.dim(), "name"), [(torch.randn(2, 3),)])
    assert cell.outputs == ()
    assert cell.unflatten([]) == (torch.Size([2, 3]), 2, "name")


def test_unflatten_puts_constants_back():
    cell = compiled(lambda x: {"a": x + 1, "n": 3, "none": None}, [(torch.randn(2),)])
    assert cell.unflatten(["value"]) == {"a": "value", "n": 3, "none": None}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_zero_dim_rows_do_not_promote(dtype):
    x, t = torch.randn(5, 4).to(dtype), torch.randn(5)
    for function in (torch.mul, torch.add, lambda x, t: torch.where(x > 0, x, t), lambda x, t: x ** t.abs()):
        cell = compiled(function, [(x[0], t[0])])
        assert cell.outputs[0].dtype == function(x[0], t[0]).dtype
        (out,) = run_infer(cell, [x, t], ())
        torch.testing.assert_close(
            out, torch.stack([function(a, b) for a, b in zip(x, t, strict=True)]), equal_nan=True
        )


def test_zero_dim_rows_with_zero_dim_constants_promote():
    half, full = torch.tensor(0.3, dtype=torch.bfloat16), torch.tensor(0.7)
    cell = compiled(lambda x: x * full, [(half,)])
    rows = torch.randn(5).to(torch.bfloat16)
    assert cell.outputs[0].dtype == torch.float32
    torch.testing.assert_close(run_infer(cell, [rows], [full])[0], torch.stack([r * full for r in rows]))


def test_integer_and_bool_arithmetic():
    i, b = torch.randint(5, (5, 3)), torch.rand(5, 3) > 0.5
    cell = compiled(lambda i, b: (i // 2, i * b, i / 2, ~b, (b & (i > 1)).sum(), i.sum(), i % 3), [(i[0], b[0])])
    wanted = [(a // 2, a * c, a / 2, ~c, (c & (a > 1)).sum(), a.sum(), a % 3) for a, c in zip(i, b, strict=True)]
    for out, items in zip(run_infer(cell, [i, b], ()), zip(*wanted, strict=True), strict=True):
        torch.testing.assert_close(out, torch.stack(items))


def test_grad_mode_of_the_caller_counts():
    module = nn.Linear(3, 2)
    with torch.no_grad():
        cell = compiled(module, [(torch.randn(3),)])
    assert can_train(cell) == (False, False)
    assert cell.body.row_grads == (None,)
    with torch.inference_mode():
        cell = compiled(module, [(torch.randn(3),)])
        rows = [torch.randn(4, 3)]
        torch.testing.assert_close(run_infer(cell, rows, cell.enclosed)[0], module(rows[0]))


def test_autocast_of_the_caller_counts():
    module = nn.Linear(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cell = compiled(module, [(torch.randn(8),)])
    assert cell.outputs[0].dtype == torch.bfloat16
    rows = [torch.randn(5, 8)]
    training = cell.torch_ops.training((True,), can_train(cell), (True,))
    grads = torch.randn(5, 8).to(torch.bfloat16)
    outs, row_grads, shared_grads = run_training(cell, training, rows, cell.enclosed, [grads])
    assert [g.dtype for g in (*row_grads, *shared_grads)] == [torch.float32] * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = rows[0].clone().requires_grad_()
        out = torch.stack([module(row) for row in x])
    torch.testing.assert_close(outs[0], out.detach(), rtol=1e-2, atol=1e-2)
    wanted = torch.autograd.grad(out, [x, *module.parameters()], grads)
    for ours, theirs in zip((*row_grads, *shared_grads), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-2)


def test_dropout_draws_for_every_row():
    cell = compiled(lambda x: F.dropout(x, 0.25), [(torch.ones(400),)])
    rows, grads = [torch.ones(6, 400)], [torch.ones(6, 400)]
    training = cell.torch_ops.training((True,), (), (True,))
    (out,), (grad,), _ = run_training(cell, training, rows, (), grads)
    torch.testing.assert_close(out.unique(), torch.tensor([0.0, 4 / 3]))
    assert (out == 0).float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert not torch.equal(out[0], out[1])
    torch.testing.assert_close(grad, out)  # the same mask, the same scale


def test_noise_differs_between_rows():
    cell = compiled(lambda x: (torch.rand(3), torch.randn_like(x), torch.bernoulli(x.sigmoid())), [(torch.randn(3),)])
    noise, like, coin = run_infer(cell, [torch.randn(6, 3)], ())
    assert not torch.equal(noise[4], noise[5])
    assert not torch.equal(like[4], like[5])
    assert set(coin.unique().tolist()) <= {0.0, 1.0}


def test_sparse_embedding_gives_a_sparse_gradient():
    module = nn.Embedding(7, 4, sparse=True)
    cell, _ = assert_equal(module, [bodies.with_index()() for _ in range(5)], tolerance=1e-6)
    assert "sparse_rows" in cell.source


def test_non_contiguous_weights():
    weight = nn.Parameter(torch.randn(4, 3).t())
    assert_equal(
        lambda x: weight.t().reshape(2, -1).sum() * (weight @ x), [(torch.randn(4),) for _ in range(3)], tolerance=1e-4
    )


def test_programs_run_under_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        weight = torch.empty(2, 3, device="cuda")
        with torch.no_grad():
            cell = compile_cell(
                lambda x: (weight @ x).tanh() + torch.ones(2, device=x.device),
                (Spec((3,), torch.float32, torch.device("cuda", 0)),),
                name="cell",
            )
            outs = [torch.empty(4, 2, device="cuda")]
            pro, infer = cell.torch_ops.prologue(cell.enclosed), cell.torch_ops.infer.forward.function
            infer(4, [torch.empty(4, 3, device="cuda")], pro, outs, [])
    assert (outs[0].shape, outs[0].device.type) == ((4, 2), "cuda")


def test_trainings_are_kept():
    cell = compiled(nn.Linear(3, 2), [(torch.randn(3),)])
    assert cell.torch_ops.training((True,), (True, True), (True,)) is cell.torch_ops.training(
        (True,), (True, True), (True,)
    )
