"""Each switch off: results and gradients are those of one by one, and what it stands for really does not happen."""

from dataclasses import fields, replace

import pytest
import torch
from torch import nn

import edbatch
import zoo
from edbatch.batched import Batched
from edbatch.layout.layout import Slot
from edbatch.runtime.operands import Operands
from edbatch.switches import ALL_ON, Switches
from test_equal import assert_equal, gradients, tensors

SWITCHES = [
    "find_cells", "hoist", "stack_weights", "batch_inside", "plan_memory", "move_rows", "order_batches",
    "may_run_alone", "defer_gradients",
]  # fmt: skip
CASES = {case.name: case for case in zoo.CASES}
NAMES = ["binary TreeLSTM", "lattice", "tagger", "attention"]


def both(name, switch, **options):
    """A model batched with everything on and with one thing off, and a mini-batch for it."""
    model, columns = zoo.make(CASES[name])
    on = edbatch.batch(model, stack=CASES[name].stack, **options)
    off = Batched(model, edbatch.policies.from_name("learned"), on.stack, replace(on.switches, **{switch: False}))
    return on, off, columns


def test_these_are_all_switches():
    """Those that users choose are tested elsewhere."""
    assert [field.name for field in fields(Switches)] == ["compile", "exact_math", *SWITCHES]
    assert all(getattr(ALL_ON, switch) for switch in SWITCHES)
    assert edbatch.batch(nn.Tanh(), compile=False, exact_math=True).switches == Switches(False, True)


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("name", NAMES)
def test_results_and_gradients_are_those_of_one_by_one(name, switch, compilation):
    _, off, columns = both(name, switch)
    ours, theirs = tensors(off(*columns)), tensors(off.one_by_one(*columns))
    assert_equal(ours, theirs, 1e-9)
    assert_equal(gradients(ours, off.fn), gradients(theirs, off.fn), 1e-9)
    with torch.no_grad():
        assert_equal(tensors(off(*columns)), theirs, 1e-9)


def test_all_off_at_once(compilation):
    for name in NAMES:
        model, columns = zoo.make(CASES[name])
        on = edbatch.batch(model, stack=CASES[name].stack)
        switches = replace(on.switches, **dict.fromkeys(SWITCHES, False))
        edbatch.check(Batched(model, on.policy, on.stack, switches, key=lambda *x: id(x[0])), *columns)


def test_without_own_loops_torch_moves_rows(monkeypatch):
    """With them, torch needs only the numbers that examples bring; without, the rows of every gather as a tensor."""
    on, off, columns = both("lattice", "move_rows")
    read, index_of = [], Operands.index_of

    def spy(self, batch, slot):
        read.append(self.types[self.batch_types[batch]].slots[slot])
        return index_of(self, batch, slot)

    monkeypatch.setattr(Operands, "index_of", spy)
    gradients(tensors(on(*columns)), on.fn)
    assert set(read) == {Slot.DATA}
    read.clear()
    gradients(tensors(off(*columns)), off.fn)
    assert read.count(Slot.ONE) > off.stats.gathers > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_rows_of_every_dtype_and_width_are_moved(dtype, width):
    """Rows are copied four or eight bytes at a time; those that are no whole number of these are left to torch."""
    torch.manual_seed(0)
    weight = torch.randn(width, dtype=dtype, requires_grad=True)
    both = edbatch.cell(lambda a, b: a * b + weight)
    batched = edbatch.batch(lambda x, n: both(x, x) if n % 2 else both(both(x, x), x))
    columns = [torch.randn(width, dtype=dtype) for _ in range(9)], list(range(9))
    assert_equal(tensors(batched(*columns)), tensors(batched.one_by_one(*columns)), 1e-2)


@pytest.mark.parametrize("name", ["lattice", "tagger"])
def test_without_hoisting_nothing_runs_ahead(name):
    on, off, columns = both(name, "hoist")
    ahead = []
    for batched in (on, off):
        batched(*columns)
        ahead.append([t.name for t in batched.stats.types if t.name.endswith(" ahead")])
        assert edbatch.record(batched, *columns).type_names == batched.stats.graph.type_names
    assert ahead[0]
    assert not ahead[1]
    assert off.stats.num_types == on.stats.num_types - len(ahead[0])


def products_of(batched, columns):
    """Of the programs of all fused cells: how many products run without torch."""
    sum(r.sum() for r in tensors(batched(*columns))).backward()
    forms = [form for kernel in batched.pipeline.kernel_of.values() for form in kernel.fused.values()]
    return sum(len(program.products) for form in forms for program in form.fused)


class Gates(nn.Module):
    """Two products of one operand, whose gradients are added up."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.one(x).sigmoid() * self.other(x).tanh()


def gated(compile, stack_weights):
    torch.manual_seed(0)
    cell = edbatch.cell(Gates().double())
    switches = Switches(compile=compile, stack_weights=stack_weights)
    return Batched(lambda x: cell(cell(x)), edbatch.policies.Depth(), True, switches), [
        torch.randn(5, 4, dtype=torch.float64)
    ]


def test_without_stacking_every_weight_has_its_own_products(compiled):
    stacked, unstacked = (products_of(*gated(True, is_on)) for is_on in (True, False))
    assert (stacked, unstacked) == (2, 4)  # forward and backward


@pytest.mark.parametrize("compile", [True, False])
def test_without_stacking_every_weight_has_its_own_gradient(compile, monkeypatch):
    """Of which the products at the end are counted."""
    monkeypatch.setenv("EDBATCH_COMPILE", "1")
    counts = []
    for is_on in (True, False):
        batched, columns = gated(compile, is_on)
        batched(*columns).sum().backward()
        (kernel,) = batched.pipeline.kernel_of.values()
        (form,) = kernel.fused.values() if compile else [kernel.torch_ops] if is_on else kernel._others.values()
        splits = [programs.split for programs in form.trainings.values()]
        names = [str(split.body.op(i).target) for split in splits for i in split.finish.ops]
        counts.append(sum("sum_products" in name for name in names))
    assert counts == [1, 2]


@pytest.mark.parametrize("name", ["binary TreeLSTM", "tagger"])
def test_without_order_batches_keep_that_of_the_schedule_and_gather_more(name):
    on, off, columns = both(name, "order_batches")
    for batched in (on, off):
        batched(*columns)
    assert off.stats.num_batches == on.stats.num_batches
    assert off.stats.views < on.stats.views
    schedule = off.stats._schedule
    batches = [schedule.order[a:b] for a, b in zip(schedule.starts, schedule.starts[1:], strict=False)]
    assert all((batch[1:] > batch[:-1]).all() for batch in batches)


@pytest.mark.parametrize("is_deferred", [True, False])
def test_without_deferring_shared_tensors_have_gradients_after_each_batch(is_deferred, compilation, monkeypatch):
    from edbatch.runtime import compilation as stage

    calls, compile_one = [], stage._compile

    def counting(*args):
        form, programs = compile_one(*args)
        finish = programs.finish
        return form, replace(programs, finish=lambda N, *more: calls.append(N) or finish(N, *more))

    monkeypatch.setattr(stage, "_compile", counting)
    on, off, columns = both("tagger", "defer_gradients")
    batched = on if is_deferred else off
    loss = sum(r.sum() for r in tensors(batched(*columns)))
    loss.backward()
    kernel_of = batched.pipeline.kernel_of
    types = [t for t in batched.stats.types if kernel_of[t.name].enclosed]
    assert sum(t.num_batches for t in types) > 2 * len(types)
    assert len(calls) == sum(1 if is_deferred else t.num_batches for t in types)
    assert sum(calls) == sum(t.num_nodes for t in types)


def test_a_second_backward_adds_up_anew():
    _, off, columns = both("tagger", "defer_gradients")
    loss = sum(r.sum() for r in tensors(off(*columns)))
    first, second = (torch.autograd.grad(loss, list(off.fn.parameters()), retain_graph=True) for _ in range(2))
    assert_equal(second, first, 1e-12)


def test_cells_that_run_one_by_one_need_not_wait_either():
    weight = nn.Parameter(torch.ones(3))
    cell = edbatch.cell(lambda x: x * weight if bool(x.sum() > 0) else weight - x)
    batched = Batched(
        lambda x, n: cell(cell(x)) if n else cell(x), edbatch.policies.Depth(), True, Switches(defer_gradients=False)
    )
    edbatch.check(batched, torch.randn(4, 3), [0, 1, 1, 0])
    assert any(t.reason for t in batched.stats.types)


@pytest.mark.parametrize("sparse", [False, True])
def test_tables_have_the_same_gradient_without_deferring(sparse):
    table = nn.Embedding(5, 3, sparse=sparse)

    def walk(word, n):
        total = table(word)
        for _ in range(n):
            total = torch.tanh(total + table((total.sum() > 0).long()))
        return total

    batched = Batched(walk, edbatch.policies.Depth(), True, Switches(compile=False, defer_gradients=False))
    batched([1, 2, 4], [0, 2, 3]).sum().backward()
    ours, table.weight.grad = table.weight.grad, None
    batched.one_by_one([1, 2, 4], [0, 2, 3]).sum().backward()
    assert ours.is_sparse == sparse
    torch.testing.assert_close(ours.to_dense(), table.weight.grad.to_dense())
