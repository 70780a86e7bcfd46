"""Training as users expect it: everything that works on an ordinary loss works on a batched one."""

import copy
import gc
import random

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import edbatch
import zoo

TREES = zoo.make(zoo.CASES[0])[1][0]


def model_and_batched(**options):
    torch.manual_seed(0)
    model = zoo.BinaryTreeLSTM().double()
    return model, edbatch.batch(model, **options)


def loss_of(function, trees=TREES):
    return (function(trees) ** 2).sum()


def expected_gradients(model, batched, trees=TREES):
    return torch.autograd.grad(loss_of(batched.one_by_one, trees), list(model.parameters()))


def assert_gradients(model, expected, factor=1.0):
    for p, g in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, factor * g, rtol=1e-9, atol=1e-12)


def test_backward_and_accumulation():
    model, batched = model_and_batched()
    expected = expected_gradients(model, batched)
    loss_of(batched).backward()
    assert_gradients(model, expected)
    loss_of(batched).backward()
    assert_gradients(model, expected, 2.0)


def test_retain_graph():
    model, batched = model_and_batched()
    expected = expected_gradients(model, batched)
    loss = loss_of(batched)
    loss.backward(retain_graph=True)
    loss_of(batched).backward()  # another mini-batch in between must not reuse the first one's memory
    loss.backward()
    assert_gradients(model, expected, 3.0)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_two_losses_from_one_call():
    model, batched = model_and_batched()
    out = batched(TREES)
    first = torch.autograd.grad(out[:, 0].sum(), model.out.weight, retain_graph=True)[0]
    second = torch.autograd.grad(out[:, 1].sum(), model.out.weight)[0]
    reference = batched.one_by_one(TREES)
    torch.testing.assert_close(first + second, torch.autograd.grad(reference[:, :2].sum(), model.out.weight)[0])


def test_a_result_kept_is_not_overwritten():
    _, batched = model_and_batched()
    with torch.no_grad():
        kept = batched(TREES)
        copied = kept.clone()
        for _ in range(5):
            batched(TREES[::-1])
    assert torch.equal(kept, copied)


@pytest.mark.parametrize("fused", [True, False])
def test_optimizers_and_clipping(fused):
    model, batched = model_and_batched()
    other = copy.deepcopy(model)
    reference = edbatch.batch(other)
    for m, f in ((model, batched), (other, reference.one_by_one)):
        optimizer = torch.optim.AdamW(m.parameters(), lr=0.01, fused=fused)
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(f).backward()
            torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
            optimizer.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)


def test_parameters_changed_before_backward_are_noticed():
    model, batched = model_and_batched()
    loss = loss_of(batched)
    with torch.no_grad():
        model.node.gates.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_frozen_parameters():
    model, batched = model_and_batched()
    model.leaf.requires_grad_(False)
    loss_of(batched).backward()
    assert model.leaf.gates.weight.grad is None
    expected = torch.autograd.grad(loss_of(batched.one_by_one), [p for p in model.parameters() if p.requires_grad])
    for p, g in zip([p for p in model.parameters() if p.requires_grad], expected, strict=True):
        torch.testing.assert_close(p.grad, g)
    model.requires_grad_(False)
    assert not batched(TREES).requires_grad
    model.requires_grad_(True)
    assert batched(TREES).requires_grad


def test_inputs_that_require_grad():
    linear = nn.Linear(3, 3).double().requires_grad_(False)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    single = torch.randn(3, dtype=torch.float64, requires_grad=True)

    def function(x, n):
        for _ in range(n):
            x = torch.tanh(linear(x)) * single
        return x

    batched = edbatch.batch(function)
    ours = torch.autograd.grad(batched(x, [0, 1, 2, 3]).sum(), [x, single])
    theirs = torch.autograd.grad(batched.one_by_one(x, [0, 1, 2, 3]).sum(), [x, single])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_hooks_on_parameters_and_results():
    model, batched = model_and_batched()
    expected = expected_gradients(model, batched)
    seen = []
    handles = [p.register_hook(lambda g: g * 2) for p in model.parameters()]
    handles += [p.register_post_accumulate_grad_hook(lambda p: seen.append(p)) for p in model.parameters()]
    out = batched(TREES)
    out.register_hook(lambda g: g * 0.5)
    (out**2).sum().backward()
    assert_gradients(model, expected, 1.0)
    assert len(seen) == len(list(model.parameters()))
    [h.remove() for h in handles]


@pytest.mark.parametrize(
    "options", [{}, {"padding_idx": 2}, {"sparse": True}, {"scale_grad_by_freq": True}, {"max_norm": 0.5}]
)
def test_embeddings(options):
    table = nn.Embedding(5, 3, **options).double()
    batched = edbatch.batch(lambda words: sum(table(w) * (i + 1) for i, w in enumerate(words)))
    words = [[1, 2, 2], [2], [0, 4], [3, 3, 3]]
    if "scale_grad_by_freq" in options:  # counts how often a word occurs, which one by one means: in its own call
        with torch.no_grad():
            torch.testing.assert_close(batched(words), batched.one_by_one(words))
        return
    batched(words).sum().backward()
    ours, table.weight.grad = table.weight.grad, None
    batched.one_by_one(words).sum().backward()
    assert ours.is_sparse == table.weight.grad.is_sparse
    torch.testing.assert_close(ours.to_dense(), table.weight.grad.to_dense())


class Heads(nn.Module):
    """Two heads, parameters that nothing uses, and one that only its shape is read of."""

    def __init__(self):
        super().__init__()
        self.unused, self.encode = nn.Linear(3, 3), edbatch.cell(nn.Linear(3, 3))
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)
        self.looked_at, self.cut_off = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))

    def forward(self, x):
        h = torch.tanh(self.encode(x)) + x.new_zeros(self.looked_at.shape) + (x * self.cut_off).detach()
        return self.one(h), self.other(torch.tanh(h))


@pytest.mark.parametrize("mark", [edbatch.cell, lambda module: module], ids=["cell", "module"])
@pytest.mark.parametrize("heads", [[0], [1], [0, 1]])
def test_what_no_gradient_reaches_has_none(mark, heads, compilation):
    """Zeros would let weight decay move it."""
    model, x = mark(Heads().double()), torch.randn(4, 3, dtype=torch.float64)
    batched = edbatch.batch(model)
    found = []
    for run in (batched, batched.one_by_one):
        model.zero_grad()
        results = run(x)
        sum(results[i].sum() for i in heads).backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    for name, ours, theirs in ((name, found[0][name], theirs) for name, theirs in found[1].items()):
        if theirs is None and mark is edbatch.cell and name.startswith(("one", "other")):
            assert ours is None or not ours.any()  # both heads are in one cell, which a gradient reaches as a whole
        elif theirs is None:
            assert ours is None, name
        else:
            torch.testing.assert_close(ours, theirs)


def test_sparse_gradients_are_not_overwritten_by_later_calls():
    table = nn.Embedding(7, 3, sparse=True)
    batched = edbatch.batch(table)
    for as_column in (list, torch.tensor):
        (first,) = torch.autograd.grad(batched(as_column([0, 5, 2])).sum(), table.weight)
        before = first.to_dense().clone()
        torch.autograd.grad((batched(as_column([6, 6, 6])) * 7).sum(), table.weight)
        torch.testing.assert_close(first.to_dense(), before)


class Products(TorchDispatchMode):
    """Collects the shapes of all matrix products and embedding gradients."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func._overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.embedding_dense_backward):
            self.shapes.append(tuple(result.shape))
        return result


def test_weight_gradients_are_one_product_per_weight():
    """However many batches a mini-batch has, each weight matrix gets its gradient by one product over all rows."""
    model, batched = model_and_batched()
    trees = [zoo.random_tree(random.Random(seed), 9) for seed in range(7)]
    loss = loss_of(batched, trees)
    assert batched.stats.types[0].num_batches + batched.stats.types[1].num_batches > 4
    with Products() as seen:
        loss.backward()
    weights = [tuple(p.shape) for p in model.parameters() if p.dim() == 2]
    assert len(set(weights)) == len(weights)
    assert [seen.shapes.count(shape) for shape in weights] == [1] * len(weights)


def test_ema_and_copies():
    model, batched = model_and_batched()
    batched(TREES)
    ema = torch.optim.swa_utils.AveragedModel(batched)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    ema.update_parameters(batched)
    clone = copy.deepcopy(batched)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(batched(TREES), torch.zeros(len(TREES), 3, dtype=torch.float64))
    assert clone(TREES).abs().sum() > 0
    assert ema(TREES).abs().sum() > 0
    torch.testing.assert_close(clone(TREES), clone.one_by_one(TREES))


def test_memory_does_not_grow():
    _, batched = model_and_batched()

    def live_bytes():
        gc.collect()
        storages = [o.untyped_storage() for o in gc.get_objects() if type(o) is torch.Tensor]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    rng = random.Random(0)
    for step in range(1000):
        trees = [zoo.random_tree(rng, rng.randint(1, 6)) for _ in range(rng.randint(1, 5))]
        loss_of(batched, trees).backward()
        if step == 200:
            before = live_bytes()
    assert live_bytes() <= before * 1.3  # work spaces are as large as the largest batch so far, rounded up


def test_memory_returns_when_no_backward_comes():
    _, batched = model_and_batched()
    pool = batched.pipeline.pool
    kept = batched(TREES)
    assert not any(pool._free.values())
    del kept
    gc.collect()
    assert any(pool._free.values())


def test_modules_stay_modules():
    model, batched = model_and_batched()
    assert isinstance(batched, nn.Module)
    assert list(batched.state_dict()) == list(model.state_dict())
    assert [id(p) for p in batched.parameters()] == [id(p) for p in model.parameters()]
    assert [n for n, _ in batched.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert not batched.eval().training
    assert not model.training
    assert not model.leaf.training
    assert batched.train().training
    assert model.training
    batched.to(torch.float32)
    assert model.out.weight.dtype == torch.float32
    assert batched(TREES).dtype == torch.float32
    batched.load_state_dict({k: torch.zeros_like(v) for k, v in model.state_dict().items()})
    assert batched(TREES).abs().sum() == 0
    model.out = edbatch.cell(nn.Linear(zoo.DIM, 2))
    assert batched(TREES).shape == (len(TREES), 2)


def test_plain_functions_have_no_parameters_but_train():
    weight = nn.Parameter(torch.ones(2))
    batched = edbatch.batch(lambda x: x * weight)
    assert list(batched.parameters()) == []
    batched(torch.ones(3, 2)).sum().backward()
    assert weight.grad.tolist() == [3.0, 3.0]


def test_what_no_result_depends_on_has_no_gradient_and_its_hooks_are_not_called():
    seen = []
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    unused.register_hook(seen.append)

    def model(x, y):
        torch.tanh(y) * 2 + unused
        return torch.sin(x) * used

    columns = [torch.ones(3, requires_grad=True)], [torch.ones(3, requires_grad=True)]
    edbatch.batch(model)(*columns).sum().backward()
    assert columns[0][0].grad is not None
    assert columns[1][0].grad is None
    assert unused.grad is None
    assert not seen


def test_tensors_that_only_parts_without_gradient_lead_to_have_none():
    columns = [torch.ones(3, requires_grad=True) for _ in range(2)], [torch.ones(3, requires_grad=True)] * 2
    one, other = edbatch.batch(lambda x, y: (torch.sin(x), torch.cos(y)))(*columns)
    one.sum().backward(retain_graph=True)
    assert columns[1][0].grad is None
    other.sum().backward()
    assert columns[1][0].grad is not None


def test_hooks_of_parameters_that_the_loss_does_not_reach_see_zeros():
    seen = []
    parameters = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    parameters[1].register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    one, _ = edbatch.batch(lambda x: (x * parameters[0], torch.tanh(x + parameters[1])))([torch.ones(3)])
    one.sum().backward()
    assert [gradient.tolist() for gradient in seen] == [[0.0, 0.0, 0.0]]


class FirstState(nn.Module):
    """A parameter is the first state; the second result does not depend on states."""

    def __init__(self):
        super().__init__()
        self.state, self.of_state, self.of_input = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.first = nn.Parameter(torch.randn(3))

    def step(self, h, x):
        return torch.tanh(self.of_state(h) + x), torch.sigmoid(self.of_input(x))

    def forward(self, x, n):
        h, total = self.first, 0
        for i in range(n):
            h, y = self.step(h, x[i])
            total = total + y
        return h, total


def test_a_first_state_that_no_gradient_reaches_has_none(compilation):
    model, x = FirstState().double(), torch.randn(6, 5, 3, dtype=torch.float64)
    batched = edbatch.batch(model)
    batched(x, [2, 3, 4, 3, 2, 5])[1].sum().backward()
    assert model.first.grad is None
    assert model.of_state.weight.grad is None
    assert model.of_input.weight.grad is not None
