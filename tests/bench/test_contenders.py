"""The baselines compute what the model computes: a fast wrong baseline would prove nothing."""

from __future__ import annotations

import pytest
import torch

from edbatch.bench.contenders import HandBatched, OneByOneContender, ProductsContender
from edbatch.datasets import Tree, random_trees
from edbatch.models import TreeLSTM


@pytest.fixture
def trees() -> list[Tree]:
    return [Tree(3, word=4), *random_trees(12, seed=5, num_words=100).trees, Tree(0, word=9)]


@pytest.fixture
def model() -> TreeLSTM:
    torch.manual_seed(1)
    return TreeLSTM(words=101, classes=5, dim=6).double()


@pytest.mark.parametrize("contender", [OneByOneContender, HandBatched])
def test_equal_to_the_model(contender, model, trees):
    losses, guesses = zip(*map(model, trees), strict=True)
    torch.stack(losses).sum().backward()
    theirs = contender(model, trees)
    their_losses, their_guesses = theirs.infer()
    torch.testing.assert_close(their_losses, torch.stack(losses), rtol=1e-9, atol=1e-9)
    assert their_guesses.tolist() == torch.stack(guesses).tolist()
    for _ in range(2):  # a second step must not add to the first
        theirs.train()
    parameters = dict(theirs.model.named_parameters())
    assert list(parameters) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameters[name].grad.to_dense(), parameter.grad, rtol=1e-9, atol=1e-9)


def test_hand_batched_makes_one_call_per_height(model, trees):
    calls = []
    hand_batched = HandBatched(model, trees)
    hand_batched.model.leaf.register_forward_hook(lambda *_: calls.append("leaf"))
    hand_batched.model.node.register_forward_hook(lambda *_: calls.append("node"))
    hand_batched.infer()

    def height(tree: Tree) -> int:
        return 0 if tree.is_leaf else 1 + max(height(tree.left), height(tree.right))

    assert calls == ["leaf"] + ["node"] * max(map(height, trees))


def test_products_are_those_of_the_batches(model):
    products = ProductsContender(model.float(), {"leaf": [3], "node": [2, 1], "out": [4, 2]})
    assert [(a.shape[0], *b.shape) for a, b, _ in products.forward] == [
        (3, 6, 18),
        (2, 12, 18), (1, 12, 18), (2, 6, 6), (1, 6, 6), (2, 6, 6), (1, 6, 6),
        (4, 6, 5), (2, 6, 5),
    ]  # fmt: skip
    assert [(a.shape[0], *b.shape) for a, b, _ in products.input_gradients] == [
        (3, 18, 6),
        (2, 18, 12), (1, 18, 12), (2, 6, 6), (1, 6, 6), (2, 6, 6), (1, 6, 6),
        (4, 5, 6), (2, 5, 6),
    ]  # fmt: skip
    assert [(a.shape[0], *b.shape) for a, b, _ in products.weight_gradients] == [
        (18, 3, 6), (18, 3, 12), (6, 3, 6), (6, 3, 6), (5, 6, 6)
    ]  # fmt: skip
    products.train()
    for a, b, result in products.forward:
        torch.testing.assert_close(result, a @ b)
