"""Words and their ids."""

from __future__ import annotations

from collections.abc import Iterable


class Vocabulary:
    """Words and their ids; a word that is not known has the id 0.

    >>> vocabulary = Vocabulary(["good", "film"])
    >>> len(vocabulary), vocabulary["film"], vocabulary["fylm"]
    (3, 2, 0)
    """

    UNKNOWN = "<unk>"

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.words = [self.UNKNOWN]
        self._id_of = {self.UNKNOWN: 0}
        for word in words:
            self.add(word)

    def add(self, word: str) -> int:
        """The word's id, a fresh one if the word is new."""
        id_ = self._id_of.setdefault(word, len(self.words))
        if id_ == len(self.words):
            self.words.append(word)
        return id_

    def __getitem__(self, word: str) -> int:
        return self._id_of.get(word, 0)

    def __len__(self) -> int:
        return len(self.words)
