"""Trees are read as they are, shipped, written and given kinds."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest
from tree_text import format_tree

from edbatch.datasets import Tree, Vocabulary, load_trees, random_trees, read_trees, with_kinds


@pytest.fixture
def write(tmp_path: Path):
    def write(content: str | bytes) -> Path:
        path = tmp_path / "trees.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def words(tree: Tree, vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.words[node.word] for node in tree.nodes() if node.is_leaf]


def test_reads_labels_words_and_shape(write):
    trees, vocabulary, source = read_trees(write("(1 (2 a) (0 (0 b) (2 a)))\n(3 c)\n"))
    root = trees[0]
    assert [node.label for node in root.nodes()] == [2, 0, 2, 0, 1]
    assert (root.is_leaf, root.left.is_leaf, root.right.is_leaf) == (False, True, False)
    assert root.left.word == root.right.right.word != root.right.left.word
    assert words(root, vocabulary) == ["a", "b", "a"]
    assert trees[1].is_leaf
    assert len(vocabulary) == 4
    assert source.endswith("trees.txt")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("(2 3\xa01\\/2)", ["3\xa01/2"]),  # a non-ASCII space does not separate
        ("(2 and\\/or)", ["and/or"]),
        ("(2 (2 -LRB-) (2 -RRB-))", ["(", ")"]),
        ("  (2  (2 a)(2 b) ) ", ["a", "b"]),
    ],
)
def test_tokens(write, line, expected):
    trees, vocabulary, _ = read_trees(write(line + "\n"))
    assert [words(tree, vocabulary) for tree in trees] == [expected]


def test_given_vocabulary_is_not_changed(write):
    vocabulary = Vocabulary(["a"])
    trees = read_trees(write("(2 (2 a) (2 b))\n"), vocabulary).trees
    assert [node.word for node in trees[0].nodes() if node.is_leaf] == [1, 0]
    assert len(vocabulary) == 2


def test_deep_trees_need_no_recursion(write):
    depth = 20_000
    text = "(2 (2 a) " * depth + "(2 b)" + ")" * depth
    trees, vocabulary, _ = read_trees(write(text))
    assert sum(1 for _ in trees[0].nodes()) == 2 * depth + 1
    assert format_tree(trees[0], vocabulary) == text


def test_formatted_trees_are_read_back(write):
    bank = random_trees(20, seed=3, num_words=500)
    lines = [format_tree(tree, bank.vocabulary) for tree in bank.trees]
    trees, vocabulary, _ = read_trees(write("\n".join(lines)))
    assert [format_tree(tree, vocabulary) for tree in trees] == lines


def test_shipped_trees_load(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)
    train = load_trees("train")
    dev = load_trees("dev", train.vocabulary)
    assert (len(train.trees), len(dev.trees)) == (600, 150)
    assert train.source == "generated trees shipped with edbatch (train)"
    known = [node.word > 0 for tree in dev.trees for node in tree.nodes() if node.is_leaf]
    assert sum(known) > 0.9 * len(known)


def test_kinds_are_fair_coins_of_internal_nodes_of_copies():
    bank = random_trees(100, seed=0)
    trees = with_kinds(bank.trees, seed=5)
    lines = [format_tree(tree, bank.vocabulary) for tree in bank.trees]
    assert [format_tree(tree, bank.vocabulary) for tree in trees] == lines
    assert {node.kind for tree in bank.trees for node in tree.nodes()} == {0}
    assert {node.kind for tree in trees for node in tree.nodes() if node.is_leaf} == {0}
    kinds = [[node.kind for node in tree.nodes() if not node.is_leaf] for tree in trees]
    assert mean(kind for tree in kinds for kind in tree) == pytest.approx(0.5, abs=0.03)
    again = with_kinds(bank.trees[:50], seed=5)
    assert [[node.kind for node in tree.nodes() if not node.is_leaf] for tree in again] == kinds[:50]
    other = with_kinds(bank.trees, seed=6)
    assert [[node.kind for node in tree.nodes() if not node.is_leaf] for tree in other] != kinds
