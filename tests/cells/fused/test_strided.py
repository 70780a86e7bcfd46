"""Prologues by address: what `Strided` does to memory is what torch does to tensors."""

import pytest
import torch
from fused_kernels import DIM, Gates, assert_equal, fused_cells, rows, the_cell
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import edbatch
from edbatch.cells.fused.strided import Strided, cat
from edbatch.spec import Spec


class Memory:
    """Gives addresses of memory that lives as long as it does."""

    def __init__(self):
        self.tensors = []

    def __call__(self, size):
        self.tensors.append(torch.empty(max(size, 1), dtype=torch.uint8))
        return self.tensors[-1].data_ptr()


def read(strided, dtype):
    """The elements of a Strided as a tensor."""
    target = torch.empty(tuple(strided.shape), dtype=dtype)
    strided.copy_to(Strided.of(target, Spec.of(target), Memory()))
    return target


@st.composite
def chains(draw):
    """A shape and views of it, as names of methods with arguments."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    whole, chain = torch.empty(shape), []
    for _ in range(draw(st.integers(0, 4))):
        kind, rank = draw(st.sampled_from(["narrow", "permute", "transpose", "reshape", "contiguous"])), whole.dim()
        if kind == "narrow":
            dim = draw(st.integers(0, rank - 1))
            first = draw(st.integers(0, whole.shape[dim] - 1))
            step = (kind, (dim, first, draw(st.integers(1, whole.shape[dim] - first))))
        elif kind == "permute":
            step = (kind, (tuple(draw(st.permutations(range(rank)))),))
        elif kind == "transpose":
            step = (kind, (draw(st.integers(-rank, rank - 1)), draw(st.integers(-rank, rank - 1))))
        elif kind == "reshape":
            parts = draw(st.sampled_from([(whole.numel(),), (1, *whole.shape), (*whole.shape, 1)]))
            step = (kind, (tuple(parts),))
        else:
            step = (kind, ())
        chain.append(step)
        whole = getattr(whole, step[0])(*step[1])
    return shape, chain


@settings(max_examples=100, deadline=None)
@given(chains(), st.sampled_from([torch.float32, torch.float64, torch.int64]))
def test_views_and_copies_are_torchs(chain, dtype):
    shape, steps = chain
    tensor = (torch.randn(shape) * 1000).to(dtype)
    reserve = Memory()
    strided = Strided.of(tensor, Spec.of(tensor), reserve)
    for name, args in steps:
        tensor, strided = getattr(tensor, name)(*args), getattr(strided, name)(*args)
    assert tuple(strided.shape) == tuple(tensor.shape)
    assert torch.equal(read(strided, dtype), tensor)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_stacks(dim):
    shapes = [(*(3, 4, 2)[:dim], size, *(3, 4, 2)[dim + 1 :]) for size in (1, 3, 2)]
    tensors, reserve = [torch.randn(shape[::-1]).permute(2, 1, 0) for shape in shapes], Memory()
    theirs = torch.cat(tensors, dim)
    out = Strided.empty(tuple(theirs.shape), 4, reserve)
    assert torch.equal(
        read(cat([Strided.of(t, Spec.of(t), reserve) for t in tensors], dim, out), torch.float32), theirs
    )


@pytest.fixture
def no_torch_prologue(compiled, monkeypatch):
    """Inference fails if it asks torch for a prologue."""
    from edbatch.cells.fused.cell import FusedCell

    def refuse(self, *_):
        raise AssertionError("a prologue by torch")

    return lambda: monkeypatch.setattr(FusedCell, "prologue", refuse)


class Turned(nn.Module):
    """Weights of all kinds: turned, cut, stacked, and parameters that do not lie in order."""

    def __init__(self):
        super().__init__()
        self.gates, self.plain = Gates(), nn.Parameter(torch.randn(DIM, DIM))
        self.odd = nn.Parameter(torch.randn(2 * DIM, 3 * DIM)[::2, ::3])
        self.turned, self.bias = nn.Parameter(torch.randn(DIM, DIM).t()), nn.Parameter(torch.randn(2 * DIM)[::2])

    def forward(self, x, h, c):
        h, c = self.gates(x, h, c)
        return torch.tanh(h @ self.plain + x @ self.turned) * self.bias + c @ self.odd


def test_inference_stacks_weights_without_torch(no_torch_prologue):
    model = Turned().double()
    batched = assert_equal(edbatch.cell(model), rows(), rows(), rows())
    assert the_cell(batched)._strided is not None
    no_torch_prologue()
    columns = [rows(grad=False) for _ in range(3)]
    for _ in range(2):  # and never from weights of the day before
        with torch.no_grad():
            assert torch.allclose(torch.stack(batched(*columns)), torch.stack(batched.one_by_one(*columns)))
            model.plain.data = torch.randn(DIM, DIM, dtype=torch.float64).t()
            model.odd.data.mul_(3)


def test_what_else_a_prologue_computes_is_torchs(compiled):
    class Scaled(nn.Linear):
        def forward(self, x):
            return x @ (self.weight * 2).t() + self.bias

    batched = assert_equal(edbatch.cell(Scaled(DIM, DIM).double()), rows())
    assert [cell._strided for cell in fused_cells(batched)] == [None]


class Negative(nn.Module):
    """Weights that torch keeps with another sign than they have, lying in order and not."""

    def __init__(self):
        super().__init__()
        self.register_buffer("plain", torch._neg_view(torch.randn(DIM, DIM, dtype=torch.float64)))
        self.register_buffer("odd", torch.randn(DIM, DIM, dtype=torch.complex128).conj().imag)

    def forward(self, x, n):
        return (x @ self.plain + x @ self.odd + nn.functional.embedding(n, self.odd)) * self.plain[0] + self.odd[1]


def test_weights_of_the_other_sign(compilation):
    batched, columns = edbatch.batch(edbatch.cell(Negative())), (rows(), [0, 1, 2, 3, 4])
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            torch.testing.assert_close(batched(*columns), batched.one_by_one(*columns), rtol=1e-9, atol=1e-9)
