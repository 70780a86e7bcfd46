"""Plans of cells: what is an op and what only a view, how few copies remain, and that people can read it."""

from __future__ import annotations

import math

import bodies
import pytest
import torch
import torch.nn.functional as F
from bodies import reals
from one_by_one import compiled
from torch import nn

import edbatch
from edbatch.bench.kernels.cells_of_paper import CELLS
from edbatch.cells.compiled import CompiledCell, compile_cell
from edbatch.errors import BatchError
from edbatch.inspection.cell_plan import plan_of
from edbatch.models.tree_lstm import BinaryTreeLSTM
from edbatch.pq.cell_layout import Parameter, Reading, verify
from edbatch.spec import Spec
from edbatch.switches import Switches

DIM = 4
# Batches inside the cells of the paper that are known to be reachable, without a copy.
REACHABLE = {
    "LSTM": 8, "GRU": 10, "MV": 6, "TreeLSTM-internal": 10, "TreeLSTM-leaf": 6, "TreeGRU-internal": 11,
    "TreeGRU-leaf": 8,
}  # fmt: skip


def paper_cell(name: str, dim: int = DIM) -> CompiledCell:
    specs = [Spec(shape, torch.float32, torch.device("cpu")) for shape in CELLS[name].shapes(dim)]
    return compile_cell(CELLS[name].make(dim), specs, name=name)


def cell_of(function, *shapes) -> CompiledCell:
    return compiled(function, [reals(*shapes)()])


@pytest.mark.parametrize("name", CELLS)
def test_the_papers_cells_need_no_copies(name):
    plan = plan_of(paper_cell(name))
    assert plan.num_batches <= REACHABLE[name]
    assert plan.planned.num_copies == 0
    assert plan.planned.num_calls <= plan.without.num_calls
    assert name == "MV" or plan.num_batches < plan.num_ops


@pytest.mark.parametrize("name", CELLS)
def test_layouts_are_verified(name):
    plan = plan_of(paper_cell(name))
    for layout in (plan.without, plan.planned):
        layout.graph.check()
        assert verify(layout.graph, layout.batches, layout.order) == layout


def values_of(cell: CompiledCell) -> dict[int, torch.Tensor]:
    """The values of a body on random inputs, one example."""
    body = cell.body
    values = {i: spec.empty().normal_() for i, spec in enumerate((*body.rows, *body.shared))}
    for i, op in enumerate(body.ops):
        if all(v.index in values for v in op.operands):
            made = op.replace(lambda v: values[v.index])
            values[body.num_inputs + i] = made.target(*made.args, **dict(made.kwargs))
    return values


MORE = {
    "chunked": (BinaryTreeLSTM(DIM), 4 * ((DIM,),)),
    "LSTMCell": (lambda x, h, c, cell=nn.LSTMCell(DIM, DIM): cell(x, (h, c)), 3 * ((DIM,),)),  # noqa: B008
    "cut and joined": (lambda x: torch.cat((x.tanh()[:1], x.exp())).sin(), ((3,),)),
    "rows of a matrix": (lambda x: x.tanh()[1].sin() + x.tanh()[0].cos(), ((2, 3),)),
}


@pytest.mark.parametrize("name", [*CELLS, *MORE])
def test_atoms_are_the_memory_that_values_are_made_of(name):
    cell = paper_cell(name) if name in CELLS else cell_of(MORE[name][0], *MORE[name][1])
    values, plan = values_of(cell), plan_of(cell)
    atoms = [values[a.number].flatten()[a.begin : a.begin + a.length] for a in plan.source.atoms]
    assert len(plan.source.runs) > len(cell.rows)
    for index, run in plan.source.runs.items():
        torch.testing.assert_close(torch.cat([atoms[v] for v in run]), values[index].flatten())


@pytest.mark.parametrize("name", [*CELLS, *MORE])
def test_ops_of_atoms_are_the_ops_of_the_body(name):
    """Each is computed from its atoms, one by one."""
    cell = paper_cell(name) if name in CELLS else cell_of(MORE[name][0], *MORE[name][1])
    values, plan, body = values_of(cell), plan_of(cell), cell.body
    atoms = [values[a.number].flatten()[a.begin : a.begin + a.length] for a in plan.source.atoms]

    def shared(parameter):
        parts = []
        for number, begin, length, line, lines in parameter.name:
            value = values[number] if lines else values[number].flatten()
            parts.append(value[line : line + lines, begin : begin + length] if lines else value[begin : begin + length])
        return sum(parts)

    checked = 0
    for i, op in enumerate(plan.planned.graph.ops):
        given = [shared(o) if isinstance(o, Parameter) else atoms[o[0]] for o in op.operands]
        if plan.source.are_products[i]:
            total = given[0] if len(given) % 2 else 0
            pairs = given[len(given) % 2 :]
            found = total + sum(a @ w for a, w in zip(pairs[::2], pairs[1::2], strict=True))
        elif op.is_local:
            made = body.op(plan.source.numbers[i])
            operands = iter(given)
            whole = made.replace(lambda _, operands=operands: next(operands))
            found = whole.target(*whole.args, **dict(whole.kwargs))
        else:
            continue
        torch.testing.assert_close(found, atoms[op.results[0]])
        checked += 1
    assert checked


@pytest.mark.parametrize("case", bodies.CASES, ids=lambda case: case.name)
def test_every_body_has_a_plan(case):
    plan = plan_of(compiled(case.make(), [case.draw()]))
    assert plan.num_batches <= plan.num_ops
    assert plan.planned.num_calls <= plan.without.num_calls
    assert plan.name in str(plan)


def batch_sizes(cell: CompiledCell) -> list[int]:
    return sorted(map(len, plan_of(cell).planned.batches))


def sizes_of(cell: CompiledCell, name: str) -> list[int]:
    """The sizes of the batches of an op."""
    plan = plan_of(cell)
    return sorted(len(members) for members in plan.planned.batches if f"= {name}(" in plan.op_names[members[0]])


def test_pieces_of_a_chunked_product_are_batched():
    """i, o, u of one product and the two forget gates; the planner puts the sigmoids side by side."""
    cell = cell_of(BinaryTreeLSTM(DIM), *MORE["chunked"][1])
    assert sizes_of(cell, "sigmoid") == [4]
    assert plan_of(cell).planned.num_copies == 0
    assert sizes_of(cell_of(*MORE["LSTMCell"][:1], *MORE["LSTMCell"][1]), "sigmoid") == [3]


def test_products_of_one_operand_are_one_product():
    first, second, third = (nn.Linear(DIM, DIM) for _ in range(3))
    cell = cell_of(lambda x, y: first(x).tanh() * second(x).tanh() * third(y).tanh(), (DIM,), (DIM,))
    plan = plan_of(cell)
    assert sizes_of(cell, "product") in ([3], [1, 2])
    assert sizes_of(cell, "tanh") == [3]
    wide = next(i for i, m in enumerate(plan.planned.batches) if len(m) > 1 and "product" in plan.op_names[m[0]])
    kinds = [a.kind for a in plan.planned.accesses if a.batch == wide]
    assert kinds[:2] == [Reading.VIEW, Reading.STACKED]
    assert kinds[-1] is Reading.STACKED


def test_sums_of_products_are_one_product():
    first, second = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
    plan = plan_of(cell_of(lambda x, y: first(x) + second(y), (DIM,), (DIM,)))
    (only,) = plan.op_names
    assert only.endswith("= product(w, %0, w, %1, w)")
    with_both = plan_of(cell_of(lambda x, y: (product := first(x)) + second(y) * product, (DIM,), (DIM,)))
    assert sum("product" in text for text in with_both.op_names) == 2  # one is read twice


def test_other_operands_are_another_signature():
    assert batch_sizes(cell_of(lambda x, y: x.sum(0).sin() + y.sin(), (3,), ())) == [1, 1, 1, 1]
    assert batch_sizes(cell_of(lambda x, y: (x * 2.0, y * 3.0), (3,), (3,))) == [1, 1]
    assert batch_sizes(cell_of(lambda x, y: (x.t().exp(), y.exp()), (3, 3), (3, 3))) == [1, 1]
    assert batch_sizes(cell_of(lambda x, y: (x[1].exp(), y[1].exp()), (3,), (2,))) == [1, 1]


def test_random_draws_are_not_batched():
    plan = plan_of(cell_of(lambda x, y: F.dropout(x) + F.dropout(y), (3,), (3,)))
    draws = {i for i, text in enumerate(plan.op_names) if "bernoulli" in text}
    assert len(draws) == 2
    assert all((i,) in plan.planned.batches for i in draws)


def test_cells_without_work_and_parameters_alone():
    assert plan_of(cell_of(lambda x: x, (3,))).num_ops == 0
    weight = nn.Parameter(torch.ones(2))
    assert plan_of(cell_of(lambda x: (weight.exp(), x.exp()), (2,))).num_ops == 1


def test_plan_is_for_people():
    cell = paper_cell("TreeLSTM-internal")
    text = str(plan_of(cell, Switches(compile=False)))
    assert text.startswith("TreeLSTM-internal: runs as torch ops, alike ones as one call, because of compile=False")
    for part in (
        "17 ops of one example", "%18 = product(w, %0, w, %2, w)", "%20 = sigmoid(%18)", "as torch ops 10 batches",
        "product × 3 → ", "sigmoid × 4 → ", "stacked, broadcast, stacked, broadcast, stacked", "values in memory:",
        "operands gathered there: %0, %1, %2, %3", "with planning: 0, 0 bytes",
        "def infer(B, rows, pro, outs, saved, v, w):",
    ):  # fmt: skip
        assert part in text
    without = plan_of(cell).without.num_copies
    assert without > 0
    assert repr(plan_of(cell)) == f"CellPlan(TreeLSTM-internal: 17 ops, 10 batches, {without} → 0 copies)"


def test_a_plan_says_how_its_cell_runs_and_why():
    assert plan_of(paper_cell("GRU")).form == "fused kernels"
    half = compile_cell(
        CELLS["GRU"].make(DIM).bfloat16(), 2 * [Spec((DIM,), torch.bfloat16, torch.device("cpu"))], name="half"
    )
    assert plan_of(half).form == "torch ops, alike ones as one call, because it computes in torch.bfloat16"
    meta = compile_cell(
        CELLS["GRU"].make(DIM).to("meta"), 2 * [Spec((DIM,), torch.float32, torch.device("meta"))], name="far"
    )
    assert plan_of(meta).form == "torch ops, alike ones as one call, because it runs on meta"


def test_plans_of_a_batched_function():
    node = edbatch.cell(CELLS["GRU"].make(DIM))
    batched = edbatch.batch(lambda x, h: node(x, node(x, h)).sum(), policy="depth")
    with pytest.raises(BatchError, match="no plans yet; call the batched function first"):
        _ = batched.cell_plans
    batched(torch.randn(3, DIM), torch.randn(3, DIM))
    plans = batched.cell_plans
    assert plans.keys() <= {node_type.name for node_type in batched.stats.types}
    ahead, rest = (plan for name, plan in plans.items() if name.startswith("node("))
    assert (ahead.num_ops, ahead.num_batches) == (3, 3)  # its results lie in arenas, each by itself
    assert rest.num_batches < rest.num_ops
    assert math.isfinite(rest.planned.bytes_copied)
