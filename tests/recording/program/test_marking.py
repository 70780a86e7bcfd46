"""A marked module keeps its class, names, hooks, pickling and copying, and behaves the same outside batching."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import edbatch
from edbatch.recording.program.marking import MARK, options_of

X = torch.randn(5, 3)


class Scale(nn.Module):
    """Takes a number: an int or float reaches it as a 0-d tensor, batched or not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.seen: list = []

    def forward(self, x, factor, mode="plain"):
        assert isinstance(factor, torch.Tensor)
        assert factor.dim() == 0
        return self.linear(x) * factor if mode == "plain" else self.linear(x) + factor


def test_a_marked_module_is_what_it_was():
    plain = nn.Linear(3, 2)
    keys, outside = list(plain.state_dict()), plain(X)
    marked = edbatch.cell(plain)
    assert marked is plain
    assert type(marked) is nn.Linear
    assert list(marked.state_dict()) == keys
    assert torch.equal(marked(X), outside)
    assert edbatch.cell(marked) is marked
    assert len(marked._forward_pre_hooks) == 1


def test_copies_and_pickles_are_marked_and_independent():
    marked = edbatch.cell(Scale(), static="mode")
    for other in (copy.deepcopy(marked), pickle.loads(pickle.dumps(marked))):
        assert other.__dict__[MARK] == marked.__dict__[MARK]
        assert other.linear.weight is not marked.linear.weight
        with torch.no_grad():
            other.linear.weight.zero_()
            other.linear.bias.zero_()
        assert torch.equal(edbatch.batch(other)(X, [1] * 5), torch.zeros(5, 3))
        edbatch.check(other, X, [1, 2, 3, 4, 5])


def test_save_and_load():
    marked = edbatch.cell(nn.Linear(3, 2))
    file = io.BytesIO()
    torch.save(marked.state_dict(), file)
    file.seek(0)
    plain = nn.Linear(3, 2)
    assert not torch.equal(plain(X), marked(X))
    plain.load_state_dict(torch.load(file))
    assert torch.equal(plain(X), marked(X))
    other = edbatch.cell(nn.Linear(3, 2))
    other.load_state_dict(plain.state_dict())
    assert torch.equal(edbatch.batch(other)(X), edbatch.batch(marked)(X))


def test_numbers_are_tensors_batched_or_not():
    model = edbatch.cell(Scale()).double()
    x = X.double()
    assert torch.equal(model(x[0], 2), model.linear(x[0]) * 2)
    assert model(x[0].float().double(), 0.5).dtype == torch.float64
    for factors in ([1, 2, 3, 4, 5], [0.5, 0.25, 2.0, 1.0, 4.0]):
        batched = edbatch.batch(model)
        torch.testing.assert_close(batched(x, factors), model.linear(x) * torch.tensor(factors)[:, None])
        assert batched.stats.num_batches == 1


def test_strings_and_bools_belong_to_the_type():
    batched = edbatch.batch(edbatch.cell(Scale()))
    ours = batched(X, [1] * 5, ["plain", "other"] * 2 + ["plain"])
    assert batched.stats.num_types == 2
    torch.testing.assert_close(ours, batched.one_by_one(X, [1] * 5, ["plain", "other"] * 2 + ["plain"]))


def test_static_arguments():
    @edbatch.cell(static=("times",))
    def repeat(x, times):
        assert isinstance(times, int)
        return torch.cat([x] * times)

    assert repeat(X[0], 2).shape == (6,)
    assert repeat(X[0], times=2).shape == (6,)
    batched = edbatch.batch(lambda x, n: (repeat(x, n), repeat(x, times=n)), stack=False)
    for (a, b), n in zip(batched(X, [1, 2, 1, 2, 3]), [1, 2, 1, 2, 3], strict=True):
        assert a.shape == b.shape == (3 * n,)
    assert sorted({t.num_nodes for t in batched.stats.types}) == [1, 2]


def test_class_decorator_marks_every_instance():
    @edbatch.cell
    class Twice(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.linear = nn.Linear(size, size)

        def forward(self, x):
            return self.linear(self.linear(x))

    a, b = Twice(3), Twice(3)
    assert options_of(a) is not None
    assert options_of(b) is not None
    batched = edbatch.batch(lambda x: b(a(x)))
    torch.testing.assert_close(batched(X), b(a(X)))
    assert batched.stats.num_nodes == 10


def test_functions_and_methods():
    weight = nn.Parameter(torch.randn(3, 3))

    @edbatch.cell
    def twice(x):
        """Doc."""
        return x @ weight @ weight

    assert twice.__doc__ == "Doc."
    torch.testing.assert_close(twice(X[0]), X[0] @ weight @ weight)
    batched = edbatch.batch(lambda x: twice(x))
    edbatch.check(batched, X)
    assert batched.stats.num_nodes == 5
    (g,) = torch.autograd.grad(batched(X).sum(), weight)
    (h,) = torch.autograd.grad(twice(X).sum(), weight)
    torch.testing.assert_close(g, h)


def test_leaf_modules_are_cells_without_marking():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4), nn.Dropout(0.0))
    for function in (model, lambda x: model(x), lambda x: nn.functional.relu(model[0](x))):
        batched = edbatch.batch(function)
        torch.testing.assert_close(batched(X), batched.one_by_one(X))
    embedding = nn.Embedding(7, 2)
    batched = edbatch.batch(lambda i: embedding(i))
    assert torch.equal(batched([3, 1, 6]), embedding.weight[[3, 1, 6]])
    assert torch.equal(batched.one_by_one([3, 1, 6]), embedding.weight[[3, 1, 6]])
    plain = torch.ones(3)
    linear = nn.Linear(3, 2)
    assert edbatch.record(lambda i: linear(plain), [1, 2]).num_nodes == 2


@pytest.mark.usefixtures("as_recorded")
def test_user_modules_are_looked_into():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(Other(), nn.Linear(3, 3))

        def forward(self, x):
            return self.inner(x)

    class Other(nn.Module):
        def forward(self, x):
            return x * 2

    batched = edbatch.batch(Mine())
    edbatch.check(batched, X)
    assert batched.stats.num_types == 2


def test_batched_modules_are_called_once_on_stacked_rows():
    calls = []

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x, i):
            calls.append(tuple(x.shape))
            assert i.shape == x.shape[:1]
            return self.linear(x) * i[:, None]

    model = edbatch.cell(Rows(), batched=True)
    batched = edbatch.batch(lambda x, i: model(x, i))
    calls.clear()
    ours = batched(X, [1, 2, 3, 4, 5])
    assert calls[-1] == (5, 3)
    assert calls.count((5, 3)) == 1
    theirs = model.linear(X) * torch.arange(1, 6)[:, None]
    torch.testing.assert_close(ours, theirs)
    for p, q in zip(
        torch.autograd.grad(ours.sum(), list(model.parameters())),
        torch.autograd.grad(theirs.sum(), list(model.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(p, q)


def test_a_batched_module_must_keep_the_first_dimension():
    model = edbatch.cell(nn.Flatten(0), batched=True)
    with pytest.raises(edbatch.EdbatchError, match="first dimension"):
        edbatch.batch(lambda x: model(x))(X)


def test_hooks_of_a_cell_see_every_call():
    seen = []
    model = edbatch.cell(nn.Linear(3, 2))
    batched = edbatch.batch(lambda x: model(x))
    batched(X)
    handle = model.register_forward_hook(lambda module, args, output: seen.append(args[0]) or output * 2)
    with torch.no_grad():
        ours = batched(X)
        assert torch.equal(torch.stack(seen), X)  # each call once, and what a hook keeps is not overwritten
        batched(X * 3)
        assert torch.equal(torch.stack(seen[:5]), X)
    torch.testing.assert_close(ours, torch.stack([model(x) for x in X]))
    assert "hooks" in batched.explain()
    handle.remove()
    torch.testing.assert_close(batched(X), model(X))
    assert batched.stats.types[0].reason is None


def test_buffers_written_by_a_cell_that_runs_one_by_one():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x * 2

    model = edbatch.cell(Counting())
    batched = edbatch.batch(model)
    torch.testing.assert_close(batched(X), X * 2)
    assert batched.stats.types[0].reason
    assert model.count == 5


def test_hooks_that_change_how_many_results_there_are_are_refused():
    model = nn.LSTMCell(3, 3)
    model.register_forward_hook(lambda module, args, results: results * 2)
    with pytest.raises(edbatch.EdbatchError, match=r"gave \(Tensor, Tensor, Tensor, Tensor\) where \(Tensor, Tensor\)"):
        edbatch.batch(lambda x: model(x)[0])(X)


def test_hooks_of_the_model_run_for_every_example():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x)

    outer, seen = Outer(), []
    outer.register_forward_pre_hook(lambda module, args: seen.append(args))
    outer.register_forward_hook(lambda module, args, output: output + 1)
    torch.testing.assert_close(edbatch.batch(outer)(X), outer.linear(X) + 1)
    assert len(seen) == 5
    outer.register_full_backward_hook(lambda module, gi, go: None)
    with pytest.raises(edbatch.EdbatchError, match="backward hooks"):
        edbatch.batch(outer)(X)


class Methods(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(3, 3), 1.0
        self.dropout = nn.Dropout(1.0)

    @edbatch.cell
    def step(self, x):
        return self.dropout(self.linear(x)) * self.scale

    def forward(self, x):
        return self.step(self.step(x))


def test_marked_methods_are_guarded_like_modules():
    model = Methods().eval()
    batched = edbatch.batch(model)
    torch.testing.assert_close(batched(X), model.linear(model.linear(X)))
    assert batched.stats.num_nodes == 10
    assert batched.train()(X).abs().sum() == 0
    batched.eval()
    model.scale = 2.0
    torch.testing.assert_close(batched(X), 2 * model.linear(2 * model.linear(X)))
    model.linear = nn.Linear(3, 3)
    edbatch.check(batched, X)


def test_a_bound_method_brings_its_module():
    model = Methods()
    batched = edbatch.batch(model.forward)
    assert list(batched.state_dict()) == list(model.state_dict())
    batched.eval()
    assert not model.training
    edbatch.check(batched, X)


def test_another_patch_of_module_calls_survives():
    original = nn.Module.__call__
    patched = lambda module, *args, **kwargs: original(module, *args, **kwargs)  # noqa: E731
    nn.Module.__call__ = patched
    try:
        edbatch.batch(nn.Linear(3, 3))(X)
        assert nn.Module.__call__ is patched
    finally:
        nn.Module.__call__ = original
