"""Translated sentences: two aligned files and two vocabularies come in, `Pair` objects go out.

The files are those of IWSLT: line i of the one is the translation of line i of the other, and only an ASCII space
separates tokens. A vocabulary is a file of one word a line that begins with `<unk>`, `<s>` and `</s>`. Anything else is
an error, never skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from edbatch.datasets.files import DatasetError, data_file, parse_each, parse_lines, read_lines
from edbatch.datasets.vocabulary import Vocabulary

START, END = "<s>", "</s>"
MARKS = (Vocabulary.UNKNOWN, START, END)  # the words 0, 1 and 2 of both languages


@dataclass(frozen=True, slots=True)
class Pair:
    """Word ids of a sentence and its translation: `source` is words and </s>, `target` is <s>, words and </s>."""

    source: tuple[int, ...]
    target: tuple[int, ...]


class Translations(NamedTuple):
    """Pairs, the vocabularies of their source and their target ids, and where they are from, in words."""

    pairs: list[Pair]
    source_words: Vocabulary
    target_words: Vocabulary
    source: str


def read_pairs(
    source_path: str | os.PathLike[str],
    target_path: str | os.PathLike[str],
    source_words: Vocabulary | None = None,
    target_words: Vocabulary | None = None,
    limit: int | None = None,
) -> Translations:
    """Reads two aligned files.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.en").write_text("thank you")
    ...     _ = Path(folder, "a.vi").write_text("cảm ơn", encoding="utf-8")
    ...     translations = read_pairs(Path(folder, "a.en"), Path(folder, "a.vi"))
    >>> translations.pairs, translations.target_words.words
    ([Pair(source=(3, 4, 2), target=(1, 3, 4, 2))], ['<unk>', '<s>', '</s>', 'cảm', 'ơn'])

    Args:
        source_path: A UTF-8 file, one sentence a line.
        target_path: Likewise, with the translation of each line.
        source_words: Gives the word ids of the source (see `read_vocabulary`), and other words are <unk>; without it a
            vocabulary of all words is made.
        target_words: Likewise for the target.
        limit: Reads so many pairs from the start of the files; without it all.

    Raises:
        DatasetError: A file cannot be read, a line is no sentence, or one file has more lines than the other; names the
            file, the line and what was expected.
    """
    source_lines, target_lines = read_lines(source_path, "sentences"), read_lines(target_path, "translations")
    if len(source_lines) != len(target_lines):
        ends = ((len(source_lines), source_path), (len(target_lines), target_path))
        (shorter, path), (longer, other) = sorted(ends, key=lambda end: end[0])
        raise DatasetError(
            f"{path}, line {shorter + 1}: expected a sentence for each of the {longer} lines of {other}, "
            "found the end of the file"
        )
    source_words, source_id = _vocabulary_and_ids(source_words)
    target_words, target_id = _vocabulary_and_ids(target_words)
    sources = parse_each(source_path, source_lines[:limit], partial(_parse, id_of=source_id))
    targets = parse_each(target_path, target_lines[:limit], partial(_parse, id_of=target_id))
    start, end = MARKS.index(START), MARKS.index(END)
    pairs = [Pair((*source, end), (start, *target, end)) for source, target in zip(sources, targets, strict=True)]
    return Translations(pairs, source_words, target_words, f"{source_path} and {target_path}")


def load_pairs(
    folder: str | os.PathLike[str] | None = None, name: str = "tst2012", limit: int | None = None
) -> Translations:
    """The pairs `<folder>/iwslt15/<name>.en` and `.vi` with the vocabularies `vocab.en` and `vocab.vi` beside them.

    Args:
        folder: Where the data is; by default the environment variable EDBATCH_DATA.
        name: Which files.
        limit: As for `read_pairs`.

    Raises:
        DatasetError: As for `read_pairs` and `read_vocabulary`, or there is no folder or no such file.
    """
    source, target, source_words, target_words = (
        data_file(f"iwslt15/{file}", folder, "random_translations")
        for file in (f"{name}.en", f"{name}.vi", "vocab.en", "vocab.vi")
    )
    return read_pairs(source, target, read_vocabulary(source_words), read_vocabulary(target_words), limit)


def read_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """Reads a file of one word a line, whose ids are the numbers of their lines, counted from 0.

    Raises:
        DatasetError: The file cannot be read, does not begin with <unk>, <s> and </s>, or a line is not one new word;
            names the file, the line and what was expected.
    """
    vocabulary = Vocabulary()
    line_of: dict[str, int] = {}

    def parse(word: str) -> None:
        number = len(line_of) + 1
        if number <= len(MARKS) and word != MARKS[number - 1]:
            raise DatasetError(f"expected {MARKS[number - 1]!r}, found {word!r}")
        if not word or " " in word:
            raise DatasetError(f"expected one word, found {word!r}")
        if word in line_of:
            raise DatasetError(f"expected another word than {word!r}, which is on line {line_of[word]} already")
        line_of[word] = number
        vocabulary.add(word)

    parse_lines(path, "words", parse)
    if len(line_of) < len(MARKS):
        raise DatasetError(
            f"{path}, line {len(line_of) + 1}: expected {MARKS[len(line_of)]!r}, found the end of the file"
        )
    return vocabulary


def _vocabulary_and_ids(vocabulary: Vocabulary | None) -> tuple[Vocabulary, Callable[[str], int]]:
    """A vocabulary, and the function from words to ids: the given one, which stays as it is, or a new one, to which
    words are added."""
    if vocabulary is None:
        vocabulary = Vocabulary(MARKS)
        return vocabulary, vocabulary.add
    if tuple(vocabulary.words[: len(MARKS)]) != MARKS:
        raise DatasetError(f"expected a vocabulary that begins with {MARKS}, found {vocabulary.words[: len(MARKS)]}")
    return vocabulary, vocabulary.__getitem__


def _parse(line: str, id_of: Callable[[str], int]) -> tuple[int, ...]:
    words = [word for word in line.split(" ") if word]
    if not words:
        raise DatasetError("expected a sentence, found none")
    for mark in (START, END):
        if mark in words:
            raise DatasetError(f"expected a sentence without marks, found {mark!r}")
    return tuple(map(id_of, words))
