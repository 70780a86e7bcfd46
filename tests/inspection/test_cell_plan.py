"""Plans of cells: what is an op and what only a view, how few copies remain, and that people can read it."""

from __future__ import annotations

import bodies
import pytest
import torch
import torch.nn.functional as F
from bodies import reals
from one_by_one import compiled
from torch import nn

import edbatch
from edbatch.bench.kernels.cells_of_paper import CELLS
from edbatch.cells.body.body import Val
from edbatch.cells.compiled import CompiledCell, compile_cell
from edbatch.errors import BatchError
from edbatch.inspection.cell_plan import plan_of
from edbatch.models.tree_lstm import BinaryTreeLSTM
from edbatch.pq.cell_layout import Parameter, Reading, verify
from edbatch.spec import Spec

DIM = 4
# Copies with planning that are known to be reachable (ED-Batch), inputs in tensors of their own.
REACHABLE = {
    "LSTM": 1, "GRU": 2, "MV": 2, "TreeLSTM-internal": 3, "TreeLSTM-leaf": 1, "TreeGRU-internal": 2, "TreeGRU-leaf": 2,
}  # fmt: skip


def paper_cell(name: str, dim: int = DIM) -> CompiledCell:
    specs = [Spec(shape, torch.float32, torch.device("cpu")) for shape in CELLS[name].shapes(dim)]
    return compile_cell(CELLS[name].make(dim), specs, name=name)


def cell_of(function, *shapes) -> CompiledCell:
    return compiled(function, [reals(*shapes)()])


@pytest.mark.parametrize("name", CELLS)
def test_copies_of_the_papers_cells(name):
    plan = plan_of(paper_cell(name))
    assert plan.planned.num_copies <= REACHABLE[name]
    assert plan.planned.num_copies <= plan.without.num_copies
    assert plan.gathered.num_copies == 0
    assert plan.num_batches < plan.num_ops
    inputs = {value for run in plan.planned.copies for value in run} & plan.cell.inputs
    assert bool(inputs) == bool(plan.planned.copies)  # what remains is because of inputs


@pytest.mark.parametrize("name", CELLS)
def test_layouts_are_verified(name):
    plan = plan_of(paper_cell(name))
    for layout in (plan.without, plan.planned, plan.gathered):
        layout.graph.check()
        assert verify(layout.graph, layout.batches, layout.order) == layout


def values_of(cell: CompiledCell) -> dict[str, torch.Tensor]:
    """The values of a body on random inputs, one example, by their names in the plan; cut ones piece by piece."""
    body = cell.body
    values = {i: spec.empty().normal_() for i, spec in enumerate((*body.rows, *body.shared))}
    for i, op in enumerate(body.ops):
        if all(v.index in values for v in op.operands):
            made = op.replace(lambda v: values[v.index])
            values[body.num_inputs + i] = made.target(*made.args, **dict(made.kwargs))
    found = {}
    for name in plan_of(cell).cell.value_names:
        index, _, part = name.removeprefix("%").partition("[")
        if index.isdigit():
            flat = values[int(index)].flatten()
            begin, end = map(int, part.removesuffix("]").split(":")) if part else (0, len(flat))
            found[name] = flat[begin:end]
    return found | {f"value {i}": value for i, value in values.items()}


MORE = {
    "chunked": (BinaryTreeLSTM(DIM), 4 * ((DIM,),)),
    "LSTMCell": (lambda x, h, c, cell=nn.LSTMCell(DIM, DIM): cell(x, (h, c)), 3 * ((DIM,),)),  # noqa: B008
    "cut and joined": (lambda x: torch.cat((x.tanh()[:1], x.exp())).sin(), ((3,),)),
    "rows of a matrix": (lambda x: x.tanh()[1].sin() + x.tanh()[0].cos(), ((2, 3),)),
}


@pytest.mark.parametrize("name", [*CELLS, *MORE])
def test_runs_are_the_memory_that_ops_read(name):
    cell = paper_cell(name) if name in CELLS else cell_of(MORE[name][0], *MORE[name][1])
    values, plan, body = values_of(cell), plan_of(cell), cell.body
    names = plan.cell.value_names
    for op in plan.planned.graph.ops:
        made = body.op(Val(int(names[op.results[0]].removeprefix("%").partition("[")[0])))
        assert made is not None
        for operand, value in zip(op.operands, made.operands, strict=True):
            if isinstance(operand, Parameter):
                assert not body.is_row[value.index]
            else:
                memory = torch.cat([values[names[v]] for v in operand])
                torch.testing.assert_close(memory, values[f"value {value.index}"].flatten())


@pytest.mark.parametrize("case", bodies.CASES, ids=lambda case: case.name)
def test_every_body_has_a_plan(case):
    plan = plan_of(compiled(case.make(), [case.draw()]))
    assert plan.num_batches <= plan.num_ops
    assert plan.planned.bytes_copied <= plan.without.bytes_copied
    assert plan.name in str(plan)


def batch_sizes(cell: CompiledCell) -> list[int]:
    return sorted(map(len, plan_of(cell).planned.batches))


def test_pieces_of_a_chunked_product_are_batched():
    plan = plan_of(cell_of(BinaryTreeLSTM(DIM), *MORE["chunked"][1]))
    sigmoids = [members for members in plan.planned.batches if "sigmoid" in plan.cell.op_names[members[0]]]
    assert list(map(len, sigmoids)) == [4]
    assert plan.gathered.num_copies == 0


def test_products_of_one_operand_are_one_wide_product():
    first, second, third = (nn.Linear(DIM, DIM) for _ in range(3))
    cell = cell_of(lambda x, y: first(x).tanh() + second(x).tanh() + third(y).tanh(), (DIM,), (DIM,))
    products = [m for m in plan_of(cell).planned.batches if "addmm" in plan_of(cell).cell.op_names[m[0]]]
    assert sorted(map(len, products)) == [1, 2]
    wide = next(
        i for i, members in enumerate(plan_of(cell).planned.batches) if members in products and len(members) == 2
    )
    assert [a.kind for a in plan_of(cell).planned.accesses if a.batch == wide] == [
        Reading.VIEW, Reading.STACKED, Reading.BROADCAST, Reading.STACKED,
    ]  # fmt: skip


def test_other_operands_are_another_signature():
    assert batch_sizes(cell_of(lambda x, y: x.sum(0).sin() + y.sin(), (3,), ())) == [1, 1, 2]
    assert batch_sizes(cell_of(lambda x, y: (x * 2.0, y * 3.0), (3,), (3,))) == [1, 1]
    assert batch_sizes(cell_of(lambda x, y: (x.t().exp(), y.exp()), (3, 3), (3, 3))) == [1, 1]
    assert batch_sizes(cell_of(lambda x, y: (x[1].exp(), y[1].exp()), (3,), (2,))) == [1, 1]


def test_random_draws_are_not_batched():
    plan = plan_of(cell_of(lambda x, y: F.dropout(x) + F.dropout(y), (3,), (3,)))
    draws = {i for i, text in enumerate(plan.cell.op_names) if "bernoulli" in text}
    assert len(draws) == 2
    assert all((i,) in plan.planned.batches for i in draws)


def test_outputs_that_no_op_makes_are_written():
    cell = cell_of(lambda x, y: (torch.cat((x, y)), x, y.tanh()), (3,), (2,))
    written = [text for text in plan_of(cell).cell.op_names if text.startswith("out")]
    assert written == ["out0 = (%0 %1)", "out1 = %0"]
    assert plan_of(cell).gathered.num_copies == 0


def test_cells_without_work_and_parameters_alone():
    assert plan_of(cell_of(lambda x: x, (3,))).num_ops == 1
    weight = nn.Parameter(torch.ones(2))
    assert plan_of(cell_of(lambda x: (weight.exp(), x.exp()), (2,))).num_ops == 1


def test_plan_is_for_people():
    cell = paper_cell("TreeLSTM-internal")
    text = str(plan_of(cell))
    assert text.startswith("TreeLSTM-internal: 17 ops in 9 batches")
    for part in (
        "%18 = addmm.default(shared %5, (%0 %2), shared %17) : f32[1,4]", "%20 = sigmoid.default(%18) : f32[4]",
        "addmm.default × 3 → ", "one product with stacked weights: stacked, copy of %0, %2, stacked",
        "values in memory:", "without planning: 7, 352 bytes: ", "with planning: 2, 80 bytes: (%0, %2)",
        "with inputs gathered side by side: 0, 0 bytes", "def infer(B, rows, pro, outs, saved):",
    ):  # fmt: skip
        assert part in text
    assert repr(plan_of(cell)) == "CellPlan(TreeLSTM-internal: 17 ops, 9 batches, 7 → 2 → 0 copies)"


def test_plans_of_a_batched_function():
    node = edbatch.cell(CELLS["GRU"].make(DIM))
    batched = edbatch.batch(lambda x, h: node(x, node(x, h)).sum(), policy="depth")
    with pytest.raises(BatchError, match="no plans yet; call the batched function first"):
        _ = batched.cell_plans
    batched(torch.randn(3, DIM), torch.randn(3, DIM))
    plans = batched.cell_plans
    assert plans.keys() <= {node_type.name for node_type in batched.stats.types}
    assert [plan.num_batches for name, plan in plans.items() if name.startswith("node(")] == [
        1,
        9,
    ]  # what runs ahead, and the rest
