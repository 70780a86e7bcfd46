"""Cells batched inside on planned memory: right, with just the calls and copies of the plan, and safe to share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import bodies
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_by_one import assert_equal, can_train, compiled
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import edbatch
from edbatch.bench.kernels.cells import OneBatch
from edbatch.bench.kernels.cells_of_paper import CELLS
from edbatch.bench.kernels.counting import CountingMode
from edbatch.cells.body.split import inference, split
from edbatch.cells.compiled import compile_cell
from edbatch.cells.torch_ops import cell as torch_cell
from edbatch.cells.torch_ops.batch_calls import Stack
from edbatch.cells.torch_ops.cell import TorchCell
from edbatch.cells.torch_ops.memory_plan import plan_memory
from edbatch.cells.torch_ops.program_graph import SharedPart
from edbatch.pq.cell_layout import verify
from edbatch.spec import Spec
from edbatch.switches import ALL_ON, Switches

DIM, ROWS = 4, 3
COUNTED = Switches(compile=False, move_rows=False)  # torch gathers, so gathers are counted
FORMS = {
    "planned": ALL_ON,
    "unplanned": Switches(plan_memory=False),
    "one by one": Switches(batch_inside=False),
}


def paper_cell(name, dtype=torch.float64):
    module = CELLS[name].make(DIM).to(dtype)
    specs = [Spec(shape, dtype, torch.device("cpu")) for shape in CELLS[name].shapes(DIM)]
    return module, compile_cell(module, specs, name=name)


def plans_of(cell):
    """The plans of inference, and of forward and backward, with their programs."""
    body = cell.body
    masks = [tuple(v is not None for v in values) for values in (body.row_grads, body.shared_grads, body.tangent_of)]
    found = []
    for parts in (inference(body), split(body, *masks, cell.sparse)):
        programs = [p for p in (parts.forward, parts.backward) if p is not None]
        apart = {} if parts.finish is None else parts.finish.inputs
        saved = frozenset(i for i, place in apart.items() if place.group == "saved")
        found += zip(programs, plan_memory(parts.body, programs, saved) or [], strict=False)
    return found


@contextmanager
def torch_ops_as(form):
    """Cells as torch ops in one of the forms."""
    made, switches = TorchCell.__init__, FORMS[form]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchCell, "__init__", lambda self, body, sparse, _=ALL_ON: made(self, body, sparse, switches))
        yield


every_form = pytest.mark.parametrize("form", FORMS)


@every_form
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.usefixtures("double")
def test_cells_of_the_paper_are_like_one_by_one(name, form):
    module = CELLS[name].make(DIM)
    examples = [tuple(torch.randn(shape) for shape in CELLS[name].shapes(DIM)) for _ in range(6)]
    with torch_ops_as(form):
        cell, _ = assert_equal(module, examples)
    has_work_space = hasattr(cell.torch_ops.infer.forward, "emitted")
    assert has_work_space == (form != "one by one" and name != "MV")


@pytest.mark.parametrize("name", [name for name in CELLS if name != "MV"])
def test_a_launch_has_the_calls_and_copies_of_its_plan(name):
    module, cell = paper_cell(name, torch.float32)
    (_, plan), (_, forward), (_, backward) = plans_of(cell)
    rows = [torch.randn(ROWS, *shape) for shape in CELLS[name].shapes(DIM)]

    def calls(plan):
        """Batches; a product of several operands is so many calls, unless they lie side by side; copies."""
        products = [
            len(plan.layout.graph.ops[members[0]].runs) - (len(plan.layout.graph.ops[members[0]].operands) % 2 == 1
            and isinstance(plan.layout.graph.ops[members[0]].operands[0], tuple))
            for members in plan.layout.batches if plan.are_products[members[0]]
        ]  # fmt: skip
        return len(plan.layout.batches) - len(products), sum(products), plan.layout.num_copies

    batch = OneBatch(module, rows, COUNTED, trains=False)
    with CountingMode() as mode:
        batch()
    others, products, copies = calls(plan)
    placed = {slot for slot, _ in plan.placed_rows}
    first = batch._execution.operands.first[0]  # of rows that are read in place
    gathered = [slot for slot in range(len(rows)) if slot in placed or first[slot] < 0]
    gathers = len(gathered)
    assert mode.counts.copies == copies + gathers
    assert others + copies + gathers < mode.counts.launches <= others + products + copies + gathers
    assert mode.counts.bytes_copied == sum(rows[slot].nbytes for slot in gathered) + plan.layout.bytes_copied * ROWS
    alone = OneBatch(module, rows, Switches(compile=False, batch_inside=False), trains=True).counts()
    assert OneBatch(module, rows, COUNTED, trains=True).counts().launches < alone.launches
    assert forward.saved == backward.saved != ()


@pytest.mark.parametrize("name", CELLS)
def test_plans_are_verified_and_never_longer_than_one_by_one(name):
    _, cell = paper_cell(name)
    for _, plan in plans_of(cell):
        layout = plan.layout
        assert verify(layout.graph, layout.batches, layout.order) == layout
        assert sorted(i for members in layout.batches for i in members) == list(range(len(layout.graph.ops)))
        assert layout.num_copies + len(layout.batches) <= len(layout.graph.ops)
        assert len(set(plan.saved)) == len(plan.saved)
        assert sum(block.length for block in plan.blocks) == plan.saved_width


def test_a_plan_that_cannot_be_made_is_not_missed(monkeypatch, caplog):
    """Whatever mistake we made in it."""
    monkeypatch.setattr(torch_cell, "STRICT", False)
    monkeypatch.setattr(torch_cell, "plan_memory", lambda *args, **kwargs: 1 / 0)
    cell = edbatch.cell(CELLS["GRU"].make(DIM))
    edbatch.check(edbatch.batch(cell, compile=False), *torch.randn(2, ROWS, DIM))
    assert "no memory plan was made of a cell: division by zero. Its ops run one by one" in caplog.text


def test_what_cannot_be_batched_has_no_plan():
    for function, shape in ((torch.tanh, (3,)), (lambda x: x.softmax(0).tanh(), (3,)), (nn.Linear(3, 2), (3,))):
        assert plans_of(compiled(function, [bodies.reals(shape)()])) == []


@pytest.mark.usefixtures("double")
def test_values_are_overwritten_only_after_their_last_use():
    def function(x, y):
        a, b = x.exp(), y.exp()
        c, d = a.sin(), b.sin()
        e, f = c.tanh(), d.tanh()
        return e * a, f * b, e.view(2, 2).t() + 1, c[1:] * 2

    assert_equal(function, [(torch.randn(4), torch.randn(4)) for _ in range(4)])


@pytest.mark.usefixtures("double")
def test_gates_that_are_cut_from_one_product_are_put_side_by_side():
    lstm = nn.LSTMCell(3, 5)
    cell, _ = assert_equal(lambda x, h, c: lstm(x, (h, c)), [(torch.randn(3), *torch.randn(2, 5)) for _ in range(4)])
    infer = cell.torch_ops.sources[1]
    assert infer.count("sigmoid(") == 1  # i, f and o, although g lies between them in torch's weights


@pytest.mark.usefixtures("double")
def test_only_some_gradients():
    module = CELLS["LSTM"].make(DIM)
    examples = [tuple(torch.randn(DIM) for _ in range(3)) for _ in range(5)]
    cell = compiled(module, examples)
    shared = can_train(cell)
    for rows in ((True, False, False), (False, True, True), (False, False, False)):
        for outs in ((True, False), (False, True)):
            assert_equal(module, examples, masks=(rows, shared, outs))
    assert_equal(module, examples, masks=((True, True, True), (False,) * len(shared), (True, True)))


def test_stacks_of_neighbouring_parts_are_views():
    weight = torch.randn(6, 8)
    columns = Stack(tuple((SharedPart(0, 2 * k, 2, 0, 6),) for k in range(4)))
    assert columns.make([weight]).data_ptr() == weight.data_ptr()
    torch.testing.assert_close(columns.make([weight])[3], weight[:, 6:])
    lines = Stack(tuple((SharedPart(0, 0, 8, 2 * k, 2),) for k in range(3)))
    assert lines.make([weight]).data_ptr() == weight.data_ptr()
    torch.testing.assert_close(lines.make([weight])[1], weight[2:4])
    turned = Stack(tuple((SharedPart(0, 2 * k, 2, 0, 6),) for k in (1, 0, 2)))
    torch.testing.assert_close(turned.make([weight])[0], weight[:, 2:4])
    torch.testing.assert_close(turned.make([weight.t().contiguous().t()])[0], weight[:, 2:4])
    biases = Stack(((SharedPart(0, 0, 4), SharedPart(1, 2, 4)), (SharedPart(0, 4, 4), SharedPart(1, 0, 4))))
    a, b = torch.randn(8), torch.randn(6)
    torch.testing.assert_close(biases.make([a, b]), torch.stack([a[:4] + b[2:], a[4:] + b[:4]]).unsqueeze(1))


def chain(cell, length, x, h):
    for _ in range(length):
        h = cell(x, h)
    return h


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_may_change_between_calls_and_batches_have_many_sizes(dtype):
    cell = edbatch.cell(CELLS["GRU"].make(DIM).to(dtype))
    lengths, (x, h) = [1, 2, 3, 5, 8, 8], torch.randn(2, 6, DIM, dtype=dtype)
    batched = edbatch.batch(lambda n, x, h: chain(cell, n, x, h), compile=False)
    for _ in range(3):
        edbatch.check(batched, lengths, x, h)
        with torch.no_grad():
            for weight in cell.parameters():
                weight.mul_(0.9)


def test_a_work_space_is_lent_once_and_comes_back():
    _, cell = paper_cell("LSTM")
    work = cell.torch_ops.infer.forward.emitted.work
    first, second = work.lend(4), work.lend(4)
    assert first.space is not second.space
    kept = first.space
    assert kept(3)[0] is kept(3)[0]
    del first
    assert work.lend(2).space is kept
    assert work.lend(100).space is not kept  # too small
    with FakeTensorMode():
        fake = work.lend(3)
    assert type(fake.space.memory) is FakeTensor
    assert type(work.lend(3).space.memory) is torch.Tensor


def test_inference_mode_and_others_share_a_work_space():
    cell = nn.LSTMCell(DIM, DIM)
    batched = edbatch.batch(lambda x: cell(x)[0], compile=False)
    x = torch.randn(ROWS, DIM)
    with torch.inference_mode():
        expected = batched(x)
    with torch.no_grad():
        assert torch.equal(batched(x), expected)
    found = batched(x)
    found.sum().backward()
    torch.testing.assert_close(found, expected)


def test_threads_share_a_cell():
    cell = edbatch.cell(CELLS["LSTM"].make(DIM).double())

    def step(length, x, h, c):
        for _ in range(length):
            h, c = cell(x, h, c)
        return h

    batched = edbatch.batch(step, compile=False)
    columns = [[1 + i % 4 for i in range(8)], *torch.randn(3, 8, DIM, dtype=torch.float64)]
    expected = batched.one_by_one(*columns)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: batched(*columns), range(40)):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_frozen_weights_are_stacked_once():
    model = nn.Sequential(nn.GRUCell(DIM, DIM))
    batched = edbatch.batch(model, compile=False)
    x = torch.randn(3, DIM)
    with torch.no_grad():
        expected = batched(x)
        with edbatch.frozen(batched):
            torch.testing.assert_close(batched(x), expected)
            torch.testing.assert_close(batched(x), expected)


UNARY = [torch.sigmoid, torch.tanh, torch.sin, lambda x: x * x, lambda x: 1 - x, lambda x: x * 0.5]
BINARY = [torch.add, torch.sub, torch.mul, torch.maximum]


@st.composite
def programs(draw):
    """Steps on several values at once, so that much can be batched: unary and binary ops, products, cuts and joins."""
    steps, count = [], 3
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["unary", "binary", "product", "biased", "chunk", "cat product"]))
        width = draw(st.integers(1, 4))
        picks = [tuple(draw(st.integers(0, count - 1)) for _ in range(2)) for _ in range(width)]
        steps.append((kind, draw(st.integers(0, 5)), picks))
        count += 2 if kind == "chunk" else 1 if kind == "cat product" else width
    return steps, draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4))


def function_of(program, generator):
    steps, outputs = program

    def weight(*shape):
        return nn.Parameter(torch.randn(*shape, dtype=torch.float64, generator=generator) * 0.5)

    weights = [
        ([weight(DIM, DIM) for _ in picks], [weight(DIM) for _ in picks], weight(2 * DIM, DIM), weight(DIM, 2 * DIM))
        for _, _, picks in steps
    ]

    def body(*rows):
        values = list(rows)
        for (kind, place, picks), (ws, bs, wide, narrow) in zip(steps, weights, strict=True):
            if kind == "unary":
                values += [UNARY[place](values[a]) for a, _ in picks]
            elif kind == "binary":
                values += [BINARY[place % len(BINARY)](values[a], values[b]) for a, b in picks]
            elif kind == "product":
                values += [w @ values[a] + values[b] for w, (a, b) in zip(ws, picks, strict=True)]
            elif kind == "biased":
                values += [nn.functional.linear(values[a], w, b) for w, b, (a, _) in zip(ws, bs, picks, strict=True)]
            elif kind == "chunk":
                values += list(torch.tanh(wide @ values[picks[0][0]]).chunk(2))
            else:
                values.append(narrow @ torch.cat([values[i] for i in picks[0]]))
        return [values[i] for i in outputs]

    return body


@every_form
@settings(max_examples=40, deadline=None)
@given(program=programs(), seed=st.integers(0, 1000))
def test_random_bodies(form, program, seed):
    generator = torch.Generator().manual_seed(seed)
    body = function_of(program, generator)
    examples = [tuple(torch.randn(DIM, dtype=torch.float64, generator=generator) for _ in range(3)) for _ in range(4)]
    with torch_ops_as(form):
        assert_equal(body, examples, tolerance=1e-8)


def test_switches_of_the_form_are_kept_apart():
    cell = edbatch.cell(CELLS["GRU"].make(DIM))
    batched = edbatch.batch(cell, compile=False)
    x, h = torch.randn(2, 5, DIM)
    expected = batched(x, h)
    for switches in FORMS.values():
        batched.pipeline.switches = replace(switches, compile=False)
        torch.testing.assert_close(batched(x, h), expected)
    (kernel,) = batched.pipeline.kernel_of.values()
    assert len(kernel._others) == 2
