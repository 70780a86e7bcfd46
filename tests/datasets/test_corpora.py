"""Every corpus fits the sizes that it gives to models, is numbered by its training part, and can do without data."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edbatch.datasets import DatasetError, Pair, Sentence, corpora, random_lattices
from edbatch.datasets.corpora import Corpus

CORPORA = {
    "trees": corpora.trees,
    "two_type_trees": corpora.two_type_trees,
    "tagged_sentences": corpora.tagged_sentences,
    "spelled_sentences": corpora.spelled_sentences,
    "translations": corpora.translations,
    "lattices": corpora.lattices,
    "perfect_trees": corpora.perfect_trees,
    "triangles": corpora.triangles,
    "grids1": partial(corpora.grids, dims=1),
    "grids2": partial(corpora.grids, dims=2),
    "grids3": partial(corpora.grids, dims=3),
    "dags": corpora.dags,
    "questions": corpora.questions,
}
every_corpus = pytest.mark.parametrize("name", CORPORA)
needs_data = pytest.mark.skipif(not os.environ.get("EDBATCH_DATA"), reason="EDBATCH_DATA names no folder of real data")


def numbers(name: str, example: Any) -> Iterator[tuple[str, int]]:
    """Every id and label of an example, with the name of the size that it must be below."""
    match name.rstrip("123"):
        case "trees" | "two_type_trees" | "perfect_trees":
            yield from (("words", node.word) for node in example.nodes() if node.is_leaf)
            yield from (("classes", node.label) for node in example.nodes())
        case "tagged_sentences" | "spelled_sentences":
            yield from (("words", word) for word in example.words if isinstance(word, int))
            yield from (("chars", char) for word in example.words if isinstance(word, tuple) for char in word)
            yield from (("tags", tag) for tag in example.tags)
        case "translations":
            yield from (("source_words", word) for word in example.source)
            yield from (("target_words", word) for word in example.target)
        case "lattices":
            for node, arcs in enumerate(example.arcs):
                yield from (("chars" if source == node - 1 else "words", token) for source, token in arcs)
            yield from (("tags", tag) for tag in example.tags)
        case "dags":
            yield from (("tokens", token) for arcs in example.arcs for _, _, token in arcs)
            yield from (("tags", tag) for tag in example.tags)
        case "triangles" | "grids":
            yield from (("words", word) for word in example.words)
            yield "classes", example.label
        case "questions":
            parts = [example.program]
            for part in parts:
                parts += getattr(part, "arguments", ())
            yield from (("modules", part.module) for part in parts if hasattr(part, "module"))
            yield from (("features", len(feature) - 1) for feature in example.features)
            yield "classes", example.label


def check(name: str, corpus: Corpus) -> None:
    """Every number of the corpus is below its size; where ids are numbered by training, all of them are used there."""
    used: dict[str, set[int]] = {size: set() for size in corpus.sizes}
    for example in corpus.train:
        for size, number in numbers(name, example):
            used[size].add(number)
    for size, ids in used.items():
        if name in ("trees", "two_type_trees", "tagged_sentences", "spelled_sentences", "translations", "lattices"):
            assert set(range(3, corpus.sizes[size])) <= ids, size
        assert 0 <= min(ids) <= max(ids) < corpus.sizes[size]
    for example in corpus.dev:
        assert all(0 <= number < corpus.sizes[size] for size, number in numbers(name, example))
    assert corpus.source


def plain(name: str, corpus: Corpus) -> list[list[tuple[str, int]]]:
    return [list(numbers(name, example)) for example in [*corpus.train, *corpus.dev]]


@every_corpus
def test_generated(monkeypatch, name):
    monkeypatch.setenv("EDBATCH_DATA", "/nowhere")  # for the caller to look at
    corpus = CORPORA[name](None)
    check(name, corpus)
    assert "generated" in corpus.source
    expected = {"trees": (600, 150), "two_type_trees": (600, 150), "dags": (300, 30)}
    assert (len(corpus.train), len(corpus.dev)) == expected.get(name, (1000, 100))


@every_corpus
def test_limit_keeps_the_first(name):
    small, smaller = CORPORA[name](None, seed=3, limit=20), CORPORA[name](None, seed=3, limit=5)
    check(name, smaller)
    assert (len(smaller.train), len(smaller.dev)) == (5, 5)
    lengths = [len(list(numbers(name, example))) for example in small.train]
    if name != "spelled_sentences":  # there other words are spelled
        assert [len(list(numbers(name, example))) for example in smaller.train] == lengths[:5]
    assert all(size <= small.sizes[kind] for kind, size in smaller.sizes.items())
    with pytest.raises(DatasetError, match="limit must be at least 1, not 0"):
        CORPORA[name](None, limit=0)


def digest() -> str:
    texts = [str(plain(name, corpus(None, 1, 10))) for name, corpus in CORPORA.items()]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def test_data_is_the_same_in_every_process():
    code = "from test_corpora import digest; print(digest())"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "PYTHONHASHSEED": "5"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest()


@pytest.mark.parametrize("name", [name for name in CORPORA if name != "trees"])
def test_seed_matters(name):
    first, second = CORPORA[name](None, 1, 10), CORPORA[name](None, 2, 10)
    if name == "two_type_trees":
        kinds = [[node.kind for tree in corpus.train for node in tree.nodes()] for corpus in (first, second)]
        assert kinds[0] != kinds[1]
    else:
        assert plain(name, first) != plain(name, second)


@pytest.fixture
def folder(tmp_path: Path):
    (tmp_path / "tags").mkdir()
    (tmp_path / "tags" / "dev.txt").write_text("".join(f"the|O w{number}|I-PER\n" for number in range(20)))
    return tmp_path


def test_a_tenth_of_the_sentences_is_held_out(folder):
    corpus = corpora.tagged_sentences(folder)
    assert (len(corpus.train), len(corpus.dev)) == (18, 2)
    assert set(corpus.train) == set(corpus.dev) == {Sentence((1, 0), (1, 2))}  # every name is seen once
    assert corpus.sizes == {"words": 2, "tags": 3}
    assert corpus.source == f"{folder}/tags/dev.txt; a random tenth held out, seed 0"
    assert len(corpora.tagged_sentences(folder, limit=7).train) == 7
    (folder / "tags" / "dev.txt").write_text("".join("a|O " * number + "b|O\n" for number in range(20)))
    dev = corpora.tagged_sentences(folder).dev
    assert corpora.tagged_sentences(folder, seed=9).dev == dev != corpora.tagged_sentences(folder, split_seed=1).dev


def test_rare_words_are_spelled(folder):
    (folder / "tags" / "train.txt").write_text("ab|O ab|O ab|O ab|O c|X\n" * 2 + "c|O c|O\n")
    (folder / "tags" / "dev.txt").write_text("ab|O c|X ad|Y\n")
    spelled = corpora.spelled_sentences(folder)
    assert (len(spelled.train), spelled.sizes) == (3, {"words": 2, "chars": 2, "tags": 3})
    assert spelled.train[0] == Sentence((1, 1, 1, 1, (1,)), (1, 1, 1, 1, 2))
    assert spelled.dev == [Sentence((1, (1,), (0, 0)), (1, 2, 0))]
    assert corpora.tagged_sentences(folder).dev == [Sentence((1, 2, 0), (1, 2, 0))]


def test_one_sentence_cannot_be_split(folder):
    (folder / "tags" / "dev.txt").write_text("a|O\n")
    with pytest.raises(DatasetError, match="expected at least 2 examples, so that one can be held out, found 1"):
        corpora.tagged_sentences(folder)


def test_translations_are_numbered_by_training(tmp_path):
    (tmp_path / "iwslt15").mkdir()
    texts = {"vocab.en": "<unk> <s> </s> a b c", "vocab.vi": "<unk> <s> </s> x y z"}
    texts |= {"train.en": "c a", "train.vi": "z q", "tst2012.en": "a b c", "tst2012.vi": "x y z"}
    for file, words in texts.items():
        (tmp_path / "iwslt15" / file).write_text(words.replace(" ", "\n"))
    corpus = corpora.translations(tmp_path)
    assert corpus.sizes == {"source_words": 5, "target_words": 4}
    assert corpus.train == [Pair((3, 2), (1, 3, 2)), Pair((4, 2), (1, 0, 2))]
    assert corpus.dev == [Pair((4, 2), (1, 0, 2)), Pair((0, 2), (1, 0, 2)), Pair((3, 2), (1, 3, 2))]


def test_lattices_are_numbered_by_training(tmp_path):
    (tmp_path / "lattice").mkdir()
    (tmp_path / "lattice" / "train.txt").write_text("1\n3\n0 5 6\n0\n1 0 70\n2 1 80 0 70\n")
    (tmp_path / "lattice" / "dev.txt").write_text("1\n3\n0 6 9\n0\n1 0 80\n2 1 90 0 99\n")
    corpus = corpora.lattices(tmp_path)
    assert corpus.sizes == {"chars": 3, "words": 2, "tags": 4}
    assert corpus.train[0].arcs == ((), ((0, 1),), ((1, 2), (0, 1)))
    assert corpus.dev[0].arcs == ((), ((0, 2),), ((1, 0), (0, 0)))
    assert (corpus.train[0].tags, corpus.dev[0].tags) == ((1, 2, 3), (1, 3, 0))


def test_generated_dev_examples_do_not_depend_on_the_limit():
    lattices = random_lattices(120, seed=0).lattices
    for limit in (3, 20):
        corpus = corpora.lattices(None, limit=limit)
        assert [len(lattice.tags) for lattice in corpus.dev] == [len(lattice.tags) for lattice in lattices[:limit]]
        expected = [len(lattice.tags) for lattice in lattices[100 : 100 + limit]]
        assert [len(lattice.tags) for lattice in corpus.train] == expected


@needs_data
@pytest.mark.parametrize(
    ("name", "lengths", "sizes"),
    [
        ("trees", (8550, 1107), {"words": 18284, "classes": 5}),
        ("two_type_trees", (8550, 1107), {"words": 18284, "classes": 5}),
        ("tagged_sentences", (1527, 169), {"words": 3200, "tags": 6}),
        ("spelled_sentences", (1527, 169), {"words": 986, "chars": 142, "tags": 6}),
        ("translations", (1398, 155), {"source_words": 3011, "target_words": 2176}),
        ("lattices", (1147, 113), {"chars": 2208, "words": 10082, "tags": 19}),
    ],
)
def test_real(name, lengths, sizes):
    folder = Path(os.environ["EDBATCH_DATA"])
    corpus = CORPORA[name](folder)
    assert ((len(corpus.train), len(corpus.dev)), corpus.sizes) == (lengths, sizes)
    assert str(folder) in corpus.source
    check(name, corpus)
    check(name, CORPORA[name](folder, limit=8))


@needs_data
def test_no_tag_of_the_real_lattices_is_unseen_but_tokens_are():
    dev = corpora.lattices(Path(os.environ["EDBATCH_DATA"])).dev
    unseen = [size for lattice in dev for size, number in numbers("lattices", lattice) if number == 0]
    assert {size: unseen.count(size) for size in ("chars", "words", "tags")} == {"chars": 93, "words": 1159, "tags": 0}
