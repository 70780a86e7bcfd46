"""Memory of mini-batches: tensors that do not overlap, in one buffer once it is known how much is needed."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from edbatch.runtime.arena import ALIGNMENT, Lease, Pool
from edbatch.spec import Spec

CPU = torch.device("cpu")
SPECS = [
    Spec((), torch.float32, CPU), Spec((3,), torch.float64, CPU), Spec((2, 5), torch.int64, CPU),
    Spec((7,), torch.bool, CPU), Spec((0, 2), torch.float32, CPU), Spec((300,), torch.float32, CPU),
]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(SPECS), st.integers(0, 40)), min_size=1, max_size=20))
def test_tensors_do_not_overlap(wanted):
    pool = Pool()
    for number_of_buffers in (None, 1):
        lease = Lease(pool, "values")
        tensors = [lease.take(spec, rows) for spec, rows in wanted]
        assert lease.num_bytes == sum(t.nbytes for t in tensors)
        taken = sorted((t.data_ptr(), t.nbytes) for t in tensors if t.nbytes)
        for (a, size), (b, _) in pairwise(taken):
            assert a + size <= b
        for tensor, (spec, rows) in zip(tensors, wanted, strict=True):
            assert (tensor.shape, tensor.dtype) == ((rows, *spec.shape), spec.dtype)
            assert tensor.is_contiguous()
            assert tensor.nbytes == 0 or tensor.data_ptr() % ALIGNMENT == 0
        if number_of_buffers is not None:
            assert len(lease._buffers) <= number_of_buffers
        lease.release()


def test_buffers_return_and_purposes_are_apart():
    pool = Pool()
    lease, other = Lease(pool, "values"), Lease(pool, "scratch")
    first = lease.take(SPECS[1], 100)
    assert other.take(SPECS[1], 100).data_ptr() != first.data_ptr()
    address = first.data_ptr()
    lease.release()
    assert Lease(pool, "values").take(SPECS[1], 100).data_ptr() == address
    assert set(pool.expected) == {("values", CPU)}
    other.release()
    assert set(pool.expected) == {("values", CPU), ("scratch", CPU)}


def test_a_forgotten_lease_returns_its_buffers_and_a_released_one_runs_nothing():
    """`__del__` would swallow a Ctrl-C, so there is one only while there is something to return."""
    pool = Pool()
    lease = Lease(pool, "values")
    assert not hasattr(lease, "__del__")
    address = lease.take(SPECS[1], 100).data_ptr()
    assert hasattr(lease, "__del__")
    del lease
    lease = Lease(pool, "values")
    assert lease.take(SPECS[1], 100).data_ptr() == address
    lease.release()
    assert not hasattr(lease, "__del__")
