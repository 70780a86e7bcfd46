"""Weights of products that share an operand are stacked, and never stale: the next call sees every change."""

import copy

import pytest
import torch
from torch import nn

import edbatch
from edbatch.cells.fused import cell as fused_cell
from edbatch.cells.fused.cell import FusedCell
from edbatch.errors import FrozenError

DIM = 5
PARTS = 4  # two cells, and of each what runs ahead of the recurrence


class Gated(nn.Module):
    """A recurrent unit with one product per gate and operand."""

    def __init__(self):
        super().__init__()
        self.zx, self.rx, self.nx = (nn.Linear(DIM, DIM) for _ in range(3))
        self.zh, self.rh, self.nh = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))

    def forward(self, x, h):
        z, r = torch.sigmoid(self.zx(x) + self.zh(h)), torch.sigmoid(self.rx(x) + self.rh(h))
        return z * h + (1 - z) * torch.tanh(self.nx(x) + r * self.nh(h))


class Two(nn.Module):
    """Two cells with weights of their own, called in turn."""

    def __init__(self):
        super().__init__()
        self.odd, self.even = edbatch.cell(Gated()), edbatch.cell(Gated())

    def forward(self, x, n):
        h = x
        for i in range(n):
            h = (self.odd if i % 2 else self.even)(x, h)
        return h


X = torch.randn(4, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
LENGTHS = [1, 4, 2, 3]


def make():
    model = Two().double()
    return model, edbatch.batch(model)


def loss_of(run, x=X):
    out = run(x, LENGTHS)
    return (out * torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).view_as(out)).sum(), out


def assert_as_one_by_one(model, batched, x=X, tolerance=1e-9):
    """Values in inference and training, and gradients of every parameter that wants one."""
    with torch.no_grad():
        inferred = batched(x, LENGTHS)
    wanted = [p for p in model.parameters() if p.requires_grad]
    found = []
    for run in (batched, batched.one_by_one):
        loss, out = loss_of(run, x)
        found.append([out, *(torch.autograd.grad(loss, wanted) if wanted else [])])
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(inferred, found[1][0], rtol=tolerance, atol=tolerance)


def test_weights_are_stacked(compiled):
    """All that follows would be easy without this: three products of each operand become one."""
    model, batched = make()
    assert_as_one_by_one(model, batched)
    kernels = list(batched.pipeline.kernel_of.values())
    assert len(kernels) == PARTS
    for kernel in kernels:
        (fused,) = kernel.fused.values()
        assert fused.infer.forward.source.count("mm(") == 1
        with torch.no_grad():
            assert [tuple(t.shape) for t in fused.prologue(kernel.enclosed)].count((DIM, 3 * DIM)) == 1


# ---- every way in which weights change


def optimizer_step(make_optimizer):
    def change(model, batched):
        optimizer = make_optimizer(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(batched)[0].backward()
            optimizer.step()

    return change


def load_state(model, batched):
    batched.load_state_dict({k: v * 2 + 0.1 for k, v in model.state_dict().items()})


def load_state_by_assignment(model, batched):
    model.load_state_dict({k: v * 2 + 0.1 for k, v in model.state_dict().items()}, assign=True)


def edit_in_place(model, batched):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5)


def edit_data(model, batched):
    for p in model.parameters():
        p.data.mul_(-1.5)


def replace_data(model, batched):
    for p in model.parameters():
        p.data = torch.randn_like(p)


def edit_through_numpy(model, batched):
    for p in model.parameters():
        p.detach().numpy()[...] += 0.25


def replace_parameters(model, batched):
    model.odd.rh.weight = nn.Parameter(torch.randn(DIM, DIM, dtype=torch.float64))
    model.even.zx = nn.Linear(DIM, DIM).double()


def tie_gates(model, batched):
    model.odd.zh.weight = model.odd.nh.weight
    model.odd.zx.weight = model.odd.nh.weight


def tie_cells(model, batched):
    model.odd.zh.weight = model.even.rh.weight
    model.odd.nx = model.even.nx


def transpose_a_weight(model, batched):
    model.odd.zh.weight = nn.Parameter(torch.randn(DIM, DIM, dtype=torch.float64).T)


CHANGES = {
    "sgd": optimizer_step(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "adamw foreach": optimizer_step(lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True)),
    "adamw fused": optimizer_step(lambda p: torch.optim.AdamW(p, lr=0.1, fused=True)),
    **{f.__name__: f for f in (load_state, load_state_by_assignment, edit_in_place, edit_data, replace_data,
       edit_through_numpy, replace_parameters, tie_gates, tie_cells, transpose_a_weight)},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changed_weights_are_seen(compiled, name):
    model, batched = make()
    assert_as_one_by_one(model, batched)
    before = batched(X, LENGTHS).detach()
    for _ in range(2):
        CHANGES[name](model, batched)
        assert_as_one_by_one(model, batched)
    assert not torch.allclose(before, batched(X, LENGTHS))


@pytest.mark.parametrize("name", ["sgd", "adamw foreach", "adamw fused"])
def test_tied_weights_are_trained_as_one(compiled, name):
    """One parameter in two gates and in two cells: its gradient is the sum, and a step changes all of its places."""
    models = []
    for how in ("batched", "one by one"):
        torch.manual_seed(0)
        model, batched = make()
        tie_gates(model, batched)
        tie_cells(model, batched)
        CHANGES[name](model, batched if how == "batched" else batched.one_by_one)
        assert_as_one_by_one(model, batched)
        models.append(model)
    for ours, theirs in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_other_dtypes_and_back(compiled):
    model, batched = make()
    assert_as_one_by_one(model, batched)
    model.float()
    assert_as_one_by_one(model, batched, X.float(), tolerance=1e-5)
    edit_data(model, batched)
    assert_as_one_by_one(model, batched, X.float(), tolerance=1e-5)
    batched.to(torch.float64)
    edit_data(model, batched)
    assert_as_one_by_one(model, batched)


def test_requires_grad_is_toggled(compiled):
    """Some of the weights that are stacked want no gradient, for a while."""
    model, batched = make()
    assert_as_one_by_one(model, batched)
    for frozen in ([model.odd.zh.weight], [model.odd.zh.weight, model.even.nx.bias], list(model.parameters())):
        for p in frozen:
            p.requires_grad_(False)
        edit_data(model, batched)
        assert_as_one_by_one(model, batched)
        for p in model.parameters():
            p.grad = None
        if any(p.requires_grad for p in model.parameters()):
            loss_of(batched)[0].backward()
        assert [p.grad is None for p in model.parameters()] == [not p.requires_grad for p in model.parameters()]
        for p in frozen:
            p.requires_grad_(True)
        assert_as_one_by_one(model, batched)


def test_copies_have_weights_of_their_own(compiled):
    model, batched = make()
    assert_as_one_by_one(model, batched)
    clone = copy.deepcopy(batched)
    edit_data(model, batched)
    assert_as_one_by_one(model, batched)
    assert_as_one_by_one(clone, clone)
    assert not torch.allclose(clone(X, LENGTHS), batched(X, LENGTHS))


# ---- frozen


@pytest.fixture
def stackings(compiled, monkeypatch):
    """One entry for every time that weights of a fused cell were stacked, by torch or without."""
    seen = []

    def counted(function):
        def count(*args):
            seen.append(function)
            return function(*args)

        return count

    monkeypatch.setattr(FusedCell, "prologue", counted(FusedCell.prologue))
    original = fused_cell.without_torch
    monkeypatch.setattr(fused_cell, "without_torch", lambda *args: counted(original(*args)))
    return seen


def infer(batched):
    with torch.no_grad():
        return batched(X, LENGTHS)


def test_in_a_frozen_scope_weights_are_stacked_once(stackings):
    model, batched = make()
    expected = infer(batched)
    stackings.clear()
    with edbatch.frozen(model) as same:
        assert same is model
        for _ in range(3):
            assert torch.equal(infer(batched), expected)
    assert len(stackings) == PARTS  # once each
    for _ in range(3):
        assert torch.equal(infer(batched), expected)
    assert len(stackings) == PARTS + 3 * PARTS
    edit_data(model, batched)
    assert_as_one_by_one(model, batched)


def test_a_batched_function_can_be_frozen_itself(stackings):
    _, batched = make()
    with edbatch.frozen(batched):
        first = infer(batched)
        assert torch.equal(infer(batched), first)
    assert len(stackings) == PARTS


def test_a_change_in_a_frozen_scope_is_an_error(compiled):
    model, batched = make()

    def change_inside(change):
        with edbatch.frozen(model):
            infer(batched)
            change(model, batched)

    for change in (edit_in_place, load_state, CHANGES["sgd"]):
        with pytest.raises(FrozenError, match="changed inside"):
            change_inside(change)
        assert_as_one_by_one(model, batched)  # seen after the scope
    change_inside(replace_parameters)  # new tensors were never frozen
    assert_as_one_by_one(model, batched)


def test_new_parameters_in_a_frozen_scope_are_seen(compiled):
    model, batched = make()
    with edbatch.frozen(model):
        before = infer(batched)
        replace_parameters(model, batched)
        assert_as_one_by_one(model, batched)
        assert not torch.allclose(before, infer(batched))


def test_an_error_in_a_frozen_scope_passes_and_ends_it(stackings):
    model, batched = make()

    def fail():
        with edbatch.frozen(model):
            infer(batched)
            edit_in_place(model, batched)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert_as_one_by_one(model, batched)


def test_other_models_are_not_frozen(stackings):
    model, batched = make()
    other, other_batched = make()
    with edbatch.frozen(model):
        infer(batched), infer(other_batched)
        stackings.clear()
        edit_data(other, other_batched)
        assert_as_one_by_one(other, other_batched)
        assert stackings
        stackings.clear()
        infer(batched)
        assert not stackings


def test_a_cell_of_two_models_is_frozen_only_if_all_of_it_is(stackings):
    """A cell with a weight of a model that is not frozen is stacked anew."""
    model, batched = make()
    other, _ = make()
    model.odd.zh.weight = other.odd.zh.weight
    with edbatch.frozen(other):
        infer(batched)
        other.odd.zx.weight.data.add_(1)  # not of `model`
        edit_data(model.even, batched)
        assert_as_one_by_one(model, batched)


def test_nested_scopes(stackings):
    """A scope in a scope: both models stay frozen, each until its own end."""
    model, batched = make()
    other, other_batched = make()
    with edbatch.frozen(model):
        first = infer(batched)
        with edbatch.frozen(other):
            second = infer(other_batched)
            stackings.clear()
            assert torch.equal(infer(other_batched), second)
            assert torch.equal(infer(batched), first)
            assert not stackings
        assert torch.equal(infer(batched), first)
        assert not stackings
        edit_data(other, other_batched)
        assert_as_one_by_one(other, other_batched)
    with edbatch.frozen(model), edbatch.frozen(model):
        stackings.clear()
        for _ in range(3):
            infer(batched)
        assert len(stackings) == PARTS


def test_training_and_inference_mode_in_one_frozen_scope(compiled):
    """What was stacked in inference mode also serves a call that is differentiated, and the other way round."""
    for first in (torch.inference_mode, torch.enable_grad):
        model, batched = make()
        with edbatch.frozen(model):
            with first():
                batched(X, LENGTHS)
            assert_as_one_by_one(model, batched)
            with torch.inference_mode():
                torch.testing.assert_close(batched(X, LENGTHS), batched.one_by_one(X, LENGTHS))


@pytest.mark.parametrize(
    "replace", [lambda w: torch.empty(0, dtype=w.dtype), lambda w: 3 * w], ids=["freed", "tripled"]
)
def test_backward_is_that_of_the_weights_that_forward_used(compilation, replace):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.scale = nn.Linear(DIM, DIM), nn.Parameter(torch.randn(DIM))

        def forward(self, x):
            return torch.tanh(self.linear(x)) * self.scale

    model, x = Scaled().double(), X.clone().requires_grad_()
    batched = edbatch.batch(edbatch.cell(model))
    (expected,) = torch.autograd.grad(batched.one_by_one(x).sum(), x)
    out = batched(x)
    for parameter in model.parameters():
        parameter.data = replace(parameter.data)
    (ours,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(ours, expected)


class Hooked(nn.Module):
    """Runs one by one, and has a buffer that nothing changes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("scale", torch.full((3,), 2.0))
        self.register_forward_hook(lambda *given: None)

    def forward(self, x):
        return self.linear(x) * self.scale


def test_a_first_call_by_which_shapes_are_learned_is_no_change_of_buffers():
    """Neither for a frozen scope nor for a gradient that needs the buffer."""
    model = edbatch.cell(Hooked())
    weight = torch.ones(3, requires_grad=True)
    before = (weight * model.scale).sum()
    with edbatch.frozen(model):
        result = edbatch.batch(model)(torch.ones(2, 3))
    (before + result.sum()).backward()
    torch.testing.assert_close(weight.grad, model.scale)
