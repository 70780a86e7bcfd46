"""Tagged sentences are read as they are; generated sentences look like the real ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import mean, stdev

import pytest

from edbatch.datasets import Sentence, Vocabulary, random_sentences, read_tags


@pytest.fixture
def write(tmp_path: Path):
    def write(content: str | bytes) -> Path:
        path = tmp_path / "tags.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_reads_words_and_tags(write):
    sentences, words, tags, source = read_tags(write("a|O b|I-PER a|O\nc|I-PER\n"))
    assert sentences == [Sentence((1, 2, 1), (1, 2, 1)), Sentence((3,), (2,))]
    assert words.words == ["<unk>", "a", "b", "c"]
    assert tags.words == ["<unk>", "O", "I-PER"]
    assert source.endswith("tags.txt")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a|b|O", ["a|b"]),  # the last | begins the tag
        ("||O", ["|"]),
        ("a\tb|O", ["a\tb"]),  # only an ASCII space separates
        ("  a|O  b|O ", ["a", "b"]),
    ],
)
def test_tokens(write, line, expected):
    sentences, words, tags, _ = read_tags(write(line + "\n"))
    assert [[words.words[word] for word in sentence.words] for sentence in sentences] == [expected]
    assert tags.words == ["<unk>", "O"]


def test_given_vocabularies_are_not_changed(write):
    words, tags = Vocabulary(["a"]), Vocabulary(["O"])
    assert read_tags(write("b|O a|I-PER\n"), words, tags).sentences == [Sentence((0, 1), (1, 0))]
    assert (len(words), len(tags)) == (2, 2)


def test_limit_reads_the_first_sentences(write):
    text = read_tags(write("a|O\nb|O\nno sentence\n"), limit=2)
    assert len(text.sentences) == 2
    assert text.words.words == ["<unk>", "a", "b"]


def test_generated_sentences_depend_on_the_seed_alone():
    assert random_sentences(20, seed=7).sentences == random_sentences(20, seed=7).sentences
    assert random_sentences(20, seed=7).sentences == random_sentences(30, seed=7).sentences[:20]
    assert random_sentences(20, seed=7).sentences != random_sentences(20, seed=8).sentences


def test_generated_words_have_the_same_tag_for_every_seed():
    tag_of: dict[int, int] = {}
    for seed in (0, 1):
        for sentence in random_sentences(100, seed).sentences:
            for word, tag in zip(sentence.words, sentence.tags, strict=True):
                assert tag_of.setdefault(word, tag) == tag


def test_generated_statistics_are_roughly_those_of_the_real_sentences():
    sentences = random_sentences(2000, seed=0).sentences
    lengths = [len(sentence.words) for sentence in sentences]
    assert mean(lengths) == pytest.approx(23, abs=1)
    assert stdev(lengths) == pytest.approx(13.1, abs=1)
    assert min(lengths) >= 1
    counts = Counter(tag for sentence in sentences for tag in sentence.tags)
    real = {1: 0.835, 2: 0.05, 3: 0.042, 4: 0.037, 5: 0.036}
    assert {tag: count / counts.total() for tag, count in counts.items()} == pytest.approx(real, abs=0.02)


def test_generated_ids_fit_the_vocabularies():
    text = random_sentences(200, seed=0, num_words=30)
    ids = {word for sentence in text.sentences for word in sentence.words}
    assert min(ids) >= 1
    assert max(ids) < len(text.words) == 31
    assert {tag for sentence in text.sentences for tag in sentence.tags} == set(range(1, len(text.tags)))
    with pytest.raises(ValueError, match="num_words must be at least 30, not 29"):
        random_sentences(1, seed=0, num_words=29)
