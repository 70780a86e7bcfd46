"""The Python text of a fused program: a function `bind(x)` that returns a function `launch(b)`, which runs batch b.

In: lines and calls, one after the other. Out: the text. As much as possible is done once per mini-batch, in `bind`: it
sets variables from x, the `Binding` with the memory of the mini-batch, and writes the arguments of all calls of kernels
and products into one array of numbers. A launch is then only a few calls, each with the address of its arguments.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

from edbatch.cells.fused.loops.kernel_text import FIRST_ARGUMENTS
from edbatch.cells.torch_ops.writer import Writer


class BindText:
    def __init__(self) -> None:
        self.launch = Writer()
        self._variables: dict[str, str] = {}  # name -> the expression that `bind` sets it to
        self._calls: list[list[str]] = []  # the arguments of kernels and products, by call

    def bound(self, name: str, text: str) -> str:
        """A variable that is set once per mini-batch, in `bind`; one name always has the same text."""
        self._variables.setdefault(name, text)
        return name

    def call(self, function: str, arguments: Sequence[str]) -> None:
        """Adds a call of a kernel or of products. Arguments that depend on the batch are written in the launch."""
        later = {at: text for at, text in enumerate(arguments) if text.isidentifier() and text not in self._variables}
        first = sum(FIRST_ARGUMENTS + len(others) for others in self._calls) + FIRST_ARGUMENTS
        for at, text in later.items():
            self.launch.line(f"given[{first + at}] = {text}")
        self.launch.line(f"{function}(b, p{len(self._calls)})")
        self._calls.append(["0" if at in later else text for at, text in enumerate(arguments)])

    def source(self) -> str:
        """The whole text."""
        lines = self.launch.lines or ["pass"]
        if re.search(r"\b[Bw]\b", "\n".join(lines)):
            self._variables |= {"n": "x.sizes", "own": "x.own"}
            lines = ["B, w = n[b], own[b]", *lines]
        before = [f"{name} = {text}" for name, text in self._variables.items()]
        launch = ["def launch(b, memory=(x, given)):  # addresses keep nothing alive"]
        launch += [f"    {line}" for line in lines]
        return "\n    ".join(["def bind(x):", *before, *self._given(), *launch, "return launch\n"])

    def _given(self) -> list[str]:
        """Lines that write the arguments of all calls into an array, `given`."""
        if not self._calls:
            return ["given = ()"]
        first, addresses = 0, []
        for number, arguments in enumerate(self._calls):
            addresses.append(f"p{number} = p0 + {8 * first}" if number else "p0 = given.buffer_info()[0]")
            first += FIRST_ARGUMENTS + len(arguments)
        numbers = ", ".join(f"*head, {', '.join(arguments)}" for arguments in self._calls)
        return ["head = x.head", f"given = {self.launch.object(array)}('q', ({numbers}))", *addresses]
