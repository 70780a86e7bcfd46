"""Our fake tensors say what torch's say, and the first call imports no compiler."""

import resource
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn import functional as F

from edbatch.cells.capture.fake import FakeMode, scratch
from edbatch.cells.compiled import compile_cell
from edbatch.cells.eager import EagerKernel
from edbatch.spec import Spec

aten = torch.ops.aten
ORDINARY = {
    "product": lambda x, i: aten.mm(x, x.t()),
    "product with a sum": lambda x, i: aten.addmm(x.new_zeros(4), x, x.t()),
    "broadcasting": lambda x, i: x.unsqueeze(1) * x[0],
    "order of memory": lambda x, i: x.t().tanh(),
    "promotion": lambda x, i: (i + 1.5, i + x.double()[0, 0], x > 0),
    "reductions": lambda x, i: (x.sum(0), x.mean(), x.amax(1, keepdim=True), x.max(1), x.var(0)),
    "softmax": lambda x, i: (x.softmax(-1), x.log_softmax(0), x.logsumexp(1)),
    "embedding": lambda x, i: F.embedding(i, x),
    "index": lambda x, i: (x[i], x[:, i], x[i, i], x.gather(1, i.expand(4, 2)), x.index_select(0, i)),
    "views": lambda x, i: (x.view(3, 4), x[1:, ::2], x[0, 1:2].squeeze(), x.expand(2, 4, 3), *x.unbind(1), *x.split(3)),
    "joining": lambda x, i: (torch.cat([x, x]), torch.stack([x, x], 1)),
    "description in place": lambda x, i: x.sum(0, keepdim=True).squeeze_(0).unsqueeze_(1),
    "factories": lambda x, i: (torch.zeros(2, 3), torch.arange(5), torch.full((2,), 1.0), torch.eye(3), torch.rand(2)),
    "more of the same": lambda x, i: (torch.zeros_like(x.t()), x.new_ones(2), torch.full_like(i, 3)),
    "numbers": lambda x, i: (torch.tensor(2.0), torch.tensor([1, 2]), x * torch.tensor(2.0)),
    "convolution": lambda x, i: F.conv1d(x.unsqueeze(0), x.new_zeros(2, 4, 3)),
    "layer norm": lambda x, i: aten.native_layer_norm(x, [3], None, None, 1e-5),
    "drawn": lambda x, i: (F.dropout(x, 0.5), torch.bernoulli(x.sigmoid()), torch.rand_like(x)),
    "several results": lambda x, i: (x.sort(), x.topk(2)),
    "linear algebra": lambda x, i: torch.linalg.cholesky(x @ x.t()),
    "other devices": lambda x, i: (torch.zeros(2, device="cuda").tanh(), torch.zeros(2, device="cuda") * x.sum()),
    "types": lambda x, i: (x.half(), i.float(), x.to(torch.int32), x.bool()),
}


def described(mode, function):
    with mode:
        tensors = torch.empty(4, 3), torch.zeros(2, dtype=torch.int64)
        leaves = torch.utils._pytree.tree_leaves(function(*tensors))
    assert all(type(t) is FakeTensor and t.fake_mode is mode for t in leaves)
    return [(t.shape, t.stride(), t.dtype, t.device) for t in leaves]


@pytest.mark.parametrize("name", ORDINARY)
def test_the_same_description_as_from_torch(name):
    before = torch.get_rng_state()
    ours = described(FakeMode(), ORDINARY[name])
    assert torch.equal(torch.get_rng_state(), before)
    assert ours == described(FakeTensorMode(), ORDINARY[name])


@pytest.mark.parametrize(
    "function", [lambda x: x.sum().item(), lambda x: bool(x.sum() > 0), lambda x: torch.equal(x, x)]
)
def test_data_is_not_read(function):
    with FakeMode(), pytest.raises(DataDependentOutputException):
        function(torch.ones(3))


@pytest.mark.parametrize(
    "function", [lambda x: x[x > 0], torch.nonzero, torch.unique, lambda x: torch.masked_select(x, x > 0)]
)
def test_shapes_do_not_depend_on_data(function):
    with FakeMode(), pytest.raises(DynamicOutputShapeException):
        function(torch.ones(3))


def test_a_number_stays_known_until_it_meets_data():
    with FakeMode():
        number = torch.tensor(2)
        assert number.item() == 2
        assert (number + 1).item() == 3
        with pytest.raises(DataDependentOutputException):
            (number * torch.ones(())).item()


def test_errors_are_those_of_torch():
    messages = []
    for mode in (FakeMode(), FakeTensorMode()):
        with mode, pytest.raises(RuntimeError) as error:
            torch.ones(2, 3) @ torch.ones(4, 5)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    "like", [torch.ones(2, 3).t(), torch.ones(3, 1).expand(3, 4), torch.ones(0, 2), torch.ones(())]
)
def test_scratch_tensors_are_zeros_of_the_same_description(like):
    made = scratch(like)
    assert (made.shape, made.stride(), made.dtype) == (like.shape, like.stride(), like.dtype)
    assert not made.any()


def test_large_tensors_are_never_made():
    """Scratch tensors of these would not fit into memory."""
    with FakeMode():
        table = torch.empty(1 << 24, 1 << 20)
        assert F.embedding(torch.zeros(2, dtype=torch.int64), table).shape == (2, 1 << 20)
        assert torch.zeros_like(table).shape == table.shape


def test_large_results_of_small_operands_are_never_made():
    """A hundred million elements for each row would take seconds, and the memory of three rows."""

    def function(x):
        wide = x.repeat(2500)
        return (
            torch.tanh(wide.unsqueeze(1) * wide.unsqueeze(0)).sum()
            + torch.mm(wide.unsqueeze(1), wide.unsqueeze(0)).sum()
        )

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.no_grad():
        cell = compile_cell(function, (Spec((4,), torch.float32, torch.device("cpu")),), name="wide")
    assert cell.reason is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_capture_draws_no_random_numbers_of_others():
    """Nor does it set a generator back: in another thread numbers may have been drawn meanwhile."""
    states = []
    original = torch.random.set_rng_state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.random, "set_rng_state", lambda state: states.append(state) or original(state))
        compile_cell(torch.tanh, (Spec((4,), torch.float32, torch.device("cpu")),), name="tanh")
    assert not states


def test_a_program_that_zeros_do_not_suit_is_batched():
    """The inverse of zeros does not exist, but that of most examples does."""
    with torch.no_grad():
        cell = compile_cell(torch.linalg.inv, (Spec((2, 2), torch.float32, torch.device("cpu")),), name="inverse")
    assert cell.reason is None


FIRST_CALL = """
import sys, torch, edbatch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.step, self.out = nn.Embedding(9, 6), nn.LSTMCell(6, 6), nn.Linear(6, 3, bias=False)

    def forward(self, words):
        h = c = torch.zeros(6)
        for word in words:
            h, c = self.step(self.embed(word), (h, c))
        return torch.nn.functional.cross_entropy(self.out(h), torch.tensor(1))

batched = edbatch.batch(Model())
with torch.no_grad():
    batched([[1, 2], [3]])
batched([[1, 2], [3]]).sum().backward()
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def test_the_first_call_imports_no_compiler():
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout


def test_threads_that_rehearse_at_once_leave_the_generator_alone():
    rows = (Spec((3,), torch.float32, torch.device("cpu")),)

    def draw(x):
        time.sleep(0.002)  # where another thread may begin
        return torch.rand_like(x)

    def rehearse():
        for _ in range(10):
            EagerKernel(draw, rows, (), name="", parameters=(), reason="alone", grad=False)

    before = torch.get_rng_state()
    threads = [threading.Thread(target=rehearse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(before, torch.get_rng_state())
