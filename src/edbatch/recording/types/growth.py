"""Notices types of nodes that keep growing in number from call to call, so that nothing runs together or is reused.

In: the names of the types that each call of a batched function had to capture. Out: what to do about it, in words, once
there were new ones in each of `CALLS` calls in a row.
"""

from __future__ import annotations

import re
from collections import Counter, deque

CALLS = 16  # in a row, each with new types: by then a program of any number of shapes has mostly seen them
_NUMBER = re.compile(r" #\d+$|(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?")
_SIZES = re.compile(r"(?<=\[)[\d,]+(?=\])|(?<=stack of )\d+")


class Growth:
    """The new types of the last calls of one batched function."""

    def __init__(self) -> None:
        self._calls: deque[list[str]] = deque(maxlen=CALLS)
        self._new: list[str] = []
        self._has_warned = False

    def note(self, name: str) -> None:
        """A type of this name was captured in the present call."""
        self._new.append(name)

    def end_call(self) -> str | None:
        """End a call of the batched function. Gives the report when it is due for the first time."""
        self._calls.append(self._new)
        self._new = []
        report = None if self._has_warned else self.report()
        self._has_warned = self._has_warned or report is not None
        return report

    def report(self) -> str | None:
        """What grows, why, and what to do about it; None while nothing does."""
        if len(self._calls) < CALLS or not all(self._calls):
            return None
        names = [name for names in self._calls for name in names]
        in_calls = Counter(pattern for names in self._calls for pattern in {_pattern(name) for name in names})
        pattern, _ = max(in_calls.items(), key=lambda item: item[1])
        alike = [name for name in names if _pattern(name) == pattern]
        return (
            f"each of the last {CALLS} calls had types of nodes that no call before had, {len(names)} in all, and each "
            f"takes time to capture: {len(alike)} are like {alike[-1]}{_why(alike)}"
        )


def _pattern(name: str) -> str:
    return _NUMBER.sub("#", _SIZES.sub("#", name)).removesuffix("#")


def _why(names: list[str]) -> str:
    """In what types that are alike differ, and what to do about it."""
    if len({re.sub(r" #\d+$", "", name) for name in names}) == 1:
        return (
            ". They differ in no more than the identity of a module, function or object: make it once, outside of the "
            "batched function, and not anew for every example or call; or in an attribute of a module, which changes "
            "from call to call: give it as an argument"
        )
    if len({_SIZES.sub("#", name) for name in names}) == 1:
        return ". They differ in sizes: torch.stack gives rows that run together whatever their number"
    return ". They differ in numbers that belong to the type: give them as tensors, or to a marked cell"
