"""The seven cells that the ED-Batch paper measures by themselves, with one product per gate, as in their equations.

Nothing is stacked or chunked by hand: edbatch is to find out what can be batched inside a cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]


class LSTM(nn.Module):
    """A step of an LSTM: the input x and the state (h, c) before it become the state after it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.x = nn.ModuleDict({gate: nn.Linear(dim, dim) for gate in "ifou"})
        self.h = nn.ModuleDict({gate: nn.Linear(dim, dim, bias=False) for gate in "ifou"})

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i = torch.sigmoid(self.x["i"](x) + self.h["i"](h))
        f = torch.sigmoid(self.x["f"](x) + self.h["f"](h))
        o = torch.sigmoid(self.x["o"](x) + self.h["o"](h))
        u = torch.tanh(self.x["u"](x) + self.h["u"](h))
        c = i * u + f * c
        return o * torch.tanh(c), c


class GRU(nn.Module):
    """A step of a GRU: the input x and the state h before it become the state after it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.x = nn.ModuleDict({gate: nn.Linear(dim, dim) for gate in "rzn"})
        self.h = nn.ModuleDict({gate: nn.Linear(dim, dim) for gate in "rzn"})

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        r = torch.sigmoid(self.x["r"](x) + self.h["r"](h))
        z = torch.sigmoid(self.x["z"](x) + self.h["z"](h))
        n = torch.tanh(self.x["n"](x) + r * self.h["n"](h))
        return z * h + (1 - z) * n


class MV(nn.Module):
    """The matrices and vectors of two children become those of their parent."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.v = nn.Linear(2 * dim, dim)
        self.m = nn.Parameter(torch.randn(dim, 2 * dim) / dim)
        self.m_bias = nn.Parameter(torch.randn(dim, dim) / dim)

    def forward(self, m1: Tensor, v1: Tensor, m2: Tensor, v2: Tensor) -> tuple[Tensor, Tensor]:
        v = torch.tanh(self.v(torch.cat((m1 @ v2, m2 @ v1))))
        return self.m_bias + self.m @ torch.cat((m1, m2)), v


class TreeLSTMInternal(nn.Module):
    """The states (h, c) of two children become that of their parent; each child has a forget gate of its own."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gates = nn.ModuleDict({gate: nn.Linear(2 * dim, dim) for gate in "iou"})
        self.f1 = nn.Linear(dim, dim)
        self.f2 = nn.Linear(dim, dim)
        self.f2.bias = self.f1.bias  # one bias for both

    def forward(self, h1: Tensor, c1: Tensor, h2: Tensor, c2: Tensor) -> tuple[Tensor, Tensor]:
        e = torch.cat((h1, h2))
        i = torch.sigmoid(self.gates["i"](e))
        o = torch.sigmoid(self.gates["o"](e))
        u = torch.tanh(self.gates["u"](e))
        f1 = torch.sigmoid(self.f1(h1))
        f2 = torch.sigmoid(self.f2(h2))
        c = i * u + f1 * c1 + f2 * c2
        return o * torch.tanh(c), c


class TreeLSTMLeaf(nn.Module):
    """A word's embedding becomes a state (h, c)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gates = nn.ModuleDict({gate: nn.Linear(dim, dim) for gate in "iou"})

    def forward(self, e: Tensor) -> tuple[Tensor, Tensor]:
        i = torch.sigmoid(self.gates["i"](e))
        o = torch.sigmoid(self.gates["o"](e))
        u = torch.tanh(self.gates["u"](e))
        c = i * u
        return o * torch.tanh(c), c


class TreeGRULeaf(nn.Module):
    """A word's embedding becomes a state: each of its entries is kept or replaced by a candidate, by a gate."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gates = nn.ModuleDict({gate: nn.Linear(dim, dim) for gate in "rzc"})

    def forward(self, e: Tensor) -> Tensor:
        r = torch.sigmoid(self.gates["r"](e))
        z = torch.sigmoid(self.gates["z"](e))
        c = torch.tanh(self.gates["c"](r * e))
        return z * e + (1 - z) * c


class TreeGRUInternal(nn.Module):
    """The states of two children pass through gates, and their mean is the state of the parent."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.left, self.right = TreeGRULeaf(dim), TreeGRULeaf(dim)

    def forward(self, h1: Tensor, h2: Tensor) -> Tensor:
        h: Tensor = 0.5 * (self.left(h1) + self.right(h2))
        return h


class PaperCell(NamedTuple):
    """A cell and the shapes of its arguments, both for a hidden size."""

    make: Callable[[int], nn.Module]
    shapes: Callable[[int], tuple[Shape, ...]]


CELLS: dict[str, PaperCell] = {
    "LSTM": PaperCell(LSTM, lambda dim: 3 * ((dim,),)),
    "GRU": PaperCell(GRU, lambda dim: 2 * ((dim,),)),
    "MV": PaperCell(MV, lambda dim: 2 * ((dim, dim), (dim,))),
    "TreeLSTM-internal": PaperCell(TreeLSTMInternal, lambda dim: 4 * ((dim,),)),
    "TreeLSTM-leaf": PaperCell(TreeLSTMLeaf, lambda dim: ((dim,),)),
    "TreeGRU-internal": PaperCell(TreeGRUInternal, lambda dim: 2 * ((dim,),)),
    "TreeGRU-leaf": PaperCell(TreeGRULeaf, lambda dim: ((dim,),)),
}
