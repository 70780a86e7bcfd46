"""Words and their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)


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
        """The word's id; a new word gets the next id."""
        id_ = self._id_of.setdefault(word, len(self.words))
        if id_ == len(self.words):
            self.words.append(word)
        return id_

    def __getitem__(self, word: str) -> int:
        return self._id_of.get(word, 0)

    def __len__(self) -> int:
        return len(self.words)


def numbering(items: Iterable[Item], at_least: int = 1, first: int = 1) -> dict[Item, int]:
    """Ids for the items that occur at least `at_least` times, from `first` on, in order of first appearance.

    Ids below `first` are for items without an id of their own, so look up with `.get(item, 0)`.

    >>> numbering("banana", at_least=2)
    {'a': 1, 'n': 2}
    """
    seen = [item for item, count in Counter(items).items() if count >= at_least]
    return {item: id_ for id_, item in enumerate(seen, start=first)}
