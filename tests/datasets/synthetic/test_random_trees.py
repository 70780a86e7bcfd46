"""Generated trees are the same for the same seed, and look like the real ones."""

from __future__ import annotations

from collections import Counter
from statistics import mean, stdev

import pytest
from tree_text import format_tree

from edbatch.datasets import Tree, random_perfect_trees, random_trees


def lines(seed: int) -> list[str]:
    bank = random_trees(30, seed)
    return [format_tree(tree, bank.vocabulary) for tree in bank.trees]


def height(tree: Tree) -> int:
    return 1 if tree.is_leaf else 1 + max(height(tree.left), height(tree.right))


def test_seed_decides():
    assert lines(7) == lines(7)
    assert lines(7) != lines(8)


def test_words_mean_the_same_for_every_seed():
    label_of: dict[int, int] = {}
    for seed in (0, 1):
        for tree in random_trees(300, seed, num_words=1000).trees:
            for node in tree.nodes():
                if node.is_leaf:
                    assert label_of.setdefault(node.word, node.label) == node.label


def test_statistics_are_roughly_those_of_the_real_trees():
    trees = random_trees(2000, seed=0).trees
    lengths = [sum(node.is_leaf for node in tree.nodes()) for tree in trees]
    assert mean(lengths) == pytest.approx(19.1, abs=1)
    assert stdev(lengths) == pytest.approx(9.3, abs=1)
    assert (min(lengths), max(lengths)) == (2, 52)
    assert mean(map(height, trees)) == pytest.approx(10.8, abs=1)
    shares = Counter(node.label for tree in trees for node in tree.nodes())
    real = {0: 0.026, 1: 0.108, 2: 0.69, 3: 0.139, 4: 0.038}
    assert {label: count / shares.total() for label, count in shares.items()} == pytest.approx(real, abs=0.03)
    roots = Counter(tree.label for tree in trees)
    assert min(roots.values()) > 0.1 * len(trees)


def test_word_ids_fit_the_vocabulary():
    bank = random_trees(200, seed=0, num_words=70)
    ids = {node.word for tree in bank.trees for node in tree.nodes() if node.is_leaf}
    assert min(ids) >= 1
    assert max(ids) < len(bank.vocabulary) == 71
    with pytest.raises(ValueError, match="num_words must be above 60, not 60"):
        random_trees(1, seed=0, num_words=60)


def test_perfect_trees():
    bank = random_perfect_trees(60, seed=0, num_words=200)
    for tree in bank.trees:
        depth = height(tree)
        assert 2**depth == sum(1 for _ in tree.nodes()) + 1
    assert {height(tree) - 1 for tree in bank.trees} == {5, 6, 7}
    ids = {node.word for tree in bank.trees for node in tree.nodes() if node.is_leaf}
    assert (min(ids), max(ids), len(bank.vocabulary)) == (1, 200, 201)


def test_perfect_trees_follow_the_rule_of_labels():
    label_of = {node.word: node.label for tree in random_trees(300, 0, 200).trees for node in tree.nodes()}
    perfect = random_perfect_trees(20, seed=1, num_words=200).trees
    assert all(label_of[node.word] == node.label for tree in perfect for node in tree.nodes() if node.is_leaf)
    labels = Counter(node.label for tree in perfect for node in tree.nodes() if not node.is_leaf)
    assert set(labels) == set(range(5))


def test_seed_decides_on_perfect_trees():
    def lines(count: int, seed: int) -> list[str]:
        trees, vocabulary, _ = random_perfect_trees(count, seed)
        return [format_tree(tree, vocabulary) for tree in trees]

    assert lines(5, seed=7) == lines(6, seed=7)[:5]
    assert lines(5, seed=7) != lines(5, seed=8)
