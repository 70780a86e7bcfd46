"""Hoisted cells: the part ahead and the part that remains together equal the whole cell, one by one, with gradients."""

from __future__ import annotations

import pytest
import torch
from bodies import CASES, Case, DoubledWeight, Reversed
from hypothesis import given, settings
from hypothesis import strategies as st
from one_by_one import autograd, can_train, close, columns, compiled, run_infer, run_training
from test_random_bodies import SIZE, function_of, programs
from torch import nn

from edbatch.cells.capture.cut_points import PRODUCTS

pytestmark = pytest.mark.usefixtures("double")


def training_of(kernel, need_outs):
    need_rows = tuple(spec.is_float for spec in kernel.rows)
    return kernel.torch_ops.training(need_rows, can_train(kernel), need_outs)


def add(totals, numbers, gradients):
    for number, gradient in zip(numbers, gradients, strict=True):
        if gradient is not None:
            totals[number] = gradient + totals[number] if number in totals else gradient


def assert_parts_equal(function, examples, recurrent, shared=()):
    """Hoists, runs both parts, compares with one by one; returns the parts."""
    cell = compiled(function, examples, shared)
    both = cell.hoisted(recurrent)
    assert both is not None
    ahead, main = both.ahead, both.main
    assert not any(recurrent[i] for i in ahead.rows)
    rows = columns(examples)
    given_to = [[*(shared[i] for i in part.shared), *part.kernel.enclosed] for part in (ahead, main)]
    tensors = list({id(t): t for t in (*shared, *cell.enclosed)}.values())
    assert {id(t) for given in given_to for t in given} <= {id(t) for t in tensors}
    out_grads = [torch.randn(len(examples), *s.shape, dtype=s.dtype) if s.is_float else None for s in cell.outputs]
    outs, row_grads, shared_grads = autograd(function, examples, shared, tensors, out_grads)
    rows_ahead, rows_main = [rows[i] for i in ahead.rows], [rows[i] for i in main.rows]
    cuts = run_infer(ahead.kernel, rows_ahead, given_to[0])
    close(run_infer(main.kernel, [*rows_main, *cuts], given_to[1]), outs, 1e-9)
    training = training_of(main.kernel, tuple(spec.is_float for spec in cell.outputs))
    ours = run_training(main.kernel, training, [*rows_main, *cuts], given_to[1], out_grads)
    close(ours[0], outs, 1e-9)
    cut_grads = ours[1][len(main.rows) :]
    training = training_of(ahead.kernel, tuple(g is not None for g in cut_grads))
    theirs = run_training(ahead.kernel, training, rows_ahead, given_to[0], cut_grads)
    of_rows, of_shared = {}, {}
    for part, given_tensors, found in ((main, given_to[1], ours), (ahead, given_to[0], theirs)):
        add(of_rows, part.rows, found[1][: len(part.rows)])
        add(of_shared, map(id, given_tensors), [g if g is None or not g.is_sparse else g.to_dense() for g in found[2]])
    close([of_rows.get(i) for i in range(len(rows))], row_grads, 1e-9)
    close([of_shared.get(id(t)) for t in tensors], shared_grads, 1e-9)
    return ahead.kernel, main.kernel


def num_products(kernel):
    """In the forward part."""
    forward = {i for i in range(kernel.body.num_inputs, len(kernel.body.specs)) if not depends_on_tangents(kernel, i)}
    return sum(kernel.body.op(i).target in PRODUCTS for i in forward)


def depends_on_tangents(kernel, value):
    body = kernel.body
    first = len(body.rows) + len(body.shared)
    if value < body.num_inputs:
        return value >= first
    return any(depends_on_tangents(kernel, v.index) for v in body.op(value).operands)


def vectors(count, size=4):
    return [tuple(torch.randn(size) for _ in range(count)) for _ in range(6)]


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.u, self.b = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.randn(4))
        self.norm = nn.LayerNorm(4)


def plain(m, x, h):
    return torch.tanh(m.w(x) + m.u(h))


def nothing_between(m, x, h):
    return m.w(x) * h


def detached_result(m, x, h):
    return torch.tanh(m.w(x).detach() + m.u(h))


def detached_operand(m, x, h):
    return torch.tanh(m.w(x.detach()) + m.u(h)) + x * h


def detached_once(m, x, h):
    y = m.w(x)
    return torch.tanh(y.detach() + m.u(h)) * y


def without_gradients(m, x, h):
    with torch.no_grad():
        y = m.w(x)
    return torch.tanh(y + m.u(h))


def half_without_gradients(m, x, h):
    y = m.w(x)
    with torch.no_grad():
        scale = torch.sigmoid(y)
    return torch.tanh(y + m.u(h)) * scale


def reversed_gradient(m, x, h):
    return torch.tanh(Reversed.apply(m.w(x)) + m.u(h))


def doubled_weight(m, x, h):
    return torch.tanh(DoubledWeight.apply(x, m.w.weight) + m.w(x) + m.u(h))


def weight_in_both(m, x, h):
    return torch.tanh(m.w(x) + m.w(h)) + m.b * h


def operand_in_both(m, x, h):
    return torch.tanh(m.w(x) + m.u(h)) * x + x.sigmoid() * h


def common_source(m, x, h):
    s = torch.sigmoid(x)
    return torch.tanh(m.w(s) + m.u(h)) * s


def result_ahead(m, x, h):
    y = m.w(x)
    return torch.tanh(y + m.u(h)), y, x * 2


def only_result_ahead(m, x, h):
    return m.u(h), m.w(x)


def two_products(m, x, h):
    return torch.tanh(m.w(torch.relu(m.u(x))) + h)


def product_behind_a_cut(m, x, h):
    y = m.w(x)
    return torch.tanh(y + m.u(h)) + m.u(torch.relu(y)) * h


def hooked(m, x, h):
    y = m.w(x)
    if y.requires_grad:
        y.register_hook(lambda g: 3 * g)
    return torch.tanh(y + m.u(h))


def normed(m, x, h):
    return torch.tanh(m.norm(m.w(x)) + m.u(h))


def indices(m, x, h):
    best = m.w(x).argmax()
    return torch.tanh(m.u(h)) * m.u.weight[best], best


HAND_MADE = [
    plain, nothing_between, detached_result, detached_operand, detached_once, without_gradients,
    half_without_gradients, reversed_gradient, doubled_weight, weight_in_both, operand_in_both, common_source,
    result_ahead, only_result_ahead, two_products, product_behind_a_cut, hooked, normed, indices,
]  # fmt: skip


@pytest.mark.parametrize("body", HAND_MADE, ids=lambda body: body.__name__)
def test_hand_made(body):
    module = Weights()
    ahead, _ = assert_parts_equal(lambda x, h: body(module, x, h), vectors(2), (False, True))
    assert num_products(ahead) >= 1


def test_all_products_of_an_input_are_ahead():
    module = Weights()
    ahead, main = assert_parts_equal(lambda x, h: two_products(module, x, h), vectors(2), (False, True))
    assert (num_products(ahead), num_products(main)) == (2, 0)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_of_torch(kind):
    """The lookup and the product with the input are ahead, as one value; the input is no row of the rest."""
    table, cell = nn.Embedding(9, 4), kind(4, 4)

    def step(token, h, c):
        return cell(table(token), (h, c) if kind is nn.LSTMCell else h + c)

    examples = [(torch.randint(9, ()), torch.randn(4), torch.randn(4)) for _ in range(6)]
    ahead, main = assert_parts_equal(step, examples, (False, True, True))
    assert (num_products(ahead), num_products(main)) == (1, 1)
    assert len(ahead.outputs) == 1
    assert len(main.rows) == 3
    assert table.weight is ahead.enclosed[0]


def test_sparse_lookup():
    table, module = nn.Embedding(9, 4, sparse=True), Weights()
    examples = [(torch.randint(9, ()), torch.randn(4)) for _ in range(6)]
    ahead, _ = assert_parts_equal(lambda i, h: torch.tanh(module.w(table(i)) + h), examples, (False, True))
    assert ahead.sparse == {0}


def test_explicit_shared_inputs():
    w, u, b = (nn.Parameter(torch.randn(shape)) for shape in ((4, 4), (4, 4), (4,)))
    held = nn.Parameter(torch.randn(4, 4))

    def body(x, h, w, u, b):
        return torch.tanh(w @ x + u @ (held @ h) + b * x)

    assert_parts_equal(body, vectors(2), (False, True), (w, u, b))


def test_gates_are_cut_as_one_value():
    gates, module = nn.Linear(4, 12), Weights()

    def body(x, h):
        a, b, c = gates(x).chunk(3)
        return torch.tanh(a + module.u(h)) * b.sigmoid() + (c + h).sin()

    ahead, _ = assert_parts_equal(body, vectors(2), (False, True))
    assert [spec.shape for spec in ahead.outputs] == [(12,)]


def test_one_gate_of_many_is_cut_alone():
    gates = nn.Linear(4, 12)
    ahead, _ = assert_parts_equal(lambda x, h: torch.tanh(gates(x)[:4] + h), vectors(2), (False, True))
    assert [spec.shape for spec in ahead.outputs] == [(4,)]


def test_no_cut_behind_a_broadcast():
    module = Weights()

    def body(x, h):
        wide = module.w(x).unsqueeze(0).expand(4, 4) * torch.arange(4.0).unsqueeze(1)
        return (wide * h).sum(0)

    ahead, main = assert_parts_equal(body, vectors(2), (False, True))
    assert [spec.shape for spec in ahead.outputs] == [(1, 4)]
    assert len(main.rows) == 2


def test_many_ways_back():
    """As many as there are subsets of 40 steps; each value is looked at once."""
    module = Weights()

    def body(x, h):
        wide = module.w(x).unsqueeze(0).expand(4, 4)
        for _ in range(40):
            wide = wide + wide.sin()
        return (wide * h).sum(0)

    ahead, _ = assert_parts_equal(body, vectors(2), (False, True))
    assert [spec.shape for spec in ahead.outputs] == [(1, 4)]


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x, h: torch.tanh(m.w(x + h)),  # the product needs the state
        lambda m, x, h: torch.tanh(m.u(h)) + x.sigmoid() * m.b,  # nothing but elementwise ops
        lambda m, x, h: torch.tanh(nn.functional.dropout(m.w(x), 0.5) + m.u(h)),
        lambda m, x, h: m.u(h).mul_(m.w(x)),  # writes in place
    ],
)
def test_nothing_to_hoist(body):
    module = Weights()
    cell = compiled(lambda x, h: body(module, x, h), vectors(2))
    assert cell.hoisted((False, True)) is None


def test_all_operands_recurrent():
    module = Weights()
    assert compiled(lambda x, h: plain(module, x, h), vectors(2)).hoisted((True, True)) is None


def test_a_matrix_for_every_node_is_not_kept():
    """Ahead, all of them would be in memory at once."""
    wide = nn.Linear(4, 4 * 80)
    cell = compiled(lambda x, h: wide(x).view(80, 4) @ h, vectors(2))
    assert cell.hoisted((False, True)) is not None  # 4 times the result
    cell = compiled(lambda x, h: (wide(x).view(80, 4) @ h)[:4], vectors(2))
    assert cell.hoisted((False, True)) is None


def test_made_once_per_mask():
    module = Weights()
    cell = compiled(lambda x, h: plain(module, x, h), vectors(2))
    assert cell.hoisted((False, True)) is cell.hoisted((False, True))
    assert cell.hoisted((False, True)) is not cell.hoisted((True, False))


def test_surroundings_are_those_of_the_first_capture():
    """Grad mode and autocast of the place where the cell was called, not of the place where it is hoisted."""
    module = Weights().float()
    examples = [tuple(x.float() for x in example) for example in vectors(2)]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cell = compiled(lambda x, h: plain(module, x, h), examples)
    both = cell.hoisted((False, True))
    assert both.ahead.kernel.outputs[0].dtype == torch.bfloat16
    assert both.ahead.kernel.body.tangents == ()
    cell = compiled(lambda x, h: plain(module, x, h), examples)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        both = cell.hoisted((False, True))
        assert torch.is_autocast_enabled("cpu")
    assert both.ahead.kernel.outputs[0].dtype == torch.float32
    assert len(both.ahead.kernel.body.tangents) == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_body(case: Case):
    """Whatever can be hoisted of any body, with any one operand recurrent, is right."""
    torch.manual_seed(3)
    function = case.make()
    examples = [case.draw() for _ in range(6)]
    for place in range(len(examples[0])):
        recurrent = tuple(i == place for i in range(len(examples[0])))
        if compiled(function, examples).hoisted(recurrent) is not None:
            assert_parts_equal(function, examples, recurrent)


@settings(max_examples=60)
@given(programs(), st.integers(0, 1000), st.booleans())
def test_random_bodies(program, seed, first):
    generator = torch.Generator().manual_seed(seed)
    draw = {"dtype": torch.float64, "generator": generator}
    body = function_of(program, draw)
    examples = [(torch.randn(SIZE, **draw), torch.randn(SIZE, **draw)) for _ in range(4)]
    recurrent = (first, not first)
    if compiled(body, examples).hoisted(recurrent) is not None:
        assert_parts_equal(body, examples, recurrent)
