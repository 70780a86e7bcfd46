"""The text of a generated kernel: for each row of the batch, loops over elements in stages.

In: lines of loops, and the memories, sizes and numbers that they use, which become parameters. Out: a
`GeneratedKernel`, the source of one numba function.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Any, NamedTuple

import torch

from edbatch.cells.fused.loops.pointwise import CASTS, number

INDEX_SCOPE, SCATTER_SCOPE, LAST_SCOPE = 63, 62, 61
# Of every kernel: the addresses of the batches' sizes, of their first own rows and of the index of rows to read, and
# how many numbers apart the starts of two batches in that index are.
FIRST_ARGUMENTS = 4


class RowMemory(NamedTuple):
    """Memory that a kernel reads or writes: rows of `width` elements.

    rows: where row r of the batch lies. "own": in row w + r (memory for all batches of the type); "local": in row r;
    "index": in row index[s + r]; "shared": there are no rows; "blocks": the first `width` elements of every row come
    first, then the next ones of every row, and so on.
    """

    name: str  # of the variable that holds its address
    rows: str
    width: int
    dtype: str
    start: str = ""  # for "index": the address of s, the begin of the first batch's rows in the index
    way: str = ""  # for gradients: the address of the first batch's ADD or STORE, see `layout.gradient_rows`


class GeneratedKernel(NamedTuple):
    """A generated kernel: its source, and the texts of its arguments.

    It is called with the number of a batch and the address of its arguments, which are int64 numbers: first
    `FIRST_ARGUMENTS` that say where the batches lie, then `arguments`. So arguments are written once per mini-batch,
    not once per launch.
    """

    source: str
    arguments: tuple[str, ...]


class Loop(NamedTuple):
    """A loop over elements j of a range. With `at`, the name of a variable, only over the element of that number, if it
    lies in the range. With `columns`, over lines i and columns k of a matrix, whose element (i, k) is j."""

    stage: int
    width: int
    at: str = ""
    begin: int = 0
    columns: int = 0


class KernelText:
    """Collects lines, then writes them."""

    def __init__(self) -> None:
        self.loops: dict[Loop, list[str]] = {}  # the lines inside
        self.before: dict[int, list[str]] = defaultdict(list)  # lines before the loops of a stage; `after`: behind them
        self.after: dict[int, list[str]] = defaultdict(list)
        self.known: dict[tuple[Loop, str], str] = {}  # (loop, expression) -> variable
        self.memories: dict[str, RowMemory] = {}
        self.numbers: dict[int, str] = {}
        self.floats: dict[tuple[int, int], tuple[str, float]] = {}  # (value, place among its operands) -> parameter
        self.scatters: set[str] = set()
        self.count = 0  # of variables

    @property
    def is_empty(self) -> bool:
        return not self.loops

    def _float(self, value: float, place: tuple[int, int], dtype: torch.dtype) -> str:
        """A parameter for a number in the body, so that no new kernel is compiled when the number changes."""
        if value in (0.0, 1.0):
            return self._constant(value, dtype)
        name, _ = self.floats.setdefault(place, (f"c{len(self.floats)}", value))
        return f"{CASTS[dtype]}({name})"

    def _constant(self, value: Any, dtype: torch.dtype) -> str:
        text = number(value, dtype)
        assert text is not None
        return text

    def _at(self, memory: RowMemory, begin: int, place: str = "j") -> str:
        row = "" if memory.rows == "shared" else f"row_{self._name(memory)} + "
        if memory.rows == "blocks":
            block, begin = divmod(begin, memory.width)
            row += f"{block} * B * {self._number(memory.width)} + " if block else ""
        shift = "" if begin == 0 else f"{self._number(begin)} + "
        return f"{row}{shift}{place}"

    def _variable(self, loop: Loop, text: str) -> str:
        if text.isidentifier():
            return text
        key = (loop, text)
        if key not in self.known:
            self.known[key] = self._new("e")
            self._line(loop, f"{self.known[key]} = {text}")
        return self.known[key]

    def _new(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count - 1}"

    def _name(self, memory: RowMemory) -> str:
        """The parameter for a memory. Memories are numbered, so that equal kernels of different cells have one text."""
        self.memories.setdefault(memory.name, memory)
        return f"m{list(self.memories).index(memory.name)}"

    def _way(self, memory: RowMemory) -> str:
        """The parameter that says whether gradients are added to this memory or stored."""
        return f"k{list(self.memories).index(memory.name)}"

    def _line(self, loop: Loop, text: str) -> None:
        self.loops.setdefault(loop, []).append(text)

    def _number(self, value: int) -> str:
        """A parameter for a size, so that cells of different sizes share a kernel."""
        return self.numbers.setdefault(value, f"n{len(self.numbers)}")

    def _scope(self, memory: RowMemory) -> int:
        if memory.name in self.scatters:
            return SCATTER_SCOPE
        return min(list(self.memories).index(memory.name), LAST_SCOPE)

    def kernel(self) -> GeneratedKernel:
        lines = []
        starts = list(dict.fromkeys(m.start for m in self.memories.values() if m.start))
        for memory in self.memories.values():
            name = self._name(memory)
            if memory.rows == "shared":
                continue
            row = {"own": "(w + r)", "local": "r", "blocks": "r"}.get(memory.rows)
            row = row or f"{_read('index', f's{starts.index(memory.start)} + r')}"
            lines.append(f"row_{name} = {row} * {self._number(memory.width)}")
        for stage in range(max(loop.stage for loop in self.loops) + 1):
            lines += self.before[stage]
            for loop, body in self.loops.items():
                if loop.stage == stage:
                    indent = "        " if loop.columns else "    "
                    lines += [*self._header(loop), *(f"{indent}{line}" for line in body)]
            lines += self.after[stage]
        given = {f"s{i}": start for i, start in enumerate(starts)}
        given |= {self._way(memory): memory.way for memory in self.memories.values() if memory.way}
        given |= {f"m{i}": name for i, name in enumerate(self.memories)}
        given |= {name: str(size) for size, name in self.numbers.items()}
        given |= {name: _bits(value) for name, value in self.floats.values()}
        head = [f"B, w, index = {_read(_read('p', 0), 'b')}, {_read(_read('p', 1), 'b')}, {_read('p', 2)}"]
        for at, name in enumerate(given, FIRST_ARGUMENTS):
            value = _read("p", at)
            value = _read(value, f"b * {_read('p', 3)}") if name[0] in "sk" else value
            head.append(f"{name} = {value.replace('i64', 'f64') if name[0] == 'c' else value}")
        inner = "\n        ".join(lines)
        outer = "\n    ".join([*head, "for r in range(B):"])
        return GeneratedKernel(f"def kernel(b, p):\n    {outer}\n        {inner}\n", tuple(given.values()))

    def _header(self, loop: Loop) -> list[str]:
        if loop.columns:
            high, wide = self._number(loop.width // loop.columns), self._number(loop.columns)
            return [f"for i in range({high}):", f"    for k in range({wide}):", f"        j = i * {wide} + k"]
        if not loop.at:
            return [f"for j in range({self._number(loop.width)}):"]
        end = self._number(loop.begin + loop.width)
        if loop.begin == 0:
            return [f"if {loop.at} < {end}:", f"    j = {loop.at}"]
        begin = self._number(loop.begin)
        return [f"if {begin} <= {loop.at} < {end}:", f"    j = {loop.at} - {begin}"]


def _read(address: str, at: int | str) -> str:
    return f"load_i64({address}, {at}, {INDEX_SCOPE})"


def _bits(value: float) -> str:
    return str(struct.unpack("q", struct.pack("d", value))[0])
