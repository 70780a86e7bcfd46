"""The reader takes exactly the format, and says where and why it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from edbatch.datasets import DatasetError, Tree, Vocabulary, load_trees, random_trees, read_trees
from edbatch.datasets.trees import format_tree


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
        ("(2 a\x85b)", ["a\x85b"]),  # a line break for str.splitlines, not for us
        ("(2 a\u2028b)", ["a\u2028b"]),
        ("  (2  (2 a)(2 b) ) ", ["a", "b"]),
        ("(2 a)\r", ["a"]),
    ],
)
def test_tokens(write, line, expected):
    trees, vocabulary, _ = read_trees(write(line + "\n"))
    assert [words(tree, vocabulary) for tree in trees] == [expected]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "expected a tree, found none"),
        ("2 a)", r"expected '\(', found '2'"),
        (") (2 a)", r"expected '\(', found '\)'"),
        ("(2 a", r"expected '\)', found the end of the line"),
        ("(3 (2 a) (2 b)", r"expected '\)', found the end of the line"),
        ("(", "expected a label from 0 to 4 after '\\(', found the end of the line"),
        ("(5 a)", "expected a label from 0 to 4 after '\\(', found '5'"),
        ("(good)", "expected a label from 0 to 4 after '\\(', found 'good'"),
        ("(2\ta)", "found '2\\\\ta'"),
        ("(² a)", "found '²'"),
        ("((2 a) (2 b))", "found '\\('"),
        ("(2)", "expected one word or two subtrees before '\\)', found 0 words and 0 subtrees"),
        ("(2 a b)", "found 2 words and 0 subtrees"),
        ("(2 (2 a))", "found 0 words and 1 subtrees"),
        ("(2 (2 a) b)", "found 1 words and 1 subtrees"),
        ("(2 (2 a) (2 b) (2 c))", "found 0 words and 3 subtrees"),
        ("(2 a) (2 b)", "expected nothing after the tree, found '\\('"),
        ("(2 a))", "expected nothing after the tree, found '\\)'"),
    ],
)
def test_malformed_line_is_named(write, line, message):
    with pytest.raises(DatasetError, match=rf"trees\.txt, line 2: .*{message}"):
        read_trees(write(f"(2 a)\n{line}\n(2 b)\n"))


def test_other_bad_files(write, tmp_path):
    with pytest.raises(DatasetError, match=r"line 1: expected trees, found an empty file"):
        read_trees(write(""))
    with pytest.raises(DatasetError, match=r"line 2: expected UTF-8 text"):
        read_trees(write(b"(2 a)\n(2 \xff)\n"))
    with pytest.raises(DatasetError, match=r"cannot read the trees in .*missing\.txt"):
        read_trees(tmp_path / "missing.txt")


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


def test_data_folder_is_used_and_named(monkeypatch, tmp_path):
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees" / "train.txt").write_text("(2 a)\n")
    monkeypatch.setenv("EDBATCH_DATA", str(tmp_path))
    assert load_trees("train").source == str(tmp_path / "trees" / "train.txt")
    with pytest.raises(DatasetError, match=r"dev\.txt is no file; give \(or set EDBATCH_DATA to\) a folder"):
        load_trees("dev")
    with pytest.raises(DatasetError, match='expected the split "train" or "dev", found \'test\''):
        load_trees("test")
    monkeypatch.setenv("EDBATCH_DATA", "/nowhere")
    assert len(load_trees("train", folder=tmp_path).trees) == 1
