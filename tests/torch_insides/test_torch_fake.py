"""What we rely on of fake tensors."""

import logging

import pytest
import torch

from edbatch.torch_insides import fake
from edbatch.torch_insides.fake import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnfinishedFakeMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)

aten = torch.ops.aten
CPU = torch.device("cpu")


def finished():
    mode = UnfinishedFakeMode()
    mode.finish()
    mode.finish()  # twice is once
    assert mode.is_finished
    return mode


def made(mode, *shape):
    return FakeTensor(mode, torch.empty(shape, device="meta"), CPU)


def test_a_fake_tensor_is_made_by_hand():
    mode = UnfinishedFakeMode()
    x = made(mode, 2, 3)
    assert (x.shape, x.fake_device, x.fake_mode, x.constant) == ((2, 3), CPU, mode, None)
    number = FakeTensor(mode, torch.empty(1, device="meta"), CPU, constant=torch.ones(1))
    assert number.constant.item() == 1


def test_views_are_made_by_kernels_of_the_meta_device():
    mode = UnfinishedFakeMode()
    x = made(mode, 2, 3)
    with in_kernel_invocation_manager(mode):
        assert x.device.type == "meta"
        view = aten.t.default(x)
    assert view.shape == (3, 2)


def test_a_finished_mode_computes_shapes_by_itself():
    mode = finished()
    x = made(mode, 2, 3)
    with mode:
        y = torch.mm(x, x.t()).softmax(0)
    assert type(y) is FakeTensor
    assert (y.shape, y.device, y.fake_mode) == ((2, 2), CPU, mode)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (DataDependentOutputException, lambda x: x.sum().item()),
        (DataDependentOutputException, lambda x: bool((x > 0).all())),
        (DynamicOutputShapeException, lambda x: x.nonzero()),
    ],
)
def test_what_depends_on_data_is_refused(error, call):
    mode = finished()
    x = made(mode, 2, 3)
    with mode, pytest.raises(error):
        call(x)


def test_an_op_without_shape_inference_is_refused():
    with torch.library._scoped_library("edbatch_tests", "DEF") as library:
        library.define("shapeless(Tensor x) -> Tensor")
        library.impl("shapeless", lambda x: x.clone(), "CPU")
        mode = finished()
        x = made(mode, 2)
        with mode, pytest.raises((UnsupportedOperatorException, UnsupportedFakeTensorException, NotImplementedError)):
            torch.ops.edbatch_tests.shapeless(x)
    assert issubclass(UnsupportedOperatorException, RuntimeError)
    assert issubclass(UnsupportedFakeTensorException, RuntimeError)


def test_torch_has_rules_of_its_own_for_ops_that_look_at_data():
    assert all(
        map(fake.has_own_rule, [aten.nonzero.default, aten.masked_select.default, aten._local_scalar_dense.default])
    )
    assert not any(map(fake.has_own_rule, [aten.exp.default, aten.mm.default, aten.add.Tensor]))


def test_the_log_is_that_of_fake_tensors(caplog):
    mode, other = finished(), finished()
    x, y = made(mode, 2), made(other, 2)
    assert fake.LOG is logging.getLogger("torch._subclasses.fake_tensor")
    with mode, pytest.raises(AssertionError, match=r"[Mm]ix|fake"):
        torch.add(x, y)
