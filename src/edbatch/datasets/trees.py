"""Sentiment trees: a file of s-expressions comes in, `Tree` objects and a `Vocabulary` go out.

The format is the Stanford Sentiment Treebank's, one binary tree a line: `(label word)` is a leaf and
`(label left right)` an internal node. Only an ASCII space separates tokens, which may hold other white space (U+00A0).
A line that is not exactly one such tree is an error, never skipped.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from edbatch.datasets.files import DatasetError, check_split, data_file, data_folder, parse_lines
from edbatch.datasets.vocabulary import Vocabulary

NUM_LABELS = 5  # very negative, negative, neutral, positive, very positive
SHIPPED = Path(__file__).parent / "data"

_TOKEN = re.compile(r"[()]|[^ ()]+")
_LABEL_OF_TOKEN = {str(label): label for label in range(NUM_LABELS)}
_WORD_OF_ESCAPE = {"-LRB-": "(", "-RRB-": ")"}


class Tree:
    """A node of a binary tree: a leaf has a word id, an internal node has two children and a kind; both have a label.

    The kind, 0 or 1, says which of two cells is called, in models that have two; other models ignore it.
    """

    __slots__ = ("is_leaf", "kind", "label", "left", "right", "word")
    left: Tree  # None in a leaf, whose children must not be read
    right: Tree

    def __init__(
        self, label: int, word: int = -1, left: Tree | None = None, right: Tree | None = None, kind: int = 0
    ) -> None:
        self.label, self.word, self.kind = label, word, kind
        self.left, self.right = left, right  # type: ignore[assignment]
        self.is_leaf = left is None

    def nodes(self) -> Iterator[Tree]:
        """Every node, children before parents and left before right; without recursion, so depth does not matter."""
        stack: list[tuple[Tree, bool]] = [(self, False)]
        while stack:
            tree, is_expanded = stack.pop()
            if is_expanded or tree.is_leaf:
                yield tree
            else:
                stack += ((tree, True), (tree.right, False), (tree.left, False))


class Treebank(NamedTuple):
    """Trees, the vocabulary of their word ids, and where they are from, in words."""

    trees: list[Tree]
    vocabulary: Vocabulary
    source: str


def read_trees(
    path: str | os.PathLike[str], vocabulary: Vocabulary | None = None, limit: int | None = None
) -> Treebank:
    """Reads a file of trees.

    Args:
        path: A UTF-8 file, one s-expression a line.
        vocabulary: Gives the word ids, and unknown words become id 0; without it a vocabulary of all words is made.
        limit: Read only so many trees.

    Raises:
        DatasetError: The file cannot be read, or a line is not a tree; names the file, the line and what was expected.
    """
    id_of = Vocabulary() if vocabulary is None else vocabulary
    parse = partial(_parse, vocabulary=id_of, grow=vocabulary is None)
    return Treebank(parse_lines(path, "trees", parse, limit), id_of, str(path))


def load_trees(
    split: str,
    vocabulary: Vocabulary | None = None,
    folder: str | os.PathLike[str] | None = None,
    limit: int | None = None,
) -> Treebank:
    """The trees `<folder>/trees/<split>.txt`, or small generated ones that ship with edbatch; `source` says which.

    >>> bank = load_trees("dev")
    >>> bank.trees[0].is_leaf
    False

    Args:
        split: "train" or "dev".
        vocabulary: As for `read_trees`; give the train vocabulary when loading "dev".
        folder: Where the data is; by default the environment variable EDBATCH_DATA, and without that the shipped trees.
        limit: Read only so many trees.
    """
    if data_folder(folder) is not None:
        return read_trees(data_file(f"trees/{check_split(split)}.txt", folder, "random_trees"), vocabulary, limit)
    return shipped_trees(split, vocabulary, limit)


def shipped_trees(split: str, vocabulary: Vocabulary | None = None, limit: int | None = None) -> Treebank:
    """The small generated trees that ship with edbatch, 600 for training and 150 others; arguments as of `load_trees`.

    >>> len(shipped_trees("dev").trees)
    150
    """
    trees, vocabulary, _ = read_trees(SHIPPED / f"{check_split(split)}.txt", vocabulary, limit)
    return Treebank(trees, vocabulary, f"generated trees shipped with edbatch ({split})")


def with_kinds(trees: Iterable[Tree], seed: int) -> list[Tree]:
    """Copies of the trees in which a fair coin decides the kind of each internal node, 0 or 1; leaves have kind 0.

    >>> (tree,) = with_kinds([Tree(3, left=Tree(2, word=1), right=Tree(4, word=2))], seed=0)
    >>> [node.kind for node in tree.nodes()]
    [0, 0, 1]
    """
    dice = random.Random(seed)
    copies = []
    for tree in trees:
        parts: list[Tree] = []  # without recursion, so depth does not matter
        for node in tree.nodes():
            if node.is_leaf:
                parts.append(Tree(node.label, word=node.word))
            else:
                right, left = parts.pop(), parts.pop()
                parts.append(Tree(node.label, left=left, right=right, kind=dice.getrandbits(1)))
        copies += parts
    return copies


def _parse(line: str, vocabulary: Vocabulary, grow: bool) -> Tree:
    """One line's tree, by a stack of the nodes that are still open."""
    still_open: list[tuple[int, list[Tree | str]]] = []
    root: Tree | None = None
    tokens = iter(_TOKEN.findall(line))
    for token in tokens:
        if root is not None:
            raise DatasetError(f"expected nothing after the tree, found {token!r}")
        if token == "(":
            still_open.append((_parse_label(next(tokens, "")), []))
        elif not still_open:
            raise DatasetError(f"expected '(', found {token!r}")
        elif token == ")":
            node = _close(*still_open.pop(), vocabulary, grow)
            if still_open:
                still_open[-1][1].append(node)
            else:
                root = node
        else:
            still_open[-1][1].append(token)
    if root is None:
        raise DatasetError("expected ')', found the end of the line" if still_open else "expected a tree, found none")
    return root


def _parse_label(token: str) -> int:
    if token not in _LABEL_OF_TOKEN:
        found = repr(token) if token else "the end of the line"
        raise DatasetError(f"expected a label from 0 to {NUM_LABELS - 1} after '(', found {found}")
    return _LABEL_OF_TOKEN[token]


def _close(label: int, parts: list[Tree | str], vocabulary: Vocabulary, grow: bool) -> Tree:
    match parts:
        case [str(token)]:
            word = _WORD_OF_ESCAPE.get(token, token).replace("\\/", "/")
            return Tree(label, word=vocabulary.add(word) if grow else vocabulary[word])
        case [Tree() as left, Tree() as right]:
            return Tree(label, left=left, right=right)
    words = sum(isinstance(part, str) for part in parts)
    found = f"{words} words and {len(parts) - words} subtrees"
    raise DatasetError(f"expected one word or two subtrees before ')', found {found}")
