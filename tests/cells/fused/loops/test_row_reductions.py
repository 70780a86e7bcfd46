"""Ops along a row run in generated kernels: they equal torch's, also where rows are odd, and no torch op is left."""

import math

import pytest
import torch
import torch.nn.functional as F
from fused_kernels import DIM, ROWS, assert_equal, calls, rows, the_cell
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import edbatch
from edbatch.cells.fused.loops.reductions import WIDEST
from edbatch.cells.fused.phases import LONGEST_CHAIN
from edbatch.models.cells.label_loss import LabelLoss
from odd_values import ODD as ODD_ROWS
from odd_values import REDUCTIONS

LABELS = [0, 5, 2, 3, 2]
EXACT = {
    "sum": lambda x, n: (x.sum(), x.sum(-1, keepdim=True) * x, x.view(1, DIM).sum(1)),
    "mean": lambda x, n: (x.mean(), x - x.mean(0, keepdim=True)),
    "extremes": lambda x, n: (x.amax(-1), x.amin(0, keepdim=True) * x),
    "places of extremes": lambda x, n: (x.argmax(), x.argmin(-1), x.argmax(0, keepdim=True), x * x),
    "counts": lambda x, n: ((x > 0).sum(), (x * 3).long().sum(), x * x),
    "gather": lambda x, n: x.gather(0, n.view(1)) * x,
    "index": lambda x, n: (x[n] * x, x[-n - 1], x.view(1, DIM)[:, n] * x),
    "scatter": lambda x, n: (x * x).scatter(0, n.view(1), x[1:2]),
    "scatter a number": lambda x, n: x.scatter(0, n.view(1), 2.5) * x,
    "scatter and add": lambda x, n: (x * x).scatter_add(0, n.view(1), x[1:2]),
    "put": lambda x, n: (
        (x * x).index_put((n,), x[1]), (x * x).index_put((n,), x[1], accumulate=True), (n + x).index_put((n - 2,), x[0])
    ),
    "a place that was computed": lambda x, n: (x * 2)[x.argmax()] * x[x.argmin() - DIM] * x,
    "a shared row": lambda x, n: (torch.arange(7.0, dtype=x.dtype)[n] * x, torch.zeros(3)[n % 3] + x),
    "several in a row": lambda x, n: (x - (x - x.mean()).amax()).sum() * (x * x.amin()).argmax() * x,
    "pieces": lambda x, n: torch.cat([x[:1] * 2, x[3:], -x[:2]]).sum() * F.pad(x[1:4], (2, 3)).amax() * x,
    "places in pieces": lambda x, n: (torch.cat([x[:3], x]).argmax(), torch.cat([x[2:], x[2:]])[n] * x),
}  # fmt: skip
APPROXIMATE = {
    "softmax": lambda x, n: (x.softmax(0), x.view(1, DIM, 1).softmax(1)),
    "log_softmax": lambda x, n: x.log_softmax(-1),
    "logsumexp": lambda x, n: (x.logsumexp(0), x - x.logsumexp(-1, keepdim=True)),
    "cross entropy": lambda x, n: F.cross_entropy(x, n),
    "cross entropy of a batch of one": lambda x, n: F.cross_entropy(x.view(1, DIM), n.view(1)),
    "an ignored label": lambda x, n: F.cross_entropy(x, n, ignore_index=2, reduction="sum"),
    "an ignored mean": lambda x, n: F.cross_entropy(x, n, ignore_index=2),
    "attention": lambda x, n: ((x.tanh() * 2).softmax(-1) * x).sum().tanh() * x,
    "softmax of softmax": lambda x, n: ((x.softmax(0) * 3).log_softmax(0) + x).softmax(0),
    "pieces": lambda x, n: torch.cat([x[1:].softmax(0), x[:2].log_softmax(0)]).softmax(0),
    "argmax and loss": lambda x, n: (x.tanh().log_softmax(0)[n], x.tanh().argmax()),
}  # fmt: skip
CASES = [(name, f, True) for name, f in EXACT.items()] + [(name, f, False) for name, f in APPROXIMATE.items()]
LEFT = ("softmax", "argm", "gather", "scatter", "index", "amax(", "amin(", "sum(", "mean(", "logsumexp(")


def sources(cell):
    """The launches of all programs so far."""
    return [text.partition("def launch")[2] for text in cell.sources if "def launch" in text]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "function", "is_exact"), CASES, ids=[name for name, *_ in CASES])
def test_ops_along_rows(compiled, name, function, is_exact, dtype):
    tolerance = 1e-12 if dtype is torch.float64 else 3e-6
    batched = assert_equal(edbatch.cell(function), rows(dtype=dtype), LABELS, tolerance=tolerance)
    assert not [op for op in LEFT for text in sources(the_cell(batched)) if op in text]


@pytest.mark.parametrize(("name", "function", "is_exact"), CASES, ids=[name for name, *_ in CASES])
def test_exact_math_leaves_exponentials_to_torch(compiled, name, function, is_exact):
    batched = assert_equal(edbatch.cell(function), rows(dtype=torch.float32), LABELS, tolerance=3e-6, exact_math=True)
    found = [op for op in LEFT for text in sources(the_cell(batched)) if op in text]
    assert is_exact == (not found)
    assert not any(f"{f}_f32(" in text for text in the_cell(batched).sources for f in ("exp", "log"))


INF, NAN = math.inf, math.nan
ODD = torch.tensor([
    [1.0, 3.0, 3.0, 2.0, 3.0, 0.0], [NAN, 1.0, 2.0, 3.0, 4.0, 5.0], [1.0, NAN, 9.0, NAN, 0.0, 0.0],
    [-INF, 1.0, -INF, 2.0, 0.5, -INF], [-INF] * 6, [INF, 1.0, 2.0, INF, 0.0, 0.0], [0.0, -0.0, 0.0, -0.0, 0.0, -0.0],
    [1e30, -1e30, 3e38, 3e38, -3e38, 1.0], [7.0] * 6, [-1e-40, 1e-40, 0.0, 1e-45, 0.0, 1.0],
])  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("repeat", [1, 9])  # 9: also the vectorised part of loops
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "amax", "amin", "argmax", "argmin"])
def test_odd_rows(compiled, name, repeat, dtype):
    """Not a number, infinities, ties, rows of minus infinity."""
    x = torch.cat([ODD.roll(i, 1) for i in range(6)]).to(dtype).repeat(1, repeat)
    batched = edbatch.batch(edbatch.cell(lambda x: getattr(x, name)(-1)))
    torch.testing.assert_close(batched(x), getattr(x, name)(-1), equal_nan=True)
    assert calls(the_cell(batched).infer.forward) == (1, 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("repeat", [1, 9])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_gradients_of_odd_rows(compiled, name, repeat, dtype):
    """The same table as for rows of stacked values; what is odd is also computed in the cell, and only then reduced."""
    x = torch.tensor(list(ODD_ROWS.values()), dtype=dtype).repeat(1, repeat).requires_grad_()
    for function in (lambda x: REDUCTIONS[name](x, -1), lambda x: REDUCTIONS[name](x * 2, 0)):
        batched = edbatch.batch(edbatch.cell(function), stack=False)
        ours, theirs = list(batched(x)), [function(row) for row in x]
        tolerance = {"rtol": 3e-6, "atol": 3e-6} if dtype is torch.float32 else {"rtol": 1e-13, "atol": 1e-13}
        torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)
        if ours[0].requires_grad:
            weights = [torch.randn_like(result) for result in theirs]
            grads = (torch.autograd.grad(results, x, weights)[0] for results in (ours, theirs))
            torch.testing.assert_close(*grads, equal_nan=True, **tolerance)


@pytest.mark.parametrize("width", [1, 2, 5, 8, 31, 32, 33, 100, 1000])
def test_widths(compiled, width):
    """Loops of all lengths: shorter than a vector, with and without a rest."""
    x, labels = rows(width, dtype=torch.float32), [i % width for i in range(ROWS)]
    cell = edbatch.cell(lambda x, n: (F.cross_entropy(x, n), x.argmax(), x.softmax(0), x[n - width] * x.sum()))
    assert_equal(cell, x, labels, tolerance=5e-6)


def test_wide_rows_are_read_by_torch(compiled):
    """It has more threads; single elements stay in kernels."""
    cell = edbatch.cell(lambda x, n: (F.cross_entropy(x, n), x.argmax()))
    batched = assert_equal(cell, rows(WIDEST, dtype=torch.float32), LABELS, tolerance=1e-5)
    text = "".join(sources(the_cell(batched)))
    assert [op for op in LEFT if op in text] == ["softmax", "argm"]


@pytest.mark.parametrize("label", [-1, 6, 10**12, -(10**12)])
@pytest.mark.parametrize("function", [
    lambda x, n: x.gather(0, n.view(1)), lambda x, n: F.cross_entropy(x, n), lambda x, n: x[n * 7],
    lambda x, n: x.scatter(0, n.view(1), 1.0), lambda x, n: x.index_put((n * 7,), x[0]),
])  # fmt: skip
def test_a_place_that_does_not_exist_is_an_error(compiled, function, label):
    batched = edbatch.batch(edbatch.cell(function))
    with torch.no_grad(), pytest.raises(IndexError, match="an index is out of bounds") as caught:
        batched(rows(), [0, label, 5, 1, 2])
    extreme = f"{'largest' if label > 5 else 'smallest'} number it got is {label}, in example 1"
    assert extreme in caught.value.__notes__[0]


class Wide(nn.Module):
    """A product that lies block by block, reduced whole, in halves, and at a place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(DIM, 32, bias=False)

    def forward(self, x, n):
        y = self.linear(x)
        first, second = y.chunk(2)
        halves = first.sigmoid() * second.tanh()
        return (
            y.log_softmax(0)[n * 6],
            y.argmax(),
            y.argmin(),
            halves.softmax(0),
            (y * y).mean(),
            y.scatter(0, n.view(1), 1.0),
        )


def test_products_that_lie_in_blocks(small_blocks):
    batched = assert_equal(edbatch.cell(Wide().double()), rows(), LABELS)
    assert any(" * B * " in kernel for kernel in the_cell(batched).infer.forward.kernels)


def test_ties_in_blocks(small_blocks):
    """The first place wins, though blocks are compared side by side."""
    model = Wide().double()
    model.linear.weight.data = torch.ones(32, DIM, dtype=torch.float64)
    model.linear.weight.data[:3] = 0.0
    x = torch.arange(1.0, ROWS * DIM + 1, dtype=torch.float64).view(ROWS, DIM)  # sums of integers are exact
    _, largest, smallest, *_ = edbatch.batch(edbatch.cell(model))(x, LABELS)
    assert largest.tolist() == [3] * ROWS
    assert smallest.tolist() == [0] * ROWS


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("width", [5, 50, 3000])
def test_errors_are_not_larger_than_torchs(compiled, width, scale):
    x = torch.randn(200, width) * scale
    for function in (lambda x: x.softmax(-1), lambda x: x.log_softmax(-1), lambda x: x.logsumexp(-1),
                     lambda x: x.sum(-1), lambda x: x.mean(-1)):  # fmt: skip
        exact = function(x.double())
        ours, theirs = edbatch.batch(edbatch.cell(function))(x), function(x)
        error, allowed = ((y - exact).pow(2).mean().sqrt().item() for y in (ours, theirs))
        assert error <= 2 * allowed + 1e-7


def test_the_end_of_a_model_is_one_product_and_one_kernel(compiled):
    batched = assert_equal(edbatch.cell(LabelLoss(DIM, 6)), rows(dtype=torch.float32), LABELS, tolerance=1e-5)
    cell = the_cell(batched)
    assert calls(cell.infer.forward) == (1, 1)
    (training,) = cell.trainings.values()
    assert calls(training.forward) == (2, 1)  # the label first, for it is known before the product
    assert calls(training.backward) == (2, 1)


def test_elementwise_ops_beside_a_reduction_share_loops(compiled):
    """One loop per stage: the sum is taken where the elements are computed and stored."""
    batched = edbatch.batch(edbatch.cell(lambda x: (lambda y: (y, y.sum(), y * y.sum()))(x.tanh())))
    batched(rows(grad=False))
    (kernel,) = the_cell(batched).infer.forward.kernels
    assert kernel.count("for j in range(") == 3  # of the row, of one element, of the row again
    assert kernel.count("tanh_f64(") == 2


def test_long_chains_are_cut(compiled):
    """Every stage computes again what it reads; so a chain along rows ends in memory, where the next one begins."""

    def chain(x):
        for _ in range(10):
            x = (x * 3).softmax(-1)
        return x

    batched = assert_equal(edbatch.cell(chain), rows())
    (training,) = the_cell(batched).trainings.values()
    assert all(kernel.count("exp_f64(") <= LONGEST_CHAIN * (LONGEST_CHAIN + 1) for kernel in training.forward.kernels)


STEPS = [
    lambda x, n: x.softmax(-1) * 3, lambda x, n: x.log_softmax(-1), lambda x, n: x - x.mean(-1, keepdim=True),
    lambda x, n: x * x[n], lambda x, n: x.scatter(0, n.view(1), x.sum().view(1)), lambda x, n: x.tanh(),
    lambda x, n: torch.cat([x[2:], x[:2].softmax(0)]), lambda x, n: x + x.argmax() - x.amax(), lambda x, n: x.flip(0),
    lambda x, n: x - x.logsumexp(0), lambda x, n: x[1:].sum() * x, lambda x, n: F.pad(x[1:-1], (1, 1)),
    lambda x, n: x.index_put((n,), x[0], accumulate=True), lambda x, n: (x > x.mean()).sum() * x,
]  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(range(len(STEPS))), min_size=2, max_size=5), st.integers(0, 1000))
def test_random_chains(compiled, chain, seed):
    torch.manual_seed(seed)

    def body(x, n):
        results = [x * 1]
        for step in chain:
            results.append(STEPS[step](results[-1], n))
        return results[-1], sum(results)

    assert_equal(edbatch.cell(body), rows(), LABELS, tolerance=1e-8)
