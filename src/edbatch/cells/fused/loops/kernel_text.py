"""The text of a generated kernel: loops in stages, and the parameters that its lines name.

In: lines, and the memories, sizes and numbers they use. Out: a `Kernel`, the source of one numba function.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Any, NamedTuple

import torch

from edbatch.cells.fused.loops.pointwise import CASTS, number

INDEX_SCOPE, SCATTER_SCOPE, LAST_SCOPE = 63, 62, 61
FIRST_ARGUMENTS = 4  # the addresses of the batches' sizes, first own rows and of all planned rows; the step of starts


class Memory(NamedTuple):
    """Rows of elements that a kernel reads or writes.

    rows: "own" (row w + r of the type's own range), "local" (row r), "index" (row index[s + r]), "shared" (no rows) or
    "blocks" (`width` elements of every row, the next ones of every row, …).
    """

    name: str  # of the variable that holds its address
    rows: str
    width: int
    dtype: str
    start: str = ""  # of "index": the address of where the rows of the first batch begin in the index
    way: str = ""  # of gradients: the address of what the first batch keeps of what is there, see `gradient_rows`


class Kernel(NamedTuple):
    """A generated kernel: its source, and the texts of its arguments.

    It is called with the number of a batch and the address of its arguments, which are int64 numbers: first
    `FIRST_ARGUMENTS` that say where the batches lie, then those of `arguments`. So they are handed over once per
    mini-batch, not once per launch.
    """

    source: str
    arguments: tuple[str, ...]


class Loop(NamedTuple):
    """A loop over j; with `at`, a row's variable, over the one place j that it says, if that lies in this range; with
    `columns`, over the rows i and the columns k of a matrix, of which j is the place."""

    stage: int
    width: int
    at: str = ""
    begin: int = 0
    columns: int = 0


class KernelText:
    """Collects lines, then writes them."""

    def __init__(self) -> None:
        self.loops: dict[Loop, list[str]] = {}  # their lines
        self.before: dict[int, list[str]] = defaultdict(list)  # the loops of a stage
        self.after: dict[int, list[str]] = defaultdict(list)
        self.known: dict[tuple[Loop, str], str] = {}  # (where, text) -> variable
        self.memories: dict[str, Memory] = {}
        self.numbers: dict[int, str] = {}
        self.floats: dict[tuple[int, int], tuple[str, float]] = {}  # (value, place among its operands) -> parameter
        self.scatters: set[str] = set()
        self.count = 0  # of variables

    @property
    def is_empty(self) -> bool:
        return not self.loops

    def _float(self, value: float, place: tuple[int, int], dtype: torch.dtype) -> str:
        """A parameter for a number of the body, so that a kernel is not compiled anew when it changes."""
        if value in (0.0, 1.0):
            return self._constant(value, dtype)
        name, _ = self.floats.setdefault(place, (f"c{len(self.floats)}", value))
        return f"{CASTS[dtype]}({name})"

    def _constant(self, value: Any, dtype: torch.dtype) -> str:
        text = number(value, dtype)
        assert text is not None
        return text

    def _at(self, memory: Memory, begin: int, place: str = "j") -> str:
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

    def _name(self, memory: Memory) -> str:
        """The parameter for a memory; named by number, so that equal kernels of different cells are one."""
        self.memories.setdefault(memory.name, memory)
        return f"m{list(self.memories).index(memory.name)}"

    def _way(self, memory: Memory) -> str:
        """The parameter that says what is kept of gradients there."""
        return f"k{list(self.memories).index(memory.name)}"

    def _line(self, loop: Loop, text: str) -> None:
        self.loops.setdefault(loop, []).append(text)

    def _number(self, value: int) -> str:
        """A parameter for a size, so that a kernel does not depend on it."""
        return self.numbers.setdefault(value, f"n{len(self.numbers)}")

    def _scope(self, memory: Memory) -> int:
        if memory.name in self.scatters:
            return SCATTER_SCOPE
        return min(list(self.memories).index(memory.name), LAST_SCOPE)

    def kernel(self) -> Kernel:
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
        return Kernel(f"def kernel(b, p):\n    {outer}\n        {inner}\n", tuple(given.values()))

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
