"""What capture refuses, and what it lets through."""

import pytest
import torch
import torch.nn.functional as F
from one_by_one import compiled
from torch import nn

from edbatch.cells.capture.capture import capture
from edbatch.cells.compiled import compile_cell
from edbatch.errors import CaptureError
from edbatch.spec import Spec

ROW = (torch.randn(4),)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Remembering(nn.Module):
    last = None

    def forward(self, x):
        self.last = x.tanh()
        return self.last * 2


def keeps_first(x):
    x[0] = 1.0
    return x * 2


@pytest.mark.parametrize(("function", "same"), [(lambda x: x.mul_(2), (0,)), (keeps_first, (None,))])
def test_what_is_written_in_place_is_a_further_output(function, same):
    x, cell = ROW[0].clone(), compile_cell(function, [Spec.of(ROW[0])], name="writes")
    result = function(x)
    assert (cell.writes, cell.same, len(cell.outputs)) == ((0,), same, 2)
    outs = [spec.empty(1) for spec in cell.outputs]
    form = cell.torch_ops
    form.infer.forward.function(1, [ROW[0][None].clone()], form.prologue(cell.enclosed), outs, [])
    torch.testing.assert_close(outs, [result[None], x[None]])


@pytest.mark.parametrize(("function", "reason"), [
    (lambda x: x * x.sum().item(), "depend on data"),
    (lambda x: x if x.sum() > 0 else -x, "depend on data"),
    (lambda x: x[: int(x.sum())], "depend on data"),
    (lambda x: x.nonzero(), "depend on data"),
    (lambda x: x[x > 0], "depend on data"),
    (lambda x: x.unsqueeze_(0), "shape of one of its arguments in place"),
    (Counting(), "parameter or buffer in place"),
    (Remembering(), "attribute 'last'"),
    (nn.BatchNorm1d(2), "parameter or buffer in place"),
    (lambda x: torch.multinomial(x.softmax(0), 1), "no rule for multinomial"),
    (lambda x: x.to_sparse() * 1, "sparse|shape inference|outside"),
])  # fmt: skip
def test_refused(function, reason):
    rows = (torch.randn(3, 2),) if isinstance(function, nn.BatchNorm1d) else ROW
    with pytest.raises(CaptureError, match=reason):
        compiled(function, [rows])


@pytest.mark.parametrize(("function", "error"), [
    (lambda x: x @ torch.randn(3), RuntimeError),
    (lambda x: x[7], IndexError),
    (lambda x: F.linear(x), TypeError),
    (lambda x: x.reshape(3), RuntimeError),
    (lambda x: {}["missing"], KeyError),
])  # fmt: skip
def test_errors_of_the_function_pass_through(function, error):
    with pytest.raises(error):
        compiled(function, [ROW])


def test_buffers_are_unchanged_by_a_refused_capture():
    module = Counting()
    with pytest.raises(CaptureError):
        compiled(module, [ROW])
    assert module.calls.item() == 0


def test_attributes_assigned_at_capture_are_undone():
    module = Remembering()
    with pytest.raises(CaptureError):
        compiled(module, [ROW])
    assert "last" not in module.__dict__


def test_state_outside_is_left_alone():
    apply, state = torch.autograd.Function.__dict__["apply"], torch.random.get_rng_state()
    compiled(lambda x: F.dropout(x * torch.rand(4)), [ROW])
    assert torch.autograd.Function.__dict__["apply"] is apply
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_body_prints_one_op_a_line():
    body = capture(torch.sigmoid, [Spec.of(ROW[0])], []).body
    text = str(body)
    assert text.startswith("%0 = row f32[4]\n%1 = tangent f32[4]\n")
    assert "sigmoid.default(" in text
    assert len(text.splitlines()) == len(body.ops) + 3


def test_check_finds_values_used_too_early():
    from dataclasses import replace

    from edbatch.cells.body.body import Val

    body = capture(torch.sigmoid, [Spec.of(ROW[0])], []).body
    with pytest.raises(CaptureError, match="before they exist"):
        replace(body, ops=tuple(reversed(body.ops))).check()
    with pytest.raises(CaptureError, match="do not exist"):
        replace(body, outputs=(Val(99),)).check()
