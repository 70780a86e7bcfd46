"""The cells of the paper's workloads in DyNet's Python API, with weights copied from our torch modules.

Each function takes a `Copies` and a torch module, and returns a function that computes the same in DyNet for one node.
They are written as DyNet's users would: one affine transform for each Linear, lookup parameters, DyNet's own LSTM
operations. Several variants were timed at 32 examples and hidden size 128. Clearly quicker are those operations than
single gates, and a pair of matrices than a concatenation. Within noise are the operations and
`CompactVanillaLSTMBuilder`, gates in one product or in several, `n + z * (h - n)` and `z * h + (1 - z) * n`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from edbatch.models import BinaryTreeLSTM, LabelLoss, LeafLSTM, TokenLSTM
from edbatch.models.lattice_gru import TokenGRU
from edbatch.models.mv_rnn import BinaryMV, LeafMV
from edbatch.models.tree_gru import GatedUnit

Expression = Any  # DyNet's word for a value that is yet to be computed
State = tuple[Expression, Expression]


class Copies:
    """DyNet parameters that are copies of torch's, and the gradients they must have. `dy` is the module dynet."""

    def __init__(self, dy: Any) -> None:
        self.dy = dy
        self._collection = dy.ParameterCollection()
        self._gradients: list[tuple[Any, Callable[[], Tensor]]] = []

    def of(self, parameter: Tensor, take: Callable[[Tensor], Tensor] = lambda t: t, plus: Tensor | float = 0) -> Any:
        """A DyNet parameter with the value `take(parameter) + plus`; `take` picks or reorders entries."""
        value = (take(parameter.detach()) + plus).numpy()
        copy = self._collection.add_parameters(value.shape, init=value)
        self._gradients.append((copy, lambda: take(_gradient(parameter))))
        return copy

    def halves(self, weight: Tensor) -> tuple[Any, Any]:
        """The weights for the first and for the second half of an input."""
        return self.of(weight, lambda w: w.chunk(2, dim=1)[0]), self.of(weight, lambda w: w.chunk(2, dim=1)[1])

    def table(self, embedding: nn.Embedding, *shape: int) -> Any:
        """A lookup parameter; if a shape is given, its entries have that shape (matrices)."""
        weight = embedding.weight
        shape = (len(weight), *(shape or weight.shape[1:]))
        value = weight.detach().view(shape)
        if len(shape) == 3:  # DyNet reads matrices, and only these, by columns
            value = value.mT.reshape(shape)
        copy = self._collection.add_lookup_parameters(shape, init=value.numpy())
        self._gradients.append((copy, lambda: _gradient(weight).view(shape)))
        return copy

    def forget_gradients(self) -> None:
        for copy, _ in self._gradients:
            copy.scale_gradient(0)

    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        """For each parameter DyNet's gradient and torch's."""
        return [(torch.from_numpy(copy.grad_as_array()).float(), expected()) for copy, expected in self._gradients]


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def label_loss(copies: Copies, module: LabelLoss) -> Callable[[Expression, int], Expression]:
    """The loss of a label, given a vector."""
    dy = copies.dy
    w = copies.of(module.linear.weight)
    if module.linear.bias is None:
        return lambda h, label: dy.pickneglogsoftmax(w * h, label)
    b = copies.of(module.linear.bias)
    return lambda h, label: dy.pickneglogsoftmax(dy.affine_transform([b, w, h]), label)


def lstm(copies: Copies, cell: nn.LSTMCell) -> Callable[[Expression, State], State]:
    """A step of an LSTM. In DyNet the last two gates are swapped, and 1 is added inside the forget gate."""
    dy = copies.dy

    def gates(t: Tensor) -> Tensor:
        i, f, g, o = t.chunk(4)
        return torch.cat((i, f, o, g))

    w, u = copies.of(cell.weight_ih, gates), copies.of(cell.weight_hh, gates)
    b = copies.of(cell.bias_ih, gates, plus=gates(cell.bias_hh.detach()) - _forget_gate(cell.hidden_size))

    def step(x: Expression, state: State) -> State:
        h, c = state
        activated = dy.vanilla_lstm_gates(x, h, w, u, b)
        c = dy.vanilla_lstm_c(c, activated)
        return dy.vanilla_lstm_h(c, activated), c

    return step


def _forget_gate(dim: int) -> Tensor:
    """1 at the entries of the forget gate, else 0."""
    return torch.tensor([0.0, 1, 0, 0]).repeat_interleave(dim)


def token_lstm(copies: Copies, cell: TokenLSTM) -> Callable[[int, State], State]:
    table, step = copies.table(cell.embedding), lstm(copies, cell.lstm)
    return lambda token, state: step(table[token], state)


def token_gru(copies: Copies, cell: TokenGRU) -> Callable[[int, Expression], Expression]:
    dy = copies.dy
    table, dim = copies.table(cell.embedding), cell.gru.hidden_size
    w, u = copies.of(cell.gru.weight_ih), copies.of(cell.gru.weight_hh)
    b, d = copies.of(cell.gru.bias_ih), copies.of(cell.gru.bias_hh)

    def step(token: int, h: Expression) -> Expression:
        from_x, from_h = dy.affine_transform([b, w, table[token]]), dy.affine_transform([d, u, h])
        rz = dy.logistic(dy.pickrange(from_x, 0, 2 * dim) + dy.pickrange(from_h, 0, 2 * dim))
        r, z = dy.pickrange(rz, 0, dim), dy.pickrange(rz, dim, 2 * dim)
        n = dy.tanh(dy.pickrange(from_x, 2 * dim, 3 * dim) + dy.cmult(r, dy.pickrange(from_h, 2 * dim, 3 * dim)))
        return n + dy.cmult(z, h - n)

    return step


def leaf_lstm(copies: Copies, cell: LeafLSTM) -> Callable[[int], State]:
    dy = copies.dy
    table, dim = copies.table(cell.embedding), cell.embedding.embedding_dim
    b, w = copies.of(cell.iou.bias), copies.of(cell.iou.weight)

    def leaf(word: int) -> State:
        iou = dy.affine_transform([b, w, table[word]])
        i, o = dy.logistic(dy.pickrange(iou, 0, dim)), dy.logistic(dy.pickrange(iou, dim, 2 * dim))
        c = dy.cmult(i, dy.tanh(dy.pickrange(iou, 2 * dim, 3 * dim)))
        return dy.cmult(o, dy.tanh(c)), c

    return leaf


def binary_tree_lstm(copies: Copies, cell: BinaryTreeLSTM) -> Callable[[State, State], State]:
    dy = copies.dy
    dim = cell.f1.in_features
    b, (w1, w2) = copies.of(cell.iou.bias), copies.halves(cell.iou.weight)
    bf, f1, f2 = copies.of(cell.f1.bias), copies.of(cell.f1.weight), copies.of(cell.f2.weight)

    def node(left: State, right: State) -> State:
        (h1, c1), (h2, c2) = left, right
        iou = dy.affine_transform([b, w1, h1, w2, h2])
        i, o = dy.logistic(dy.pickrange(iou, 0, dim)), dy.logistic(dy.pickrange(iou, dim, 2 * dim))
        kept1 = dy.cmult(dy.logistic(dy.affine_transform([bf, f1, h1])), c1)
        kept2 = dy.cmult(dy.logistic(dy.affine_transform([bf, f2, h2])), c2)
        c = dy.cmult(i, dy.tanh(dy.pickrange(iou, 2 * dim, 3 * dim))) + kept1 + kept2
        return dy.cmult(o, dy.tanh(c)), c

    return node


def gated_unit(copies: Copies, unit: GatedUnit) -> Callable[[Expression], Expression]:
    dy = copies.dy
    dim = unit.candidate.in_features
    b, w = copies.of(unit.gates.bias), copies.of(unit.gates.weight)
    bc, wc = copies.of(unit.candidate.bias), copies.of(unit.candidate.weight)

    def gated(e: Expression) -> Expression:
        rz = dy.logistic(dy.affine_transform([b, w, e]))
        r, z = dy.pickrange(rz, 0, dim), dy.pickrange(rz, dim, 2 * dim)
        c = dy.tanh(dy.affine_transform([bc, wc, dy.cmult(r, e)]))
        return c + dy.cmult(z, e - c)

    return gated


def leaf_mv(copies: Copies, cell: LeafMV) -> Callable[[int], State]:
    dim = cell.vectors.embedding_dim
    matrices, vectors = copies.table(cell.matrices, dim, dim), copies.table(cell.vectors)
    return lambda word: (matrices[word], vectors[word])


def binary_mv(copies: Copies, cell: BinaryMV) -> Callable[[State, State], State]:
    dy = copies.dy
    b, (w1, w2) = copies.of(cell.vector.bias), copies.halves(cell.vector.weight)
    bm, (u1, u2) = copies.of(cell.matrix_bias), copies.halves(cell.matrix)

    def node(left: State, right: State) -> State:
        (m1, v1), (m2, v2) = left, right
        v = dy.tanh(dy.affine_transform([b, w1, m1 * v2, w2, m2 * v1]))
        return dy.affine_transform([bm, u1, m1, u2, m2]), v

    return node
