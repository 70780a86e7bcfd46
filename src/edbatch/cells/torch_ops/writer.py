"""Python code while it is written: its lines, its local names, and the objects that it refers to."""

from __future__ import annotations

from typing import Any

_TAKEN = {"B", "N", "rows", "outs", "pro", "saved", "deferred", "sums", "out_grads", "given", "take"}


class Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {}  # the globals of the code
        self._num_names = 0

    def line(self, text: str) -> None:
        self.lines.append(text)

    def assign(self, text: str) -> str:
        """A new local name for the result of an expression."""
        name = f"t{self._num_names}"
        self._num_names += 1
        self.line(f"{name} = {text}")
        return name

    def object(self, thing: Any) -> str:
        """The name of an object in the globals; the same object always has the same name."""
        for name, known in self.namespace.items():
            if known is thing:
                return name
        base = str(getattr(thing, "__name__", "k")).replace(".", "_")
        base = base if base.isidentifier() and base not in _TAKEN else "k"
        name, number = base, 0
        while name in self.namespace:
            number += 1
            name = f"{base}{number}"
        self.namespace[name] = thing
        return name
