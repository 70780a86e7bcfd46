"""What we rely on of ATen's ops."""

import operator

import pytest
import torch

from edbatch.torch_insides import ops
from edbatch.torch_insides.ops import OpOverload

aten = torch.ops.aten


@pytest.mark.parametrize(("ours", "public"), [(ops.softmax, torch.softmax), (ops.log_softmax, torch.log_softmax)])
def test_softmax_writes_where_it_is_told(ours, public):
    x = torch.rand(3, 4, dtype=torch.float64)
    out = torch.empty_like(x)
    assert ours(x, 1, False, out=out) is out
    assert torch.equal(out, public(x, 1))


def test_a_schema_tells_whether_an_op_writes_and_gives_views():
    assert isinstance(aten.add_.Tensor, OpOverload)
    assert ops.schema_of(aten.add_.Tensor).is_mutable
    assert not ops.schema_of(aten.add.Tensor).is_mutable
    assert ops.schema_of(aten.add_.Tensor).name == "aten::add_"
    assert [r.alias_info is not None for r in ops.schema_of(aten.view.default).returns] == [True]
    assert [r.alias_info is not None for r in ops.schema_of(aten.exp.default).returns] == [False]
    arguments = ops.schema_of(aten.zeros.default).arguments
    assert str(arguments[0].type) == "List[int]"
    assert "device" in [a.name for a in arguments]


def test_what_is_no_op_has_no_schema():
    assert ops.schema_if_any(operator.getitem) is None
    assert ops.schema_if_any(aten.exp.default) is ops.schema_of(aten.exp.default)


def test_the_overload_finds_the_op_that_does_not_write():
    name = ops.overload_of(aten.squeeze_.dim)
    assert getattr(aten.squeeze, name) is aten.squeeze.dim


def test_a_composite_op_carries_its_decomposition():
    assert all(map(ops.is_composite, [aten.tile.default, aten.einsum.default]))
    assert not any(map(ops.is_composite, [aten.exp.default, aten.mm.default]))
    assert torch.equal(aten.tile.default.decompose(torch.ones(2), [2]), torch.ones(4))


def test_core_decompositions_compute_the_same():
    table = ops.core_decompositions()
    assert all(isinstance(op, OpOverload) for op in table)
    x, y = torch.rand(3), torch.rand(3)
    assert torch.allclose(table[aten.addcmul.default](x, y, y), torch.addcmul(x, y, y))
    assert table is not ops.core_decompositions()
    needed = {
        aten.baddbmm.default, aten.split.Tensor, aten.nll_loss_forward.default, aten.nll_loss_backward.default,
        aten.silu.default, aten.native_layer_norm_backward.default,
    }  # fmt: skip
    assert needed <= set(table)
