"""Products that run as blocks of columns: the same numbers, whatever reads the product, and only where it may."""

import re

import pytest
import torch
from fused_kernels import Gates, assert_equal, fused_cells, rows, the_cell
from torch import nn

import edbatch
from edbatch.cells.fused.library import blas
from edbatch.models.mv_rnn import BinaryMV
from edbatch.models.tree_lstm import BinaryTreeLSTM
from edbatch.workloads import find

DIM = 6


@pytest.fixture(params=["mkl", "torch"], autouse=True)
def by(request, monkeypatch):
    """Whose batched product is called."""
    if request.param == "torch":
        monkeypatch.setattr(blas, "gemm", lambda dtype: 0)
    elif not blas.gemm(torch.float64):
        pytest.skip("this torch brings no MKL, or there was no C compiler")
    return request.param


def launch_of(program):
    return program.source.partition("def launch")[2]


def blocks_of(program):
    """(number, columns) of the blocks of each product that runs as such."""
    of_torch = re.findall(r"out=z\d+\.as_strided\(\((\d+), B, (\d+)\)", launch_of(program))
    of_mkl = [(count, columns) for count, _, columns in program.products if count > 1]
    return of_mkl + [tuple(map(int, found)) for found in of_torch]


def test_gates_are_blocks(small_blocks):
    cell = the_cell(assert_equal(edbatch.cell(Gates().double()), rows(), rows(), rows()))
    assert blocks_of(cell.infer.forward) == [(4, DIM)] * 2  # four gates
    assert " mm(" not in launch_of(cell.infer.forward)


def test_a_tree_lstm_node_has_blocks_for_each_child(small_blocks):
    """By MKL one for each gate, of which several read the same child."""
    batched = assert_equal(edbatch.cell(BinaryTreeLSTM(DIM).double()), *[rows() for _ in range(4)])
    assert blocks_of(the_cell(batched).infer.forward) == [(8, DIM) if blas.gemm(torch.float64) else (2, 4 * DIM)]
    (training,) = the_cell(batched).trainings.values()
    assert blocks_of(training.backward) == [(2, DIM // 2)] * 2 + [(2, DIM)]


def test_a_product_that_is_a_result_lies_row_by_row(small_blocks):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(DIM, DIM, bias=False)

        def forward(self, x):
            y = self.layer(x)
            return y, y.tanh()

    cell = the_cell(assert_equal(edbatch.cell(Cell().double()), rows()))
    assert blocks_of(cell.infer.forward) == []


def test_a_product_that_another_product_reads_lies_row_by_row(small_blocks):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (nn.Linear(DIM, DIM, bias=False) for _ in range(2))

        def forward(self, x):
            return self.second(self.first(x)).sigmoid()

    cell = the_cell(assert_equal(edbatch.cell(Cell().double()), rows()))
    assert blocks_of(cell.infer.forward) == [(2, DIM // 2)]  # the second, which only the kernel reads


@pytest.mark.parametrize("parts", [(1, 5), (2, 4), (2, 2, 2), (3, 3), (6,), (1, 2, 3)])
def test_pieces_of_any_size(small_blocks, parts):
    """Blocks follow the pieces in which a product is read."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(DIM, sum(parts))

        def forward(self, x):
            return [piece.tanh() for piece in self.layer(x).split(parts)]

    assert_equal(edbatch.cell(Cell().double()), rows())


def test_weights_in_any_layout(small_blocks):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(DIM, 2 * DIM))
            self.v = nn.Parameter(torch.randn(2 * DIM, DIM))

        def forward(self, x):
            a, b = (x @ self.w + x @ self.v.t()).chunk(2)
            return a.sigmoid() * b

    assert_equal(edbatch.cell(Cell().double()), rows())


def test_one_weight_in_two_numbers_of_blocks(small_blocks):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(DIM, 4 * DIM))

        def forward(self, x, y):
            a, b, c, d = (x.tanh() @ self.w).chunk(4)
            e, f = (y.sigmoid() @ self.w).chunk(2)
            return a * b + c.tanh() * d, e.tanh() * f

    assert_equal(edbatch.cell(Cell().double()), rows(), rows())


@pytest.mark.parametrize("first", [0, 1])
def test_the_product_of_a_concatenation_is_split_where_that_saves_products(small_blocks, first):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.one = nn.Linear(2 * DIM, 3 * DIM), nn.Linear(DIM, DIM)

        def forward(self, x, y):
            one = self.one((x, y)[first]).sigmoid()
            a, b, c = self.both(torch.cat((x, y))).chunk(3)
            return a * one + b.tanh(), c * one

    cell = the_cell(assert_equal(edbatch.cell(Cell().double()), rows(), rows()))
    assert len(blocks_of(cell.infer.forward)) == 2


def test_a_concatenation_that_nothing_else_reads_is_one_product(small_blocks):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.both = nn.Linear(2 * DIM, DIM)

        def forward(self, x, y):
            return self.both(torch.cat((x, y))).tanh()

    cell = the_cell(assert_equal(edbatch.cell(Cell().double()), rows(), rows()))
    assert len(blocks_of(cell.infer.forward)) == 1
    assert " mm(" not in launch_of(cell.infer.forward)


def test_rows_of_a_concatenated_matrix(small_blocks):
    """Cut where elements are counted by row: [2, 6] and [2, 6] as one vector of 24."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.one = nn.Linear(4 * DIM, DIM), nn.Linear(2 * DIM, DIM)

        def forward(self, x, y):
            return self.both(torch.cat((x, y)).view(-1)).tanh() + self.one(x.view(-1)).sigmoid()

    assert_equal(edbatch.cell(Cell().double()), rows(2, DIM), rows(2, DIM))


def test_matrices_are_gathered_at_most_once(small_blocks):
    """Both matrices are read where they lie, or by torch where they lie side by side for the product of both."""
    columns = [rows(DIM, DIM), rows(), rows(DIM, DIM), rows()]
    cell = the_cell(assert_equal(edbatch.cell(BinaryMV(DIM).double()), *columns))
    assert launch_of(cell.infer.forward).count("read") == (0 if blas.gemm(torch.float64) else 2)  # the vectors


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_at_which_blocks_are_used(compiled, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        columns = [rows(128, dtype=torch.float32, number=40) for _ in range(4)]
        batched = assert_equal(edbatch.cell(BinaryTreeLSTM(128)), *columns, tolerance=1e-4)
    finally:
        torch.set_num_threads(before)
    assert blocks_of(the_cell(batched).infer.forward) == [(8, 128) if blas.gemm(torch.float32) else (2, 512)]


def test_a_chain_at_sizes_at_which_blocks_are_used(compiled):
    columns = [rows(130, dtype=torch.float32, number=20) for _ in range(3)]
    batched = assert_equal(edbatch.cell(WideGates(130)), *columns, tolerance=1e-4)
    assert (4, 130) in blocks_of(the_cell(batched).infer.forward)


class WideGates(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.of_x, self.of_h = nn.Linear(dim, 4 * dim), nn.Linear(dim, 4 * dim)

    def forward(self, x, h, c):
        i, f, o, u = (self.of_x(x) + self.of_h(h)).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c


class Pieces(nn.Module):
    """Products of one shape, of three operands that are also put side by side; results are read in different ways."""

    def __init__(self, *, turned):
        super().__init__()
        self.all = nn.Linear(3 * DIM, 2 * DIM, bias=False)
        shape = (3 * DIM, DIM) if turned else (DIM, 3 * DIM)
        self.weights = nn.ParameterList([torch.randn(shape) for _ in range(3)])
        self.turned = turned

    def forward(self, x, y, z):
        total, gate = self.all(torch.cat((x, y, z))).chunk(2)
        for value, weight in zip((x, y, z), self.weights, strict=True):
            a, b, c = (nn.functional.linear(value, weight) if self.turned else value @ weight).chunk(3)
            total = total + a.tanh() * b
            gate = gate * c
        return total, gate


@pytest.mark.parametrize("turned", [True, False])
def test_products_of_one_shape_are_one_batched_product(small_blocks, turned):
    cell = the_cell(assert_equal(edbatch.cell(Pieces(turned=turned).double()), rows(), rows(), rows()))
    assert len(blocks_of(cell.infer.forward)) == 1
    assert " mm(" not in launch_of(cell.infer.forward)


def test_one_of_the_products_is_a_result(small_blocks):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.one, self.other = (nn.Linear(n * DIM, DIM, bias=False) for n in (2, 1, 1))

        def forward(self, x, y):
            return self.one(x), self.other(y) * self.both(torch.cat((x, y))).sigmoid()

    assert_equal(edbatch.cell(Cell().double()), rows(), rows())


@pytest.mark.parametrize("name", ["tree-lstm", "bilstm-tagger", "lattice-lstm", "tree-gru"])
def test_operands_that_are_gathered_viewed_and_kept(small_blocks, name):
    workload = find(name)
    corpus = workload.load(limit=5)
    model = workload.make(corpus, hidden=4).double()
    batched = edbatch.batch(model, stack=False)
    edbatch.check(batched, corpus.train)
    trainings = [training for cell in fused_cells(batched) for training in cell.trainings.values()]
    assert any(blocks_of(training.forward) for training in trainings)


EXPANDED = {
    "the gradient of a sum": lambda x, w: (x @ w).sum(),
    "a piece": lambda x, w: torch.tanh(x[:1].expand(DIM) @ w),
    "a computed piece": lambda x, w: torch.tanh(x[:1]).expand(DIM) @ w,
    "a range of a value": lambda x, w: torch.tanh(torch.cat((x, x.tanh()))[2 : DIM + 2] @ w),
    "nothing": lambda x, w: torch.tanh(x[:0] @ w[:0]) + x @ w,
    "no columns": lambda x, w: torch.cat((x @ w[:, :0], torch.tanh(x @ w))),
}


@pytest.mark.parametrize("name", EXPANDED)
@pytest.mark.parametrize("small", [True, False])
def test_operands_that_are_no_rows_of_their_own(compiled, request, name, small):
    if small:
        request.getfixturevalue("small_blocks")

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(DIM, DIM))

        def forward(self, x):
            return EXPANDED[name](x, self.w)

    assert_equal(edbatch.cell(Cell().double()), rows())


@pytest.mark.parametrize(("gates", "width", "blocks"), [(3, 6, (6, 3)), (3, 5, (3, 5)), (5, 6, (5, 6)), (1, 6, (2, 3))])
def test_an_odd_number_of_gates(small_blocks, gates, width, blocks):
    """Twice as many blocks, where they can be halved and are not too many."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(DIM, gates * width, bias=False)

        def forward(self, x):
            return sum(gate.tanh() * i for i, gate in enumerate(self.layer(x).chunk(gates), 1))

    cell = the_cell(assert_equal(edbatch.cell(Cell().double()), rows()))
    assert blocks_of(cell.infer.forward) == [blocks]
