"""Translations are read as they are, with words outside the vocabularies as <unk>; generated ones can be learned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edbatch.datasets import DatasetError, Pair, Vocabulary, load_pairs, random_translations, read_pairs
from edbatch.datasets.synthetic.random_translations import dictionary
from edbatch.datasets.translations import MARKS


@pytest.fixture
def write(tmp_path: Path):
    def write(source: str, target: str) -> tuple[Path, Path]:
        paths = tmp_path / "file.en", tmp_path / "file.vi"
        for path, text in zip(paths, (source, target), strict=True):
            path.write_text(text, encoding="utf-8")
        return paths

    return write


def test_reads_pairs(write):
    bank = read_pairs(*write("thank you\n you  all \n", "cảm ơn\ntất cả\n"))
    assert bank.pairs == [Pair((3, 4, 2), (1, 3, 4, 2)), Pair((4, 5, 2), (1, 5, 6, 2))]
    assert bank.source_words.words == [*MARKS, "thank", "you", "all"]
    assert bank.target_words.words == [*MARKS, "cảm", "ơn", "tất", "cả"]
    assert "file.en and " in bank.source


def test_words_outside_given_vocabularies_are_unknown(write):
    source_words, target_words = Vocabulary([*MARKS, "a"]), Vocabulary([*MARKS, "x", "y"])
    bank = read_pairs(*write("a b\n", "y <unk> z\n"), source_words, target_words)
    assert bank.pairs == [Pair((3, 0, 2), (1, 4, 0, 0, 2))]
    assert (len(source_words), len(target_words)) == (4, 5)


def test_vocabulary_without_marks_is_refused(write):
    with pytest.raises(DatasetError, match=r"expected a vocabulary that begins with \('<unk>', '<s>', '</s>'\), found"):
        read_pairs(*write("a\n", "x\n"), Vocabulary(["a"]))


def test_limit_reads_the_first_pairs_but_counts_all(write):
    bank = read_pairs(*write("a\nb\n\n", "x\ny\n\n"), limit=2)
    assert len(bank.pairs) == 2
    assert bank.source_words.words == [*MARKS, "a", "b"]
    with pytest.raises(DatasetError, match=r"file\.vi, line 2: expected a sentence for each of the 3 lines of .*\.en"):
        read_pairs(*write("a\nb\nc\n", "x\n"), limit=1)


def test_generated_pairs_depend_on_the_seed_alone():
    assert random_translations(20, seed=7).pairs == random_translations(30, seed=7).pairs[:20]
    assert random_translations(20, seed=7).pairs != random_translations(20, seed=8).pairs


def test_generated_targets_follow_from_their_sources():
    words_of = dictionary()
    num_explained = 0
    for pair in random_translations(300, seed=3).pairs:
        if 0 not in pair.source:
            words = [word for id_ in pair.source[:-1] for word in words_of[id_ - len(MARKS)]] or [0]
            ids = [0 if id_ == 0 else word + len(MARKS) for word, id_ in zip(words, pair.target[1:-1], strict=True)]
            assert pair.target == (1, *ids, 2)
            num_explained += 1
    assert num_explained > 150


def test_generated_ids_fit_the_vocabularies():
    bank = random_translations(300, seed=0)
    for sides, vocabulary in (([pair.source for pair in bank.pairs], bank.source_words),
                              ([pair.target for pair in bank.pairs], bank.target_words)):  # fmt: skip
        assert tuple(vocabulary.words[:3]) == MARKS
        assert all(0 <= id_ < len(vocabulary) for side in sides for id_ in side)
        assert all(len(side) >= 2 and side[-1] == 2 and 2 not in side[:-1] for side in sides)


@pytest.mark.skipif(not os.environ.get("EDBATCH_DATA"), reason="EDBATCH_DATA does not name the folder of real data")
def test_unknown_words_are_those_of_the_capped_file():
    bank = load_pairs()
    assert (len(bank.pairs), len(bank.source_words), len(bank.target_words)) == (1553, 17191, 7709)
    capped = Path(os.environ["EDBATCH_DATA"], "iwslt15", "tst2012.en-vi.capped").read_text("utf-8").split("\n")[:-1]
    for pair, line in zip(bank.pairs, capped, strict=True):
        source, target = (side.split(" ") for side in line.split(" ||| "))
        assert [bank.source_words.words[id_] for id_ in pair.source] == source[1:]
        assert [bank.target_words.words[id_] for id_ in pair.target] == target
