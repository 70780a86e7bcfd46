"""Cells as fused kernels: which kernels and torch calls they become."""

from collections import Counter

import pytest
import torch
from fused_kernels import DIM, Gates, assert_equal, calls, rows, the_cell
from torch import nn

import edbatch
from edbatch.bench.kernels.cells_of_paper import CELLS
from edbatch.cells.fused import fuser
from edbatch.models.tree_lstm import BinaryTreeLSTM
from edbatch.torch_insides.pytree import tree_leaves

# ---- what cells become


def test_a_tree_lstm_node_is_two_kernels_and_one_product(compiled):
    """One batched product for both children, since the product of both becomes a sum; backward: one kernel first."""
    batched = assert_equal(edbatch.cell(BinaryTreeLSTM(DIM)), *[rows(dtype=torch.float32) for _ in range(4)],
                           tolerance=1e-5)  # fmt: skip
    cell = the_cell(batched)
    assert calls(cell.infer.forward) == (2, 1)
    (training,) = cell.trainings.values()
    assert calls(training.forward) == (2, 1)
    kernels, products = calls(training.backward)
    assert products <= 3  # of gradients of operands; those of weights wait for the end
    assert kernels <= 2


def test_an_lstm_cell_is_one_kernel_and_two_products(compiled):
    batched = edbatch.batch(nn.LSTMCell(DIM, DIM))
    x, h, c = (rows(dtype=torch.float32, grad=False) for _ in range(3))
    h1, c1 = batched(x, list(zip(h, c, strict=True)))
    (h1.sum() + c1.sum()).backward()
    cell = the_cell(batched)
    assert calls(cell.infer.forward) == (1, 2)
    (training,) = cell.trainings.values()
    assert calls(training.forward) == (1, 2)
    assert calls(training.backward) == (1, 0)  # no operand wants a gradient


def test_eight_products_of_two_operands_become_two(compiled):
    batched = assert_equal(edbatch.cell(Gates().double()), rows(), rows(), rows())
    cell = the_cell(batched)
    assert calls(cell.infer.forward) == (1, 2)
    (training,) = cell.trainings.values()
    assert calls(training.backward)[1] <= 4  # of eight


def test_generated_code_is_for_people(compiled):
    batched = assert_equal(edbatch.cell(Gates().double()), rows(), rows(), rows())
    program = the_cell(batched).infer.forward
    compile(program.source, "<launch>", "exec")
    assert "def launch(b" in program.source
    (kernel,) = program.kernels
    compile(kernel, "<kernel>", "exec")
    assert kernel.count("for j in range(") == 1  # one loop for all gates, which are of one width
    assert kernel.count("tanh_f64(") == 2
    assert kernel.count("sigmoid_f64(") == 3
    assert "%0 = row f64[6]" in str(the_cell(batched).body)


def test_kernels_do_not_depend_on_sizes_or_names(compiled):
    """Two cells that differ in size only share the machine code."""
    sources = []
    for size in (4, 6):
        batched = edbatch.batch(edbatch.cell(BinaryTreeLSTM(size)))
        batched(*[rows(size, dtype=torch.float32, grad=False) for _ in range(4)])
        (training,) = the_cell(batched).trainings.values()
        sources.append((training.forward.kernels, training.backward.kernels))
    assert sources[0] == sources[1]


def test_an_unknown_op_stays_a_torch_op(compiled):
    function = edbatch.cell(lambda x: torch.special.i0(torch.tanh(x)) * x + torch.cumsum(x.sigmoid(), 0))
    batched = assert_equal(function, rows())
    source = the_cell(batched).infer.forward.source
    assert "i0_default(" in source
    assert "cumsum(" in source
    assert "kernel0(" in source


# ---- values that are overwritten


def test_a_product_lies_where_the_only_result_made_of_it_goes(compiled):
    batched = assert_equal(edbatch.cell(nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()).double()), rows())
    cell = the_cell(batched)
    assert "scratch" not in cell.infer.forward.source
    (training,) = cell.trainings.values()
    assert "scratch" not in training.forward.source


def test_only_one_of_two_products_lies_where_their_sum_goes(compiled):
    first, second = nn.Linear(DIM, DIM).double(), nn.Linear(DIM, DIM).double()
    batched = assert_equal(edbatch.cell(lambda x, y: (first(x) * second(y)).tanh()), rows(), rows())
    assert the_cell(batched).infer.forward.source.count("scratch(") == 1


def test_what_is_read_again_is_not_overwritten(compiled):
    """The second result is made of the first, in a loop of its own, where elements are computed once more."""
    linear = nn.Linear(DIM, DIM).double()

    def turned(x):
        y = linear(x).tanh()
        return y, torch.cat((y[2:].exp(), y[:2]))

    batched = assert_equal(edbatch.cell(turned), rows())
    assert the_cell(batched).infer.forward.source.count("scratch(") == 1


def test_a_product_that_a_stored_value_reads_before_the_last_is_not_overwritten(compiled):
    """Loops of a kernel run in order of first use: that of the last value may come before that of the middle one."""

    def function(m1, m2, u, v, p):
        first, middle = (m1 @ p).tanh(), (m2 @ p).tanh()
        return first, middle, middle + torch.cat((u, v))

    assert_equal(edbatch.cell(function), rows(3, 4), rows(6, 4), rows(3), rows(3), rows(4))


def test_what_training_saves_is_not_overwritten_either(compiled):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 3), nn.Linear(5, 6)

        def forward(self, p, q, u, v):
            return self.first(p).tanh(), self.second(q).tanh() + torch.cat((u, v))

    assert_equal(edbatch.cell(Cell().double()), rows(4), rows(5), rows(3), rows(3))


@pytest.mark.parametrize("name", CELLS)
def test_what_stays_torch_ops_in_the_cells_of_the_paper_has_nothing_alike(name, compiled, monkeypatch):
    """So there is nothing in the torch-op parts of a fused cell that could run as one call."""
    found, emit = [], fuser._Fuser._emit_torch

    def spy(self, index):
        found.append((self.program.name, self.body.op(index).target))
        return emit(self, index)

    monkeypatch.setattr(fuser._Fuser, "_emit_torch", spy)
    batched = edbatch.batch(edbatch.cell(CELLS[name].make(4)))
    rows = [torch.randn(3, *shape) for shape in CELLS[name].shapes(4)]
    sum(result.sum() for result in tree_leaves(batched(*rows))).backward()
    assert max(Counter(found).values(), default=0) <= 1
