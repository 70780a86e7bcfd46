"""What torch does without complaint a batched function does too: the same values and gradients as a plain loop."""

import collections
import itertools
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import edbatch
from edbatch.errors import BatchError, GradientError, RecordingError, ValueReadError
from like_torch import like_torch

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
XG = X.clone().requires_grad_()
CUBES = torch.randn(4, 3, 4, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)


# ---- one-element views and products


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.norm().unsqueeze(0),
        lambda x: x.var().reshape(1),
        lambda x: x.sum().view(1),
        lambda x: x.norm().view(1, 1) * 2,
        lambda x: (x.norm(), x.var().expand(1)),
    ],
)
def test_a_cell_may_give_a_view_of_one_number(function, compilation):
    like_torch(edbatch.cell(function), XG)
    like_torch(edbatch.cell(function), X)


@pytest.mark.parametrize("product", [torch.vdot, torch.dot, torch.inner])
def test_products_of_vectors_of_16_bits(product, compilation):
    weight = nn.Parameter(torch.randn(6).bfloat16())
    x = X.bfloat16().requires_grad_()
    like_torch(lambda x: product(x, weight), x, parameters=[weight])
    like_torch(edbatch.cell(lambda x: product(weight, x)), x, parameters=[weight])


# ---- indices


class Tables(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.vector = nn.Parameter(torch.randn(6))
        self.table = nn.Parameter(torch.randn(6, 3))
        self.register_buffer("numbers", torch.randn(6))
        self.words = nn.Embedding(6, 3)
        self.function = function

    def forward(self, *args):
        return self.function(self, *args)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8])
@pytest.mark.parametrize(
    "function",
    [
        lambda m, i: m.vector[i] * 2,
        lambda m, i: m.numbers[i] * m.vector[i],
        lambda m, i: m.table[i].tanh(),
        lambda m, i: m.table[i, 1] + m.table[:, 0].sum(),
        lambda m, i: (m.vector * m.vector[i])[i],
    ],
)
def test_whole_numbers_of_any_width_are_indices(function, dtype):
    column = torch.tensor([1, 2, 0, -1]).to(dtype)
    for model in (Tables(function), edbatch.cell(Tables(function))):
        like_torch(model, column, parameters=list(model.parameters()))


def test_lists_of_int32_are_indices(compilation):
    column = torch.tensor([[0, 1], [1, 0], [1, 1], [5, 3]], dtype=torch.int32)
    for function in (lambda m, i: m.vector[i], lambda m, i: m.table[i].sum(0), lambda m, i: m.words(i).sum(0)):
        model = Tables(function)
        like_torch(model, column, parameters=list(model.parameters()))


def test_labels_of_bytes():
    labels = torch.tensor([0, 5, 2, 1], dtype=torch.uint8)
    like_torch(F.cross_entropy, XG, labels)


TWO = torch.tensor([0, 2])
MASK = torch.tensor([True, False, True])
MASK4 = torch.tensor([True, False, True, True])
INDICES = [
    (0, [0, -1]), [0, -1], ([0, 1], 0), ([0, 1], slice(None), 0), (0, slice(None), [0, 1]), (..., [0, 1]),
    (0, ..., [0, 1]), (None, 0, [0, 1]), (0, None, [0, 1]), ([0, 1], [1, 2]), ([-1], -1), (slice(1, None), [0, 1], 0),
    (0, [[0, 1], [1, 0]]), (0, []), (), ..., None, TWO, (0, TWO), (TWO, 0), (-1, TWO), (0, slice(None), TWO),
    (TWO, [0, 1]), MASK, (0, MASK4), (MASK, 0), (slice(None), MASK4), (MASK, 0, TWO), (..., MASK4, 1), (MASK, [0, 3]),
    torch.ones(3, 4) > 0,
    [True, False, True], (0, [True, False, True, True]), True, (0, True), (None, False), torch.tensor(True),
    torch.tensor(1), (torch.tensor(1), [0, 1]), (torch.tensor(-1), 0), (..., torch.tensor(1)),
    (torch.tensor(1), ..., [1]), np.array([0, 1]), (0, np.array([0, 1])), MASK.numpy(), np.int64(1),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_any_index_that_torch_takes(index):
    weight = nn.Parameter(torch.randn(3, 4, 5))
    like_torch(lambda x: weight[index] + x.sum(), CUBES, parameters=[weight])
    like_torch(lambda x: x[index] + (x * 2)[index], CUBES)
    like_torch(lambda x: torch.stack([x[0], x[1] * 2, x[2]])[index], CUBES)
    like_torch(edbatch.cell(lambda x: x[index] * weight[index]), CUBES, parameters=[weight])


def test_numbers_beside_lists_are_data():
    weight = nn.Parameter(torch.randn(3, 4, 5))

    def function(x, i, n):
        return (x * 2)[i, [0, -1]] + x[n, [1, 2]] + weight[i, [0, -1]] + weight[n, [1, 1]]

    batched = like_torch(function, CUBES, torch.tensor([0, 1, 2, -1]), [2, -1, 0, 1], parameters=[weight])
    assert [(t.num_batches, t.reason) for t in batched.stats.types] == [(1, None)] * len(batched.stats.types)


def test_masks_that_are_given_are_read_and_others_refused():
    masks = torch.tensor([[True, False, True], [False, True, True], [True, True, False], [True, True, False]])
    like_torch(lambda x, mask: x[mask] * 2, CUBES, masks)
    like_torch(lambda x, mask: (x * 2)[:, mask[0]], CUBES, [[MASK4]] * 4)
    with pytest.raises(ValueReadError, match=r"torch\.where or masked_fill"):
        edbatch.batch(lambda x: x[x * nn.Parameter(torch.ones(1)) > 0])(X)
    for index in (torch.tensor([True, False]), (..., torch.tensor([True]))):
        with pytest.raises(IndexError, match="mask"):
            edbatch.batch(lambda x, index=index: x[index])(X)


def test_examples_whose_masks_are_read_are_recorded_in_every_call():
    batched = edbatch.batch(lambda x, mask: x[mask], key=lambda x, mask: 0, stack=False)
    for mask in (MASK, ~MASK):
        (result,) = batched([CUBES[0]], [mask])
        assert torch.equal(result, CUBES[0][mask])


def test_shared_tensors_made_of_each_other_in_what_runs_one_by_one():
    weight = nn.Parameter(torch.randn(6))
    batched = like_torch(lambda i: weight.index_add(0, i, weight[:1]), torch.tensor([1, 2, 0]), parameters=[weight])
    assert any(t.reason for t in batched.stats.types)
    like_torch(edbatch.cell(lambda i: weight.index_add(0, i, weight[:1])), torch.tensor([1, 2, 0]), parameters=[weight])


# ---- ops without a derivative, and values that autograd saved and that are overwritten

Y = X.abs() + 0.5


def overwrite(x, y):
    z = torch.tanh(x)
    z += y
    return z


WITHOUT_DERIVATIVE = {
    "//": lambda x, y: x // y,
    "// 2": lambda x, y: x // 2,
    "2 //": lambda x, y: 2 // y,
    "2 %": lambda x, y: 2 % y,
    "floor_divide": torch.floor_divide,
    "heaviside": torch.heaviside,
    "heaviside and more": lambda x, y: torch.heaviside(x, y) * x,
    "three": lambda x, y: torch.heaviside(x, y) + torch.heaviside(y, x + 1) // (x + y),
    "frexp": lambda x, y: torch.frexp(x)[0],
    "overwritten": overwrite,
}


@pytest.mark.parametrize("name", WITHOUT_DERIVATIVE)
def test_what_has_no_derivative_where_none_is_wanted(name):
    function, weight = WITHOUT_DERIVATIVE[name], nn.Parameter(torch.randn(6))
    batched = like_torch(edbatch.cell(function), X, Y)
    assert name == "frexp" or [t.reason for t in batched.stats.types] == [None]
    like_torch(edbatch.cell(lambda x, y: (function(x, y) * weight, x + weight)), X, Y, parameters=[weight])
    if name != "overwritten":
        like_torch(function, X, Y)
        like_torch(lambda x, y: function(x * 2, y) + weight, X, Y, parameters=[weight])


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda x, y: x // y, "derivative for aten::floor_divide is not implemented"),
        (torch.heaviside, "derivative for aten::heaviside is not implemented"),
        (overwrite, "modified by an inplace operation"),
    ],
)
def test_a_gradient_through_what_has_none_is_torchs_own_error(function, match):
    result = edbatch.batch(edbatch.cell(function))(XG, Y)
    torch.testing.assert_close(result, torch.stack([function(*e) for e in zip(X, Y, strict=True)]))
    with pytest.raises(RuntimeError, match=match):
        result.sum().backward()


def test_a_gradient_that_is_wanted_in_later_steps_only():
    """The first step has no gradient, the second has one of its first argument; both are one type."""
    weight = nn.Parameter(torch.randn(6))
    step = edbatch.cell(lambda h, x: (h * x + torch.heaviside(x, x)).tanh())

    def function(x, n):
        h = x
        for i in range(n):
            h = step(h, x)
            h = h * weight if i == 0 else h
        return h

    batched = like_torch(function, X, [1, 2, 3, 4], parameters=[weight])
    assert not any(t.reason for t in batched.stats.types)
    like_torch(function, X, [4, 2, 3, 1], parameters=[weight])


# ---- views among the results of a cell


def overwrite_after_chunk(x):
    doubled = x * 2
    half = doubled.chunk(2)[0]
    doubled += 1
    return doubled, half


def test_a_view_whose_gradient_torch_refuses_and_nobody_wants():
    """Of several views made at once none can be differentiated once their base is written."""
    cell = edbatch.cell(overwrite_after_chunk)
    like_torch(lambda x: cell(x)[0] * 3, XG)
    like_torch(cell, X)
    with pytest.raises(RuntimeError, match="Output 0 of Split"):
        edbatch.batch(cell, stack=False)(XG)[0][1].sum().backward()


@pytest.mark.parametrize("split", [lambda x: x.chunk(2), lambda x: x.split(4), torch.unbind, lambda x: x.topk(2)])
def test_several_views_as_results(split, compilation):
    weight = nn.Parameter(torch.randn(6))
    cell = edbatch.cell(lambda x: (x * weight, split(x * weight)[0], split(x)))
    like_torch(cell, XG, parameters=[weight])
    like_torch(lambda x: cell(x)[0], X, parameters=[weight])
    like_torch(lambda x: cell(x)[1] * 2, X, parameters=[weight])


def without_grad_after(x):
    doubled = x * 2
    with torch.no_grad():
        return doubled, doubled.view(2, 3)


@pytest.mark.parametrize(
    "function",
    [
        torch.no_grad()(lambda x: x.view(2, 3)),
        torch.no_grad()(lambda x: x.chunk(2)),
        torch.no_grad()(lambda x: x[0]),
        without_grad_after,
    ],
)
def test_views_made_without_grad_as_results(function):
    like_torch(edbatch.cell(function), X)
    like_torch(edbatch.cell(function), XG)
    like_torch(lambda x: edbatch.cell(function)(x * 2), XG)


# ---- values without elements

TABLE = nn.Parameter(torch.zeros(2, 0))
OF_NOTHING = {
    "mse": lambda x: F.mse_loss(x, x * 2),
    "smooth": lambda x: F.smooth_l1_loss(x, x * 2),
    "huber": lambda x: F.huber_loss(x, x * 2),
    "mean": lambda x: (x.mean(), x.mean(0)),
    "var": lambda x: x.var(),
    "norm": lambda x: x.norm(),
    "median": lambda x: x.median(),
    "softmax": lambda x: x.softmax(-1),
    "cat": lambda x: torch.cat([x, x * 2]),
    "max": lambda x: x.max(),
    "stack flip": lambda x: torch.stack([x, x * 2]).flip(0),
    "stack mean": lambda x: torch.stack([x, x * 2]).mean(),
    "stack softmax": lambda x: torch.stack([x, x * 2]).softmax(0),
    "linear": lambda x: F.linear(x, TABLE) if x.shape[-1] == 0 else x,
    "product": lambda x: x @ x.new_zeros(x.shape[-1], 2),
}


@pytest.mark.filterwarnings("ignore:var\\(\\):UserWarning", "ignore:std_mean\\(\\):UserWarning")
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("name", OF_NOTHING)
def test_values_without_elements(name, shape, compilation):
    function, column = OF_NOTHING[name], torch.zeros(2, *shape, requires_grad=True)
    try:
        function(column[0])
    except (RuntimeError, IndexError) as error:
        with pytest.raises(type(error)):
            edbatch.batch(function)(column)
        return
    like_torch(function, column)
    like_torch(function, column.detach())
    like_torch(edbatch.cell(function), column)


# ---- products of several dtypes

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bfloat16)


@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, DTYPES, DTYPES)), ids=str)
def test_products_of_several_dtypes(dtypes):
    """As torch does: some take them, the others raise torch's own error."""
    for product, shapes in (
        (torch.addr, ((3, 3), (3,), (3,))),
        (torch.addmv, ((3,), (3, 2), (2,))),
        (torch.addmm, ((3, 4), (3, 2), (2, 4))),
        (torch.baddbmm, ((1, 3, 4), (1, 3, 2), (1, 2, 4))),
        (torch.addcmul, ((3,), (3,), (3,))),
    ):
        columns = [(torch.randn(2, *s) * 4).to(d) for s, d in zip(shapes, dtypes, strict=True)]
        if columns[0].is_floating_point() and dtypes[0] == dtypes[1] == dtypes[2]:
            columns[0].requires_grad_()
        try:
            product(*[c[0] for c in columns])
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error).split("\n")[0])):
                edbatch.batch(product)(*columns)
        else:
            if product is torch.addmv and columns[0].is_floating_point() and not columns[1].is_floating_point():
                with pytest.raises(RuntimeError, match="isDifferentiable"):  # torch 2.6, where gradients are on
                    edbatch.batch(product)(*columns)
                continue
            like_torch(product, *columns)


# ---- containers, transforms around a batched function


Pair = collections.namedtuple("Pair", "left right")


def test_containers_on_versions_of_torch_that_cannot_hash_their_structure(monkeypatch):
    monkeypatch.setattr(pytree.TreeSpec, "__hash__", None)
    cell = edbatch.cell(lambda pair, rest: pair.left * pair.right + rest["x"])
    like_torch(lambda x: cell(Pair(x, 2.0), collections.OrderedDict(x=x * 2)), XG)
    batched = like_torch(lambda x, n: cell(Pair(x, n), {"x": x}) + cell(Pair(n, x), {"x": x}), XG, [0.5, 1.0, 2.0, 3.0])
    assert [t.num_batches for t in batched.stats.types] == [1] * 3  # two orders of arguments, and the sum


def test_functional_call_of_a_batched_function():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.scale = nn.Linear(6, 6), nn.Parameter(torch.randn(6))

        def forward(self, x):
            return torch.tanh(self.linear(x)) * self.scale + self.linear.bias[0]

    model = Model()
    batched = edbatch.batch(model)
    batched(X)
    for _ in range(2):
        other = {name: torch.randn_like(p).requires_grad_() for name, p in model.named_parameters()}
        ours = torch.func.functional_call(batched, other, (X,))
        theirs = torch.stack([torch.func.functional_call(model, other, (x,)) for x in X])
        torch.testing.assert_close(ours, theirs)
        for a, b in zip(*(torch.autograd.grad(r.sum(), list(other.values())) for r in (ours, theirs)), strict=True):
            torch.testing.assert_close(a, b)
    torch.testing.assert_close(batched(X), torch.stack([model(x) for x in X]))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own use of it
def test_forward_mode_and_transforms_around_a_batched_function():
    weight = nn.Parameter(torch.randn(6))
    batched = edbatch.batch(lambda x, scale=1.0: (x * weight * scale).sum())
    for transformed in (
        lambda: torch.func.grad(lambda x: batched(x).sum())(X),
        lambda: torch.func.vmap(batched)(X.expand(3, 4, 6)),
        lambda: torch.func.jvp(batched, (X,), (X,)),
        lambda: torch.func.jacrev(batched)(X),
    ):
        with pytest.raises(BatchError, match="one_by_one"):
            transformed()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, X)
        for columns, keywords in (((dual,), {}), (([[d] for d in dual],), {}), ((X,), {"scale": dual[0]})):
            function = edbatch.batch(lambda x, scale=1.0: (x[0] * weight * scale).sum())
            with pytest.raises(BatchError, match="forward mode"):
                function(*columns, **keywords)
        dual_weight = forward_ad.make_dual(weight, torch.ones(6))
        with pytest.raises(BatchError, match="forward mode"):
            edbatch.batch(lambda x: x * dual_weight)(X)
        torch.testing.assert_close(batched(X), (X * weight).sum(1))
        assert forward_ad.unpack_dual(batched.one_by_one(dual)).tangent is not None
    torch.testing.assert_close(torch.func.grad(lambda x: batched.one_by_one(x).sum())(X), weight.expand(4, 6))


# ---- parameters that are written while the model runs


@pytest.mark.parametrize("mark", [
    lambda table: lambda i: table(torch.tensor(i)) * 2,
    lambda table: edbatch.cell(lambda i: table(i) * 2),
    lambda table: lambda i: F.embedding(torch.tensor(i), table.weight, max_norm=0.5) * 2,
])  # fmt: skip
def test_an_embedding_with_max_norm_scales_the_rows_that_are_looked_up(mark):
    tables = [nn.Embedding(5, 3, max_norm=0.5, _weight=torch.linspace(-2, 2, 15).view(5, 3)) for _ in range(2)]
    expected = torch.stack([tables[0](torch.tensor(i)) * 2 for i in (3, 1)])
    result = edbatch.batch(mark(tables[1]))([3, 1])
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(tables[1].weight, tables[0].weight)
    expected.sum().backward()
    result.sum().backward()
    torch.testing.assert_close(tables[1].weight.grad, tables[0].weight.grad)


def test_a_cell_that_writes_a_tensor_of_its_surroundings_does_so_once_for_every_call():
    written, expected = torch.ones(4), torch.ones(4)

    def writes(x, tensor):
        part = tensor.chunk(2)[1]
        part *= 2
        return x * 1

    edbatch.batch(edbatch.cell(lambda x: writes(x, written)))(X)
    for x in X:
        writes(x, expected)
    assert torch.equal(written, expected)


# ---- no derivative


def test_calls_without_derivative_beside_calls_with_one():
    weight = nn.Parameter(torch.randn(6))
    norm = nn.CosineSimilarity(dim=0)

    def unused(x):
        norm(torch.heaviside(x * weight, x), x)  # nobody asks for it
        return norm(x * weight, x)

    like_torch(unused, X, parameters=[weight])

    def used(x):
        return torch.heaviside(x * 1, x) + torch.heaviside(x * weight, x).detach() + x * weight

    with pytest.raises(GradientError, match=r"heaviside.*detach\(\)"):
        edbatch.batch(used)(X).sum().backward()


def test_a_group_norm_of_nothing():
    norm = nn.GroupNorm(1, 3)
    try:
        norm(torch.randn(1, 3, 0))
    except RuntimeError as error:  # as torch 2.15 does
        with pytest.raises(RuntimeError, match=re.escape(str(error).split("\n")[0])):
            edbatch.batch(lambda x: norm(x))(torch.randn(2, 1, 3, 0))
        return
    like_torch(lambda x: norm(x), torch.randn(2, 1, 3, 0), parameters=list(norm.parameters()))


def test_masks_of_parameters_by_masked_select(compilation):
    weight, mask = nn.Parameter(torch.randn(6)), torch.tensor([True, False, True] * 2)
    like_torch(lambda x: x.sum() * weight.masked_select(mask).max(), XG, parameters=[weight])
    like_torch(lambda x: torch.masked_select(weight[:1], mask) * x[:4], XG, parameters=[weight])
    like_torch(lambda x: x.masked_select(mask) * 2, XG)


# ---- hooks


@pytest.mark.parametrize("number", [0, 1, 2])
def test_hooks_that_a_cell_puts_on_what_others_use_too_are_refused(number):
    weight = nn.Parameter(torch.randn(6))

    @edbatch.cell
    def hooks(h, g):
        (h, g, weight)[number].register_hook(lambda gradient: gradient * 2)
        return h * g * weight

    with pytest.raises(RecordingError, match="puts a hook on its argument or on a parameter"):
        edbatch.batch(lambda x: hooks(x * weight, weight) + x)(X)


def test_a_cell_does_not_end_the_gradients_of_its_arguments():
    cell = edbatch.cell(lambda x, h: x * h.requires_grad_(False))
    with pytest.raises(RecordingError, match=r"use detach\(\)"):
        edbatch.batch(lambda x: cell(x, x * 2))(X)


@pytest.mark.parametrize(
    "function", [F.gelu, F.silu, torch.sigmoid, torch.tanh, F.relu, F.leaky_relu, F.softplus, F.elu]
)
def test_activations_of_parameters_in_cells(function, compilation):
    weight = nn.Parameter(torch.randn(6))
    like_torch(edbatch.cell(lambda x: x * function(weight) + function(x)), XG, parameters=[weight])
