"""Modes around and inside a call.

No_grad, inference_mode, train and eval, dropout, state of cells, fake tensors on another device.
"""

import gc
import types

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import edbatch
import zoo

X = torch.randn(6, 4)


def test_no_grad_and_inference_mode():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    batched = edbatch.batch(lambda x: model(x))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = batched(X)
        assert not out.requires_grad
        torch.testing.assert_close(out, model(X))
    batched(X).sum().backward()  # memory that inference used can be used in training
    assert model[0].weight.grad is not None


def test_train_and_eval():
    model = nn.Sequential(nn.Linear(4, 200), nn.Dropout(0.5))
    batched = edbatch.batch(model)
    assert (batched.train()(X) == 0).float().mean() > 0.3
    torch.testing.assert_close(batched.eval()(X), model[0](X))
    rows = (batched.train()(X[:1].expand(6, -1)) == 0).float()
    assert not torch.equal(rows[0], rows[1])
    torch.manual_seed(5)
    first = batched(X)
    torch.manual_seed(5)
    assert torch.equal(first, batched(X))


def test_a_cells_scalar_attributes_are_compared_once_per_call():
    class Temperature(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = 1.0

        def forward(self, x):
            return x / self.temperature

    model = edbatch.cell(Temperature())
    batched = edbatch.batch(model)
    for temperature in (1.0, 2.0, 0.5):
        model.temperature = temperature
        torch.testing.assert_close(batched(X), X / temperature)
    dropout = nn.Dropout(0.0)
    batched = edbatch.batch(dropout)
    torch.testing.assert_close(batched(X), X)
    dropout.p = 1.0
    assert batched(X).abs().sum() == 0


def test_a_cell_that_reads_values_runs_one_by_one():
    class Halting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            while x.norm() < 3:
                x = x * 2 + self.linear(x).sigmoid()
            return x

    torch.manual_seed(0)
    model = edbatch.cell(Halting())
    linear = nn.Linear(4, 2)
    batched = edbatch.batch(lambda x: linear(model(x)))
    edbatch.check(batched, X)
    text = batched.explain()
    assert "ran one by one" in text
    assert batched.stats.types[0].reason
    ours = torch.autograd.grad(batched(X).sum(), list(model.parameters()))
    theirs = torch.autograd.grad(batched.one_by_one(X).sum(), list(model.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_a_cell_that_draws_random_numbers():
    noise = edbatch.cell(lambda x: x + torch.randn_like(x))
    out = edbatch.batch(lambda x: noise(x))(torch.zeros(50, 4))
    assert out.std() > 0.5
    assert not torch.equal(out[0], out[1])


def test_check_knows_that_a_gradient_may_be_zero():
    """A shift before a softmax changes nothing: its gradients are what rounding leaves, batched and one by one."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift, self.layer = nn.Parameter(torch.randn(())), nn.Linear(4, 4)

        def forward(self, x):
            return torch.softmax(self.layer(x) + self.shift, 0)

    edbatch.check(edbatch.cell(Shifted()), torch.randn(50, 4))


def test_eager_environment(monkeypatch):
    model = nn.Linear(4, 2)
    batched = edbatch.batch(lambda x: model(x))
    monkeypatch.setenv("EDBATCH_EAGER", "1")
    torch.testing.assert_close(batched(X), model(X))
    assert batched.stats is None
    assert batched.explain() == "ran one by one, because EDBATCH_EAGER is set"
    monkeypatch.setenv("EDBATCH_EAGER", "0")
    batched(X)
    assert batched.stats.num_nodes == 6


def test_stats_and_explain():
    model, (trees,) = zoo.make(zoo.CASES[0])
    batched = edbatch.batch(model, policy="depth")
    batched(trees).sum().backward()
    stats = batched.stats
    assert stats.num_nodes == sum(t.num_nodes for t in stats.types)
    assert stats.num_batches == sum(t.num_batches for t in stats.types)
    assert set(stats.seconds) == {"record", "rewrite", "schedule", "plan", "compile", "run", "backward"}
    assert stats.views + stats.gathers > 0
    assert (stats.bytes_copied > 0) == (stats.gathers > 0)
    assert stats.peak_bytes > 0
    text = batched.explain()
    for word in ("policy depth", "lower bound", "bound-greedy", "views", "gathers", "copied", "record", "node(f64[4]"):
        assert word in text


def test_stats_are_right_whenever_they_are_asked_for():
    model, (trees,) = zoo.make(zoo.CASES[0])
    batched, other = edbatch.batch(model, policy="depth"), edbatch.batch(model, policy="depth")
    batched(trees[:2])
    late = batched.stats
    batched(trees)
    other(trees[:2])
    now = other.stats
    for name in ("num_nodes", "num_batches", "types", "views", "gathers", "bytes_copied", "peak_bytes", "num_types"):
        assert getattr(late, name) == getattr(now, name), name
    assert f"num_nodes={late.num_nodes}, " in repr(late)


def test_stats_keep_no_tensors():
    batched = edbatch.batch(lambda x: (x * 2).sum())
    batched(X)
    reached, todo = {}, [batched.stats]
    while todo:
        thing = todo.pop()
        if id(thing) in reached or isinstance(thing, type | types.ModuleType | types.FunctionType):
            continue
        reached[id(thing)] = thing
        assert not isinstance(thing, torch.Tensor)
        todo += gc.get_referents(thing)


def test_a_chain_of_one_length_reads_views_only():
    cell = nn.GRUCell(4, 4)

    def chain(x):
        h = x
        for _ in range(5):
            h = cell(x, h)
        return h

    batched = edbatch.batch(chain)
    with torch.no_grad():
        batched(X)
    assert batched.stats.gathers == 0
    assert batched.stats.num_batches == 6  # the product of the cell with x is one batch, ahead of the chain


@pytest.fixture
def without_device_guard(monkeypatch):
    """A torch built without CUDA cannot even name a CUDA device in a few Python bindings.

    These take the same ops' other entrance.
    """
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, other, *args: torch.ops.aten.copy_.default(self, other))
    monkeypatch.setattr(torch.Tensor, "__invert__", lambda self: torch.bitwise_not(self))
    monkeypatch.setattr(torch.Tensor, "__getitem__", basic_index)


def basic_index(tensor, key):
    dim = 0
    for k in key if isinstance(key, tuple) else (key,):
        if k is None:
            tensor, dim = tensor.unsqueeze(dim), dim + 1
        elif isinstance(k, slice):
            start, stop, step = k.indices(tensor.shape[dim])
            tensor, dim = torch.ops.aten.slice.Tensor(tensor, dim, start, stop, step), dim + 1
        elif isinstance(k, torch.Tensor):
            tensor, dim = torch.ops.aten.index.Tensor(tensor, [None] * dim + [k]), dim + k.dim()
        else:
            tensor = tensor.select(dim, k)
    return tensor


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda c: c.name)
def test_fake_cuda(case, without_device_guard):
    """On fake tensors of another device, mixed devices and hidden synchronisations raise."""
    model, columns = zoo.make(case, dtype=torch.float32)
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        fake = {id(p): nn.Parameter(torch.empty(p.shape)) for p in model.parameters()}
        for module in model.modules():
            module._parameters.update({name: fake[id(p)] for name, p in module._parameters.items() if p is not None})
        to_fake = lambda leaf: torch.empty(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf  # noqa: E731
        columns = torch.utils._pytree.tree_map(to_fake, columns)
        result = edbatch.batch(model, stack=case.stack)(*columns)
    leaves = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    assert leaves
    assert all(t.device.type == "cuda" for t in leaves)


def test_sampling_from_generators():
    probabilities = torch.rand(4, 5)

    def draw(p, generator):
        return torch.multinomial(p, 2, generator=generator), torch.bernoulli(p, generator=generator)

    def generators():
        return [torch.Generator().manual_seed(i) for i in range(4)]

    batched = edbatch.batch(draw)
    for a, b in zip(batched(probabilities, generators()), batched.one_by_one(probabilities, generators()), strict=True):
        assert torch.equal(a, b)
    assert "generator" in batched.stats.types[0].reason
    without = edbatch.batch(lambda p: torch.multinomial(p, 2))(probabilities)
    assert without.shape == (4, 2)
    assert (without[:, 0] != without[:, 1]).all()


def keeps_first(x):
    if x[0] > 0:  # no fixed graph: it runs one by one
        x = x * 2
    return x.cumsum(0)


def doubles_some(x):
    if x[0] > 2:
        x.mul_(2)
    return x * 1


def test_cells_that_run_one_by_one_in_inference_mode():
    x = torch.linspace(-1, 1, 6).view(2, 3)
    cell, rnn = edbatch.cell(keeps_first), nn.GRU(3, 3)

    def model(x):
        with torch.inference_mode():
            inner = cell(x)
        return cell(inner), rnn(x[None])[0]

    expected = [torch.stack(list(column)) for column in zip(*map(model, x), strict=True)]
    with torch.inference_mode():
        torch.testing.assert_close(edbatch.batch(model)(x), tuple(expected))
    torch.testing.assert_close(edbatch.batch(model)(x), tuple(expected))
    with torch.inference_mode(), pytest.raises(edbatch.EdbatchError, match="writes one of its arguments in place"):
        edbatch.batch(edbatch.cell(doubles_some))(x + 2)


@pytest.mark.parametrize("inside", [False, True])
def test_cells_that_run_one_by_one_do_so_under_autocast(inside):
    rnn, linear = nn.GRU(3, 3), nn.Linear(3, 3)
    linear.register_forward_pre_hook(lambda module, inputs: tuple(x * 2 for x in inputs))
    x = torch.linspace(-1, 1, 18).view(2, 3, 3)

    def computes(x):
        return rnn(x)[0], linear(x), rnn(x @ x)[0], linear(x @ x)

    def model(x):
        with torch.autocast("cpu", torch.bfloat16, enabled=inside or torch.is_autocast_enabled("cpu")):
            return computes(x)

    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        expected = tuple(map(torch.stack, zip(*map(model, x), strict=True)))
        ours = edbatch.batch(model)(x)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    parameters = [*rnn.parameters(), *linear.parameters()]
    found, wanted = (torch.autograd.grad(sum(r.float().sum() for r in y), parameters) for y in (ours, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layer_norm_under_autocast(dtype):
    """Mean and deviation are of the parameters' dtype there; what torch says of fake tensors is another one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    x, weights = torch.randn(4, 8), torch.randn(4, 8)
    gradients = []
    for run in (edbatch.batch(model), lambda x: torch.stack([model(row) for row in x])):
        with torch.autocast("cpu", dtype):
            loss = (run(x).float() * weights).sum()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    torch.testing.assert_close(*gradients, rtol=5e-2, atol=5e-2)
