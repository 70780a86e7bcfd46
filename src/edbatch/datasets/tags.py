"""Tagged sentences: a file of `token|tag` lines comes in, `Sentence` objects and two vocabularies go out.

The format is WikiNER's, one sentence a line. Only an ASCII space separates tokens, and the tag of a token begins after
its last `|`. A line that is not such a sentence is an error, never skipped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from edbatch.datasets.files import DatasetError, check_split, data_file, parse_lines
from edbatch.datasets.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and tag ids, one tag for each word; a word is its id or, if spelled out, the ids of its characters."""

    words: tuple[int | tuple[int, ...], ...]
    tags: tuple[int, ...]


class TaggedText(NamedTuple):
    """Sentences, the vocabularies of their word ids and of their tag ids, and where they are from, in words."""

    sentences: list[Sentence]
    words: Vocabulary
    tags: Vocabulary
    source: str


def read_tags(
    path: str | os.PathLike[str],
    words: Vocabulary | None = None,
    tags: Vocabulary | None = None,
    limit: int | None = None,
) -> TaggedText:
    """Reads a file of tagged sentences.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "tags.txt").write_text("Ada|I-PER met|O Ada|I-PER")
    ...     text = read_tags(Path(folder, "tags.txt"))
    >>> text.sentences, text.tags.words
    ([Sentence(words=(1, 2, 1), tags=(1, 2, 1))], ['<unk>', 'I-PER', 'O'])

    Args:
        path: A UTF-8 file, one sentence a line.
        words: Gives the word ids, and unknown words become id 0; without it a vocabulary of all words is made.
        tags: Likewise for the tags.
        limit: Reads so many sentences from the start of the file; without it all.

    Raises:
        DatasetError: The file cannot be read, or a line is not a tagged sentence; names the file, the line and what
            was expected.
    """
    word_id_of = Vocabulary() if words is None else words
    tag_id_of = Vocabulary() if tags is None else tags
    word_id = word_id_of.add if words is None else word_id_of.__getitem__
    tag_id = tag_id_of.add if tags is None else tag_id_of.__getitem__

    def sentence(line: str) -> Sentence:
        pairs = [_split(token) for token in line.split(" ") if token]
        if not pairs:
            raise DatasetError("expected a sentence of token|tag, found none")
        return Sentence(tuple(word_id(word) for word, _ in pairs), tuple(tag_id(tag) for _, tag in pairs))

    return TaggedText(parse_lines(path, "tagged sentences", sentence, limit), word_id_of, tag_id_of, str(path))


def load_tags(
    split: str = "dev",
    words: Vocabulary | None = None,
    tags: Vocabulary | None = None,
    folder: str | os.PathLike[str] | None = None,
    limit: int | None = None,
) -> TaggedText:
    """The sentences `<folder>/tags/<split>.txt`.

    Args:
        split: "train" or "dev".
        words, tags, limit: As for `read_tags`.
        folder: Where the data is; by default the environment variable EDBATCH_DATA.

    Raises:
        DatasetError: As for `read_tags`, or there is no folder or no such file.
    """
    return read_tags(data_file(f"tags/{check_split(split)}.txt", folder, "random_sentences"), words, tags, limit)


def _split(token: str) -> tuple[str, str]:
    word, _, tag = token.rpartition("|")
    if not word or not tag:
        raise DatasetError(f"expected token|tag, found {token!r}")
    return word, tag
