"""The models of trees and triangles are what the equations say, on one example from the weights."""

from __future__ import annotations

from typing import Any

import torch
from by_hand import assert_same_root, example_of, label_loss, model_of, parts, s

from edbatch.models import MVRNN


def post_order(tree: Any) -> list[Any]:
    return [tree] if tree.is_leaf else [*post_order(tree.left), *post_order(tree.right), tree]


def by_hand(tree: Any, leaf: Any, node: Any, vector: Any, out: Any) -> list[Any]:
    """Losses and guesses in post-order, the states by `leaf(tree)` and `node(tree, left state, right state)`."""
    states: dict[int, Any] = {}
    for part in post_order(tree):
        children = () if part.is_leaf else (states[id(part.left)], states[id(part.right)])
        states[id(part)] = node(part, *children) if children else leaf(part.word)
    return [label_loss(out, vector(states[id(part)]), part.label) for part in post_order(tree)]


def leaf_lstm(cell: Any, word: int) -> Any:
    e = cell.embedding.weight[word]
    (wi, bi), (wo, bo), (wu, bu) = parts(cell.iou, 3)
    c = s(wi @ e + bi) * torch.tanh(wu @ e + bu)
    return s(wo @ e + bo) * torch.tanh(c), c


def node_lstm(cell: Any, left: Any, right: Any) -> Any:
    (h1, c1), (h2, c2) = left, right
    e = torch.cat((h1, h2))
    (ui, bi), (uo, bo), (uu, bu) = parts(cell.iou, 3)
    f1 = s(cell.f1.weight @ h1 + cell.f1.bias)
    f2 = s(cell.f2.weight @ h2 + cell.f1.bias)  # bf is one for both
    c = s(ui @ e + bi) * torch.tanh(uu @ e + bu) + f1 * c1 + f2 * c2
    return s(uo @ e + bo) * torch.tanh(c), c


def test_tree_lstm():
    model, tree = model_of("tree-lstm"), example_of("tree-lstm")
    leaf, node = lambda word: leaf_lstm(model.leaf, word), lambda _, left, right: node_lstm(model.node, left, right)
    assert_same_root(model(tree), by_hand(tree, leaf, node, lambda state: state[0], model.out))


def test_a_tree_of_one_word():
    model, tree = model_of("tree-lstm"), example_of("tree-lstm")
    while not tree.is_leaf:
        tree = tree.left
    assert_same_root(model(tree), [label_loss(model.out, leaf_lstm(model.leaf, tree.word)[0], tree.label)])


def test_tree_lstm_of_two_types():
    model, tree = model_of("tree-lstm-2type"), example_of("tree-lstm-2type")
    assert {part.kind for part in post_order(tree) if not part.is_leaf} == {0, 1}

    def node(part: Any, left: Any, right: Any) -> Any:
        return node_lstm(model.nodes[part.kind], left, right)

    expected = by_hand(tree, lambda word: leaf_lstm(model.leaf, word), node, lambda state: state[0], model.out)
    assert_same_root(model(tree), expected)


def gated(unit: Any, e: Any) -> Any:
    (ur, br), (uz, bz) = parts(unit.gates, 2)
    r, z = s(ur @ e + br), s(uz @ e + bz)
    c = torch.tanh(unit.candidate.weight @ (r * e) + unit.candidate.bias)
    return z * e + (1 - z) * c


def test_tree_gru():
    model, tree = model_of("tree-gru"), example_of("tree-gru")
    embedding, unit = model.leaf

    def node(_: Any, left: Any, right: Any) -> Any:
        return (gated(model.node.left, left) + gated(model.node.right, right)) / 2

    expected = by_hand(tree, lambda word: gated(unit, embedding.weight[word]), node, lambda h: h, model.out)
    assert_same_root(model(tree), expected)


def test_mv_rnn():
    model, tree = model_of("mv-rnn"), example_of("mv-rnn")
    dim = model.out.linear.in_features

    def leaf(word: int) -> Any:
        return model.leaf.matrices.weight[word].reshape(dim, dim), model.leaf.vectors.weight[word]

    def node(_: Any, left: Any, right: Any) -> Any:
        (ml, vl), (mr, vr) = left, right
        v = torch.tanh(model.node.vector.bias + model.node.vector.weight @ torch.cat((ml @ vr, mr @ vl)))
        of_left, of_right = model.node.matrix[:, :dim], model.node.matrix[:, dim:]
        return model.node.matrix_bias + of_left @ ml + of_right @ mr, v

    assert_same_root(model(tree), by_hand(tree, leaf, node, lambda state: state[1], model.out))


def test_mv_rnn_begins_near_the_identity():
    torch.manual_seed(0)
    matrices = MVRNN(words=50, classes=2, dim=32).leaf.matrices.weight.detach().view(50, 32, 32)
    assert (matrices.mean(0) - torch.eye(32)).abs().max() < 0.05
    assert torch.linalg.matrix_norm(matrices, 2).max() < 1.6


def test_grid_tree():
    model, triangle = model_of("grid-tree"), example_of("grid-tree")
    assert len(triangle.words) > 2
    row = [leaf_lstm(model.leaf, word) for word in triangle.words]
    for length in range(len(row) - 1, 0, -1):
        row = [node_lstm(model.node, row[j], row[j + 1]) for j in range(length)]
    (top,) = row
    assert_same_root(model(triangle), [label_loss(model.out, top[0], triangle.label)])
