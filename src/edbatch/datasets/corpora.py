"""What models are trained and tested on: a folder of real data, or none, comes in; a `Corpus` goes out.

One function for each kind of data, all of the form `(folder, seed, limit)`:

* `folder` holds the real data; without it (None) the data is generated, or ships with edbatch. There is no real data of
  perfect trees, triangles, grids, dags and questions. EDBATCH_DATA is not read here; the caller does that.
* `seed` is for generated data. Which examples of real data are held out depends only on `split_seed`.
* `limit` keeps the first so many training examples, and at most as many of the others.

Ids of words, characters and tags are numbered as they occur in the training examples; 0 is for those that do not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from edbatch.datasets.files import DatasetError
from edbatch.datasets.lattices import Lattice, load_lattices
from edbatch.datasets.programs import NUM_ANSWERS, NUM_FEATURES, NUM_MODULES, random_questions
from edbatch.datasets.synthetic.random_dags import NUM_TAGS, NUM_TOKENS, random_dags
from edbatch.datasets.synthetic.random_grids import NUM_CLASSES, NUM_WORDS, random_grids, random_triangles
from edbatch.datasets.synthetic.random_lattices import random_lattices
from edbatch.datasets.synthetic.random_sentences import random_sentences
from edbatch.datasets.synthetic.random_translations import random_translations
from edbatch.datasets.synthetic.random_trees import random_perfect_trees
from edbatch.datasets.tags import Sentence, TaggedText, load_tags
from edbatch.datasets.translations import MARKS, Pair, load_pairs
from edbatch.datasets.trees import NUM_LABELS, load_trees, shipped_trees, with_kinds
from edbatch.datasets.vocabulary import numbering

SPLIT_SEED = 0  # decides what is held out, where real data has no split of its own; reported results use it
NUM_TRAIN, NUM_DEV = 1_000, 100  # generated examples
NUM_TRAIN_DAGS, NUM_DEV_DAGS = 300, 30  # fewer, since these are large

_HELD_OUT = "a random tenth held out, seed"
_MIN_COUNT = 2  # a word seen only once is unknown, so that the unknown word is trained too
_MIN_COUNT_SPELLED = 5  # a word seen less often is spelled out

Example = TypeVar("Example")
Split = tuple[Sequence[Example], Sequence[Example]]
Spelling = tuple[Sequence[str], Sequence[str]]  # the words and the tags of a sentence


@dataclass(frozen=True)
class Corpus:
    """Training examples and others, the sizes that a model for them needs, and, in words, where they are from."""

    train: Sequence[Any]
    dev: Sequence[Any]
    sizes: dict[str, int]
    source: str


def trees(folder: Path | None, seed: int = 0, limit: int | None = None) -> Corpus:
    """Sentiment trees (`Tree`), labelled at every node; without a folder those that ship with edbatch.

    >>> corpus = trees(None, limit=10)
    >>> len(corpus.train), len(corpus.dev), corpus.sizes
    (10, 10, {'words': 147, 'classes': 5})
    """
    _check(limit)
    if folder is None:
        train = shipped_trees("train", limit=limit)
        dev = shipped_trees("dev", train.vocabulary, limit)
    else:
        train = load_trees("train", folder=folder, limit=limit)
        dev = load_trees("dev", train.vocabulary, folder, limit)
    sizes = {"words": len(train.vocabulary), "classes": NUM_LABELS}
    return Corpus(train.trees, dev.trees, sizes, f"{train.source}; {dev.source}")


def two_type_trees(folder: Path | None, seed: int = 0, limit: int | None = None) -> Corpus:
    """The trees of `trees` with a kind, 0 or 1, at each internal node; the seed decides on it for real data, too."""
    corpus = trees(folder, seed, limit)
    train, dev = with_kinds(corpus.train, seed), with_kinds(corpus.dev, seed + 1)
    return Corpus(train, dev, corpus.sizes, f"{corpus.source}; kinds of nodes by seed {seed}")


def tagged_sentences(
    folder: Path | None, seed: int = 0, limit: int | None = None, *, split_seed: int = SPLIT_SEED
) -> Corpus:
    """Tagged sentences (`Sentence`) whose words are ids; a word seen only once in training is unknown."""
    (train, dev), source = _spelled_texts(folder, seed, limit, split_seed)
    word_ids = numbering((word for words, _ in train for word in words), _MIN_COUNT)
    tag_ids = numbering(tag for _, tags in train for tag in tags)

    def sentence(words: Sequence[str], tags: Sequence[str]) -> Sentence:
        return Sentence(tuple(word_ids.get(word, 0) for word in words), tuple(tag_ids.get(tag, 0) for tag in tags))

    sizes = {"words": 1 + len(word_ids), "tags": 1 + len(tag_ids)}
    return Corpus([sentence(*text) for text in train], [sentence(*text) for text in dev], sizes, source)


def spelled_sentences(
    folder: Path | None, seed: int = 0, limit: int | None = None, *, split_seed: int = SPLIT_SEED
) -> Corpus:
    """Tagged sentences whose words are ids, or tuples of character ids if seen fewer than 5 times in training."""
    (train, dev), source = _spelled_texts(folder, seed, limit, split_seed)
    word_ids = numbering((word for words, _ in train for word in words), _MIN_COUNT_SPELLED)
    char_ids = numbering(char for words, _ in train for word in words if word not in word_ids for char in word)
    tag_ids = numbering(tag for _, tags in train for tag in tags)

    def word_id(word: str) -> int | tuple[int, ...]:
        return word_ids[word] if word in word_ids else tuple(char_ids.get(char, 0) for char in word)

    def sentence(words: Sequence[str], tags: Sequence[str]) -> Sentence:
        return Sentence(tuple(map(word_id, words)), tuple(tag_ids.get(tag, 0) for tag in tags))

    sizes = {"words": 1 + len(word_ids), "chars": 1 + len(char_ids), "tags": 1 + len(tag_ids)}
    return Corpus([sentence(*text) for text in train], [sentence(*text) for text in dev], sizes, source)


def translations(
    folder: Path | None, seed: int = 0, limit: int | None = None, *, split_seed: int = SPLIT_SEED
) -> Corpus:
    """Sentences and their translations (`Pair`); ids 0, 1 and 2 are <unk>, <s> and </s>."""
    if folder is None:
        train, dev = _generated(lambda count: random_translations(count, seed).pairs, limit)
        source = f"generated translations, seed {seed}"
    elif (folder / "iwslt15" / "train.en").is_file():
        bank, other = load_pairs(folder, "train", _check(limit)), load_pairs(folder, limit=limit)
        train, dev, source = bank.pairs, other.pairs, f"{bank.source}; {other.source}"
    else:
        bank = load_pairs(folder)
        train, dev = _hold_out(bank.pairs, limit, split_seed)
        source = f"{bank.source}; {_HELD_OUT} {split_seed}"
    marks = range(len(MARKS))
    source_ids = {mark: mark for mark in marks}
    target_ids = dict(source_ids)
    source_ids |= numbering((id_ for pair in train for id_ in pair.source if id_ not in marks), first=len(MARKS))
    target_ids |= numbering((id_ for pair in train for id_ in pair.target if id_ not in marks), first=len(MARKS))

    def pair(old: Pair) -> Pair:
        return Pair(tuple(source_ids.get(id_, 0) for id_ in old.source),
                    tuple(target_ids.get(id_, 0) for id_ in old.target))  # fmt: skip

    sizes = {"source_words": len(source_ids), "target_words": len(target_ids)}
    return Corpus(list(map(pair, train)), list(map(pair, dev)), sizes, source)


def lattices(folder: Path | None, seed: int = 0, limit: int | None = None) -> Corpus:
    """Word lattices (`Lattice`); characters, words and tags have a numbering each."""
    if folder is None:
        train, dev = _generated(lambda count: random_lattices(count, seed).lattices, limit)
        source = f"generated lattices, seed {seed}"
    else:
        bank, other = load_lattices("train", folder, _check(limit)), load_lattices("dev", folder, limit)
        train, dev, source = bank.lattices, other.lattices, f"{bank.source}; {other.source}"
    tokens = [
        (start == i - 1, token) for lattice in train for i, arcs in enumerate(lattice.arcs) for start, token in arcs
    ]
    char_ids = numbering(token for is_char, token in tokens if is_char)
    word_ids = numbering(token for is_char, token in tokens if not is_char)
    tag_ids = numbering(tag for lattice in train for tag in lattice.tags)

    def renumbered(lattice: Lattice) -> Lattice:
        arcs = (
            tuple((start, (char_ids if start == i - 1 else word_ids).get(token, 0)) for start, token in arcs)
            for i, arcs in enumerate(lattice.arcs)
        )
        return Lattice(tuple(tag_ids.get(tag, 0) for tag in lattice.tags), tuple(arcs))

    sizes = {"chars": 1 + len(char_ids), "words": 1 + len(word_ids), "tags": 1 + len(tag_ids)}
    return Corpus(list(map(renumbered, train)), list(map(renumbered, dev)), sizes, source)


def perfect_trees(folder: Path | None, seed: int = 0, limit: int | None = None) -> Corpus:
    """Trees (`Tree`) whose leaves are all at one depth, 5 to 7 below the root; always generated."""
    train, dev = _generated(lambda count: random_perfect_trees(count, seed, NUM_WORDS).trees, limit)
    return Corpus(train, dev, {"words": 1 + NUM_WORDS, "classes": NUM_LABELS}, f"generated perfect trees, seed {seed}")


def triangles(folder: Path | None, seed: int = 0, limit: int | None = None) -> Corpus:
    """Triangles of words (`Triangle`); always generated."""
    train, dev = _generated(lambda count: random_triangles(count, seed), limit)
    return Corpus(train, dev, {"words": NUM_WORDS, "classes": NUM_CLASSES}, f"generated triangles, seed {seed}")


def grids(folder: Path | None, seed: int = 0, limit: int | None = None, *, dims: int) -> Corpus:
    """Grids of words (`Grid`) of 1, 2 or 3 dimensions; always generated."""
    train, dev = _generated(lambda count: random_grids(count, seed, dims), limit)
    sizes = {"words": NUM_WORDS, "classes": NUM_CLASSES}
    return Corpus(train, dev, sizes, f"generated {dims}-dimensional grids, seed {seed}")


def dags(folder: Path | None, seed: int = 0, limit: int | None = None) -> Corpus:
    """Graphs of 200 states (`Dag`); always generated."""
    train, dev = _generated(lambda count: random_dags(count, seed), limit, NUM_TRAIN_DAGS, NUM_DEV_DAGS)
    return Corpus(train, dev, {"tokens": NUM_TOKENS, "tags": NUM_TAGS}, f"generated dags, seed {seed}")


def questions(folder: Path | None, seed: int = 0, limit: int | None = None) -> Corpus:
    """Programs with features and an answer (`Question`); always generated."""
    train, dev = _generated(lambda count: random_questions(count, seed), limit)
    sizes = {"modules": NUM_MODULES, "features": NUM_FEATURES, "classes": NUM_ANSWERS}
    return Corpus(train, dev, sizes, f"generated questions, seed {seed}")


def _check(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise DatasetError(f"limit must be at least 1, not {limit}")
    return limit


def _generated(
    examples: Callable[[int], Sequence[Example]],
    limit: int | None,
    num_train: int = NUM_TRAIN,
    num_dev: int = NUM_DEV,
) -> Split[Example]:
    """Generated examples, of which the first are for testing, so that these do not change with the limit."""
    generated = examples(num_dev + (_check(limit) or num_train))
    return generated[num_dev:], generated[:num_dev][:limit]


def _hold_out(examples: Sequence[Example], limit: int | None, seed: int) -> Split[Example]:
    """All but a random tenth of the examples, and that tenth, both in the order of the file."""
    _check(limit)
    if len(examples) < 2:
        raise DatasetError(f"expected at least 2 examples, so that one can be held out, found {len(examples)}")
    is_out = set(random.Random(seed).sample(range(len(examples)), max(len(examples) // 10, 1)))
    train = [example for number, example in enumerate(examples) if number not in is_out]
    dev = [example for number, example in enumerate(examples) if number in is_out]
    return train[:limit], dev[:limit]


def _spelled_texts(folder: Path | None, seed: int, limit: int | None, split_seed: int) -> tuple[Split[Spelling], str]:
    """The words and tags of the training sentences and of the others, and where they are from."""
    if folder is None:
        split = _generated(lambda count: _spell(random_sentences(count, seed)), limit)
        return split, f"generated sentences, seed {seed}"
    if (folder / "tags" / "train.txt").is_file():
        text = load_tags("train", folder=folder, limit=_check(limit))
        other = load_tags("dev", folder=folder, limit=limit)
        return (_spell(text), _spell(other)), f"{text.source}; {other.source}"
    text = load_tags("dev", folder=folder)
    return _hold_out(_spell(text), limit, split_seed), f"{text.source}; {_HELD_OUT} {split_seed}"


def _spell(text: TaggedText) -> list[Spelling]:
    word_of, tag_of = text.words.words, text.tags.words
    return [
        ([word_of[word] for word in cast(tuple[int, ...], sentence.words)], [tag_of[tag] for tag in sentence.tags])
        for sentence in text.sentences
    ]
