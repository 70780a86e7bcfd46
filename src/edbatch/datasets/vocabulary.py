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
        """The word's id, a fresh one if the word is new."""
        id_ = self._id_of.setdefault(word, len(self.words))
        if id_ == len(self.words):
            self.words.append(word)
        return id_

    def __getitem__(self, word: str) -> int:
        return self._id_of.get(word, 0)

    def __len__(self) -> int:
        return len(self.words)


def numbering(items: Iterable[Item], at_least: int = 1, first: int = 1) -> dict[Item, int]:
    """The ids of the items that are there at least so often, from `first` on and by first appearance.

    What is below `first` is for items that have no id of their own, so ask with `.get(item, 0)`.

    >>> numbering("banana", at_least=2)
    {'a': 1, 'n': 2}
    """
    seen = [item for item, count in Counter(items).items() if count >= at_least]
    return {item: id_ for id_, item in enumerate(seen, start=first)}
