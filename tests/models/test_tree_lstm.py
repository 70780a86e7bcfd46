"""The model of one tree is what the equations say."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from edbatch.datasets import Tree
from edbatch.models import TreeLSTM

DIM, CLASSES = 3, 5


@pytest.fixture
def model() -> TreeLSTM:
    torch.manual_seed(0)
    return TreeLSTM(7, DIM, CLASSES).double()


def leaf_by_hand(model: TreeLSTM, word: int):
    e = model.leaf.embedding.weight[word]
    w, b = model.leaf.iou.weight.split(DIM), model.leaf.iou.bias.split(DIM)
    i, o, u = torch.sigmoid(w[0] @ e + b[0]), torch.sigmoid(w[1] @ e + b[1]), torch.tanh(w[2] @ e + b[2])
    c = i * u
    return o * torch.tanh(c), c


def node_by_hand(model: TreeLSTM, h1, c1, h2, c2):
    node, e = model.node, torch.cat((h1, h2))
    w, b = node.iou.weight.split(DIM), node.iou.bias.split(DIM)
    i, o, u = torch.sigmoid(w[0] @ e + b[0]), torch.sigmoid(w[1] @ e + b[1]), torch.tanh(w[2] @ e + b[2])
    f1 = torch.sigmoid(node.f1.weight @ h1 + node.f1.bias)
    f2 = torch.sigmoid(node.f2.weight @ h2 + node.f2.bias)
    c = i * u + f1 * c1 + f2 * c2
    return o * torch.tanh(c), c


def loss_by_hand(logits, label: int):
    return -torch.log(torch.exp(logits[label]) / torch.exp(logits).sum())


def test_one_tree_follows_the_equations(model):
    tree = Tree(4, left=Tree(1, word=5), right=Tree(0, left=Tree(2, word=3), right=Tree(3, word=6)))
    a, b, c = (leaf_by_hand(model, word) for word in (5, 3, 6))
    inner = node_by_hand(model, *b, *c)
    root = node_by_hand(model, *a, *inner)
    logits = [model.out.linear.weight @ h + model.out.linear.bias for h, _ in (a, b, c, inner, root)]
    expected = sum(loss_by_hand(score, label) for score, label in zip(logits, (1, 2, 3, 0, 4), strict=True))
    loss, root_logits = model(tree)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(root_logits, logits[-1], rtol=1e-12, atol=1e-12)


def test_a_tree_of_one_word(model):
    loss, logits = model(Tree(2, word=1))
    assert logits.shape == (CLASSES,)
    torch.testing.assert_close(loss, F.cross_entropy(logits, torch.tensor(2)))


def test_every_parameter_gets_a_gradient(model):
    model(Tree(4, left=Tree(1, word=5), right=Tree(0, word=3)))[0].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
