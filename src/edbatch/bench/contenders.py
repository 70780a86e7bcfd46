"""What edbatch is compared with on a TreeLSTM: plain PyTorch one by one, PyTorch batched by hand, and matrix products
without anything else.

In: a model and trees. Out: objects with `infer` and `train`. Preparations that favour a contender are made outside the
clock: one by one gets its numbers as tensors, the hand-batched version its indices.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edbatch.datasets import Tree
from edbatch.models import BinaryTreeLSTM, LabelLoss, LeafLSTM, TreeLSTM


class PlainTreeLSTM(TreeLSTM):
    """The same model as written without edbatch: its cells are not marked."""

    def __init__(self, *, words: int, classes: int, dim: int) -> None:
        nn.Module.__init__(self)
        self.leaf = LeafLSTM(words, dim)
        self.node = BinaryTreeLSTM(dim)
        self.out = LabelLoss(dim, classes)

    @staticmethod
    def like(model: TreeLSTM) -> PlainTreeLSTM:
        """A model with the same weights, as copies."""
        classes, dim = model.out.linear.weight.shape
        weights = model.leaf.embedding.weight
        plain = PlainTreeLSTM(words=len(weights), classes=classes, dim=dim).to(weights.dtype)
        plain.load_state_dict(model.state_dict())
        return plain


class OneByOneContender:
    """A plain loop over the trees."""

    def __init__(self, model: TreeLSTM, trees: Iterable[Tree]) -> None:
        self.model = PlainTreeLSTM.like(model)
        # A dense gradient of the whole embedding for every single word would make training several times slower still.
        self.model.leaf.embedding.sparse = True
        self.trees = [_with_tensors(tree) for tree in trees]

    def infer(self) -> tuple[Tensor, Tensor]:
        """Losses and guesses at the roots, one of each per tree."""
        losses, guesses = zip(*map(self.model, self.trees), strict=True)
        return torch.stack(losses), torch.stack(guesses)

    def train(self) -> None:
        self.model.zero_grad(set_to_none=True)
        for tree in self.trees:
            self.model(tree)[0].backward()


def _with_tensors(tree: Tree) -> Any:
    """A copy of a tree whose word ids and labels are tensors, as a PyTorch user would have them."""
    copies: list[Tree] = []
    for node in tree.nodes():
        right, left = (None, None) if node.is_leaf else (copies.pop(), copies.pop())
        copies.append(Tree(torch.tensor(node.label), torch.tensor(node.word), left, right))  # type: ignore[arg-type]
    return copies[0]


class Level(NamedTuple):
    """Indices into the states that are still needed: of the left children, of the right ones, and of those that later
    levels need."""

    left: Tensor
    right: Tensor
    later: Tensor


class HandBatched:
    """Level by level: all leaves in one call, all nodes of a height in one call, all losses in one call at the end."""

    def __init__(self, model: TreeLSTM, trees: list[Tree]) -> None:
        self.model = PlainTreeLSTM.like(model)
        heights: dict[Tree, int] = {}
        needed_at: dict[Tree, int] = {}
        for tree in trees:
            for node in tree.nodes():
                heights[node] = height = 0 if node.is_leaf else 1 + max(heights[node.left], heights[node.right])
                if not node.is_leaf:
                    needed_at[node.left] = needed_at[node.right] = height
        levels: list[list[Tree]] = [[] for _ in range(1 + max(heights.values()))]
        for node, height in heights.items():
            levels[height].append(node)
        self.words = torch.tensor([node.word for node in levels[0]])
        self.labels = torch.tensor([node.label for level in levels for node in level])
        self.levels: list[Level] = []
        alive = levels[0]
        for height, level in enumerate(levels[1:], start=1):
            row_of = {node: row for row, node in enumerate(alive)}
            later = [node for node in alive if needed_at.get(node, 0) > height]
            groups = [node.left for node in level], [node.right for node in level], later
            self.levels.append(Level(*(torch.tensor([row_of[n] for n in g], dtype=torch.int64) for g in groups)))
            alive = later + level
        place_of = {node: i for i, node in enumerate(node for level in levels for node in level)}
        self.roots = torch.tensor([place_of[tree] for tree in trees])
        tree_of = {node: number for number, tree in enumerate(trees) for node in tree.nodes()}
        self.tree_of_node = torch.tensor([tree_of[node] for node in place_of])

    def infer(self) -> tuple[Tensor, Tensor]:
        """Losses and guesses at the roots, one of each per tree."""
        h, c = self.model.leaf(self.words)
        all_h = [h]
        for left, right, later in self.levels:
            h1, c1, h2, c2 = (s.index_select(0, rows) for rows in (left, right) for s in (h, c))
            node_h, node_c = self.model.node(h1, c1, h2, c2)
            all_h.append(node_h)
            h, c = torch.cat((h.index_select(0, later), node_h)), torch.cat((c.index_select(0, later), node_c))
        logits = self.model.out.linear(torch.cat(all_h))
        losses = F.cross_entropy(logits, self.labels, reduction="none")
        per_tree = losses.new_zeros(len(self.roots)).index_add(0, self.tree_of_node, losses)
        return per_tree, logits.index_select(0, self.roots).argmax(dim=1)

    def train(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.infer()[0].sum().backward()  # type: ignore[no-untyped-call]


Product = tuple[Tensor, Tensor, Tensor]  # operand, operand, result


class ProductsContender:
    """The matrix products of some batches and nothing else, into memory that was made before.

    Args:
        sizes: For each cell ("leaf", "node", "out") the sizes of its batches.
    """

    def __init__(self, model: TreeLSTM, sizes: dict[str, list[int]]) -> None:
        leaf, node, out = model.leaf, model.node, model.out
        dim = out.linear.in_features
        gates = [(node.iou, 0), (node.f1, 0), (node.f2, dim)]  # layers, and where their operands begin in [h1; h2]
        layers = {"leaf": [(leaf.iou, 0)], "node": gates, "out": [(out.linear, 0)]}
        self.forward: list[Product] = []
        self.input_gradients: list[Product] = []
        self.weight_gradients: list[Product] = []  # one per weight, over the rows of all batches
        for name, batch_sizes in sizes.items():
            ends = list(accumulate(batch_sizes))
            rows = [slice(end - size, end) for size, end in zip(batch_sizes, ends, strict=True)]
            operands = torch.randn(ends[-1], layers[name][0][0].in_features)
            for linear, first in layers[name]:
                weight = linear.weight.detach()
                x = operands[:, first : first + linear.in_features]
                y, dy, dx = torch.empty(len(x), len(weight)), torch.randn(len(x), len(weight)), torch.empty(x.shape)
                self.forward += [(x[r], weight.t(), y[r]) for r in rows]
                self.input_gradients += [(dy[r], weight, dx[r]) for r in rows]
                self.weight_gradients.append((dy.t(), x, torch.empty_like(weight)))

    def infer(self) -> None:
        _multiply(self.forward)

    def train(self) -> None:
        _multiply(self.forward)
        _multiply(self.input_gradients)
        _multiply(self.weight_gradients)


def _multiply(products: list[Product]) -> None:
    for a, b, result in products:
        torch.mm(a, b, out=result)
