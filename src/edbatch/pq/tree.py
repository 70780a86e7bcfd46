"""PQ trees: every order of some leaves in which chosen sets of leaves are consecutive (Booth & Lueker 1976).

In: distinct leaves, then one set of leaves after another. Out: a tree that stands for exactly the orders in which every
accepted set is consecutive; the layout of a cell's values is read off it. Inner nodes are of two kinds: the children of
a *P node* may stand in any order, those of a *Q node* in the given order or its reverse. Here is the class that callers
use; `nodes` has the nodes of a tree, `reduction` the rules by which a set changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, permutations, product
from typing import Any, Generic, Literal, TypeVar

from edbatch.errors import LeafError
from edbatch.pq.nodes import LeafNode, PNode, PQNode
from edbatch.pq.reduction import gather, label

Leaf = TypeVar("Leaf", bound=Hashable)
Folded = TypeVar("Folded")
Structure = tuple[Literal["leaf", "P", "Q"], Any]

_SHOWN_LEAVES = 100


class PQTree(Generic[Leaf]):
    """All orders of `leaves` in which every set accepted by `reduce` is consecutive; at first, all orders.

    When a tree is printed, braces enclose the children of P nodes (any order), brackets those of Q nodes (this order or
    its reverse).

    >>> tree = PQTree("abcdef")
    >>> tree
    {a b c d e f}
    >>> tree.reduce("cd"), tree.reduce("de")
    (True, True)
    >>> tree
    {a b f [c d e]}
    >>> tree.reduce("ce")  # d is between them in every order that is left
    False
    >>> tree.frontier()
    ('a', 'b', 'f', 'c', 'd', 'e')

    Raises:
        LeafError: a leaf is given twice, or is not hashable.
    """

    def __init__(self, leaves: Iterable[Leaf]) -> None:
        self._leaves = tuple(leaves)
        try:
            self._index_of = {leaf: index for index, leaf in enumerate(self._leaves)}
        except TypeError as error:
            raise LeafError(f"{error}; leaves must be hashable, e.g. numbers, strings or tuples") from error
        if len(self._index_of) < len(self._leaves):
            twice = next(leaf for index, leaf in enumerate(self._leaves) if self._index_of[leaf] != index)
            raise LeafError(f"leaf {twice!r} is given twice; the leaves of a PQ tree must be distinct")
        self._nodes = [LeafNode(index) for index in range(len(self._leaves))]
        self._root: PQNode = self._nodes[0] if len(self._nodes) == 1 else PNode(self._nodes)

    def reduce(self, subset: Iterable[Leaf]) -> bool:
        """Keep only the orders in which `subset` is consecutive; False, and no change, if there is no such order.

        The order inside `subset` and repetitions in it do not matter. Fewer than two leaves are always consecutive.

        >>> tree = PQTree(range(4))
        >>> [tree.reduce(pair) for pair in ({0, 1}, {1, 2}, {2, 3}, {3, 0})]
        [True, True, True, False]
        >>> tree
        [0 1 2 3]

        Raises:
            LeafError: `subset` has something that is not a leaf of this tree; the tree is unchanged.
        """
        try:
            indices = sorted({self._index_of[leaf] for leaf in subset})
        except KeyError as error:
            raise LeafError(
                f"{error.args[0]!r} is not one of the {len(self._leaves)} leaves of this PQ tree; "
                "give all leaves when the tree is made"
            ) from None
        if len(indices) < 2:
            return True
        labels = label([self._nodes[index] for index in indices])
        if labels is None:
            return False
        place = gather(labels)
        if labels.root is self._root:
            self._root = place
        return True

    def frontier(self) -> tuple[Leaf, ...]:
        """One of the orders: the leaves as the tree holds them now, from left to right.

        >>> tree = PQTree("abc")
        >>> tree.reduce("ac")
        True
        >>> tree.frontier()
        ('b', 'a', 'c')
        """
        return tuple(self._leaves[node.index] for node in self._preorder() if isinstance(node, LeafNode))

    def orders(self) -> set[tuple[Leaf, ...]]:
        """All the orders; only for small trees, since their number can be the factorial of the number of leaves.

        >>> tree = PQTree("abc")
        >>> tree.reduce("ab"), tree.reduce("bc")
        (True, True)
        >>> sorted(tree.orders())
        [('a', 'b', 'c'), ('c', 'b', 'a')]
        """

        def combine(node: PQNode, parts: list[list[tuple[Leaf, ...]]]) -> list[tuple[Leaf, ...]]:
            if isinstance(node, LeafNode):
                return [(self._leaves[node.index],)]
            arranged: Iterable[Sequence[list[tuple[Leaf, ...]]]]
            arranged = permutations(parts) if isinstance(node, PNode) else (parts, parts[::-1])
            return [tuple(chain(*pieces)) for arrangement in arranged for pieces in product(*arrangement)]

        orders: list[tuple[Leaf, ...]] = self._fold(combine)
        return set(orders)

    def structure(self) -> Structure:
        """The tree as nested tuples: `("leaf", leaf)`, `("P", children)` or `("Q", children)`, children a tuple.

        A P node has two children or more, a Q node three or more; only the P node of a tree without leaves has none.

        >>> tree = PQTree("abcd")
        >>> tree.reduce("ab")
        True
        >>> tree.structure()
        ('P', (('leaf', 'c'), ('leaf', 'd'), ('P', (('leaf', 'a'), ('leaf', 'b')))))
        """

        def combine(node: PQNode, parts: list[Structure]) -> Structure:
            if isinstance(node, LeafNode):
                return "leaf", self._leaves[node.index]
            return "P" if isinstance(node, PNode) else "Q", tuple(parts)

        return self._fold(combine)

    def __repr__(self) -> str:
        if len(self._leaves) > _SHOWN_LEAVES:
            return f"PQTree({len(self._leaves)} leaves)"

        def combine(node: PQNode, parts: list[str]) -> str:
            if isinstance(node, LeafNode):
                return str(self._leaves[node.index])
            inside = " ".join(parts)
            return f"{{{inside}}}" if isinstance(node, PNode) else f"[{inside}]"

        return self._fold(combine)

    def _preorder(self) -> Iterator[PQNode]:
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.listed()))

    def _fold(self, combine: Callable[[PQNode, list[Folded]], Folded]) -> Folded:
        """The result of `combine(node, results of its children)` for the root; without recursion, because trees can be
        deep."""
        result_of: dict[PQNode, Folded] = {}
        for node in reversed(list(self._preorder())):  # children before parents
            result_of[node] = combine(node, [result_of.pop(child) for child in node.listed()])
        return result_of[self._root]
