"""Loops over elements: from the values a kernel must store to the source of one numba function.

Everything is demand-driven. A value is a range of elements per row; asked for a range, a slice asks its source for a
shifted one, a concatenation asks the piece that holds it, an elementwise op asks its operands, and a value in memory is
loaded. Equal elements are computed once. Ranges of the same width share one inner loop over `j`, whatever their place,
so the gates of a cell, which are slices of one wide product, are computed side by side.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from edbatch.cells.body import Body, Op, Val
from edbatch.cells.pointwise import CASTS, DTYPES, FLOATS, expression, is_known, number
from edbatch.spec import Spec

aten = torch.ops.aten
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


class Kernel(NamedTuple):
    """A generated kernel: its source, and the texts of its arguments.

    It is called with the number of a batch and the address of its arguments, which are int64 numbers: first
    `FIRST_ARGUMENTS` that say where the batches lie, then those of `arguments`. So they are handed over once per
    mini-batch, not once per launch.
    """

    source: str
    arguments: tuple[str, ...]


class _Range(NamedTuple):
    value: int
    begin: int
    width: int


def is_soft(body: Body, index: int, exact_math: bool) -> bool:
    """Whether a row value is computed element by element: by an elementwise op, or as pieces of other values."""
    op, spec = body.op(index), body.specs[index]
    if op is None or not isinstance(spec, Spec) or spec.dtype not in DTYPES or not body.is_row[index]:
        return False
    if not all(isinstance(s := body.specs[v.index], Spec) and s.dtype in DTYPES for v in op.operands):
        return False
    if op.target in PIECES:
        return PIECES[op.target](body, op) is not None
    size = math.prod(spec.shape)
    if op.target is aten._to_copy.default:
        return body.spec(op.args[0]).device == spec.device and spec.dtype in DTYPES
    plain = all(math.prod(body.spec(v).shape) in (1, size) for v in op.operands)
    return plain and size > 0 and not _promotes(body, op) and is_known(op, exact_math)


def _promotes(body: Body, op: Op) -> bool:
    """Whether torch makes floats of integers or masks here, by rules that kernels do not know."""
    if any(body.spec(v).dtype in FLOATS for v in op.operands):
        return False
    assert isinstance(op.spec, Spec)
    return op.spec.dtype in FLOATS or any(isinstance(a, float) for a in (*op.args, *dict(op.kwargs).values()))


def _flat_from(shape: Sequence[int], dim: int) -> bool:
    """Whether ranges along a dimension are ranges of the flattened elements."""
    return all(s == 1 for s in shape[:dim])


def _flat_range(shape: Sequence[int], dim: int, part: slice) -> tuple[int, int] | None:
    """The elements that a slice along a dimension takes: (begin, width), if they are one range."""
    dim %= len(shape)
    first, last, step = part.indices(shape[dim])
    inner = math.prod(shape[dim + 1 :])
    return (first * inner, max(last - first, 0) * inner) if step == 1 and _flat_from(shape, dim) else None


def _item(shape: Sequence[int], dim: int, place: int) -> slice:
    place %= shape[dim]
    return slice(place, place + 1)


def _slice_range(body: Body, op: Op) -> tuple[int, int] | None:
    given: list[Any] = [*op.args[1:], *(0, None, None, 1)[len(op.args) - 1 :]]
    dim, start, stop, step = given
    return _flat_range(body.spec(op.args[0]).shape, dim, slice(start, stop, step))


def _select_range(body: Body, op: Op) -> tuple[int, int] | None:
    shape, (_, dim, place) = body.spec(op.args[0]).shape, op.args
    return _flat_range(shape, dim, _item(shape, dim, place))


def _slice_backward_range(body: Body, op: Op) -> tuple[int, int] | None:
    _, shape, dim, start, stop, step = op.args
    return _flat_range(shape, dim, slice(start, stop, step))


def _select_backward_range(body: Body, op: Op) -> tuple[int, int] | None:
    _, shape, dim, place = op.args
    return _flat_range(shape, dim, _item(shape, dim, place))


def _whole(body: Body, op: Op) -> tuple[int, int] | None:
    return 0, math.prod(body.spec(op.args[0]).shape)


def _one_element(body: Body, op: Op) -> tuple[int, int] | None:
    return (0, 1) if math.prod(body.spec(op.args[0]).shape) == 1 else None


def _along_rows(body: Body, op: Op) -> tuple[int, int] | None:
    assert isinstance(op.spec, Spec)
    return (0, 0) if _flat_from(op.spec.shape, op.args[1] % len(op.spec.shape)) else None


# Ops that only move elements: the range of the source's (or the result's) elements that they move.
SHIFTS: dict[Any, Callable[[Body, Op], tuple[int, int] | None]] = {
    aten.view.default: _whole, aten.slice.Tensor: _slice_range, aten.select.int: _select_range,
}  # fmt: skip
_PAD: dict[Any, Callable[[Body, Op], tuple[int, int] | None]] = {
    aten.slice_backward.default: _slice_backward_range, aten.select_backward.default: _select_backward_range,
}  # fmt: skip
PIECES = {**SHIFTS, **_PAD, aten.cat.default: _along_rows, aten.expand.default: _one_element}


class Loops:
    """Collects what a kernel stores, then writes it."""

    def __init__(self, body: Body, find: Callable[[int], Memory | None], exact_math: bool) -> None:
        self.body, self.find, self.exact_math = body, find, exact_math
        self.loops: dict[int, list[str]] = {}  # by width: its lines
        self.known: dict[tuple[int, Any], str] = {}  # (width, element) -> variable
        self.cuts: dict[int, set[int]] = {}
        self.elements: dict[tuple[_Range, int], str] = {}
        self.memories: dict[str, Memory] = {}
        self.numbers: dict[int, str] = {}
        self.floats: dict[tuple[int, int], tuple[str, float]] = {}  # (value, place among its operands) -> parameter
        self.scatters: set[str] = set()
        self.count = 0

    # What is stored.
    def store(self, value: int, to: Memory) -> None:
        """Store all elements of a value."""
        for begin, width in self._ranges(value):
            text = self._element(_Range(value, begin, width), width)
            place = self._at(to, begin)
            self._line(width, f"store_{to.dtype}({self._name(to)}, {place}, {text}, {self._scope(to)})")

    def scatter(self, value: int, to: Memory) -> None:
        """Add all elements of a value to what is there; rows may repeat from one row of the batch to the next."""
        self.scatters.add(to.name)
        for begin, width in self._ranges(value):
            text = self._element(_Range(value, begin, width), width)
            at = self._at(to, begin)
            before = f"load_{to.dtype}({self._name(to)}, {at}, {SCATTER_SCOPE})"
            self._line(width, f"store_{to.dtype}({self._name(to)}, {at}, {before} + {text}, {SCATTER_SCOPE})")

    @property
    def is_empty(self) -> bool:
        return not self.loops

    # Elements.
    def _size(self, value: int) -> int:
        return math.prod(self.body.spec(Val(value)).shape)

    def _ranges(self, value: int) -> list[tuple[int, int]]:
        bounds = sorted({0, self._size(value), *self._cuts(value)})
        return [(a, b - a) for a, b in pairwise(bounds)]

    def _cuts(self, value: int) -> set[int]:
        """Where the way in which a value's elements are computed changes."""
        if value not in self.cuts:
            self.cuts[value] = self._find_cuts(value)
        return self.cuts[value]

    def _find_cuts(self, value: int) -> set[int]:
        op = self.body.op(value)
        memory, size = self.find(value), self._size(value)
        if memory is not None and memory.rows == "blocks":
            return set(range(memory.width, size, memory.width))
        if memory is not None or op is None or not self.body.is_row[value]:
            return set()
        if op.target in SHIFTS:
            begin, width = self._range(op)
            return {c - begin for c in self._cuts(op.args[0].index) if begin < c < begin + width}
        if op.target in _PAD:
            begin, width = self._range(op)
            return {begin, begin + width} | {begin + c for c in self._cuts(op.args[0].index)}
        if op.target is aten.cat.default:
            cuts, begin = set(), 0
            for piece in op.args[0]:
                cuts |= {begin} | {begin + c for c in self._cuts(piece.index)}
                begin += self._size(piece.index)
            return cuts
        return {c for v in op.operands if self._size(v.index) == size for c in self._cuts(v.index)}

    def _range(self, op: Op) -> tuple[int, int]:
        found = PIECES[op.target](self.body, op)
        assert found is not None
        return found

    def _element(self, at: _Range, width: int) -> str:
        """The text of element j of a range in the loop of this width: a variable or a constant."""
        if (at, width) not in self.elements:
            self.elements[at, width] = self._make_element(at, width)
        return self.elements[at, width]

    def _make_element(self, at: _Range, width: int) -> str:
        memory = self.find(at.value)
        op = self.body.op(at.value)
        if memory is not None:
            return self._load(memory, at, width)
        assert op is not None
        if not self.body.is_row[at.value]:
            assert op.target is aten.full.default
            return self._constant(op.args[1], self.body.spec(Val(at.value)).dtype)
        if op.target in SHIFTS:
            begin, _ = self._range(op)
            return self._element(_Range(op.args[0].index, begin + at.begin, at.width), width)
        if op.target is aten.expand.default:
            return self._element(_Range(op.args[0].index, 0, 1), width)
        if op.target in _PAD:
            begin, size = self._range(op)
            if begin <= at.begin < begin + size:
                return self._element(_Range(op.args[0].index, at.begin - begin, at.width), width)
            return self._constant(0, self.body.spec(Val(at.value)).dtype)
        if op.target is aten.cat.default:
            begin = 0
            for piece in op.args[0]:
                size = self._size(piece.index)
                if begin <= at.begin < begin + size:
                    return self._element(_Range(piece.index, at.begin - begin, at.width), width)
                begin += size
        return self._computed(op, at, width)

    def _computed(self, op: Op, at: _Range, width: int) -> str:
        dtypes = [self.body.spec(v).dtype for v in op.operands]
        dtype = next((d for d in dtypes if d is not torch.bool), torch.int64)

        def operand(tree: Any, place: int = 0) -> Any:
            if isinstance(tree, float) and dtype in FLOATS and op.target is not aten.pow.Tensor_Scalar:
                return self._float(tree, (at.value, place), dtype)
            if not isinstance(tree, Val):
                return tree
            one = self._size(tree.index) == 1
            return self._element(_Range(tree.index, 0, 1) if one else _Range(tree.index, at.begin, at.width), width)

        if op.target is aten._to_copy.default:
            assert isinstance(op.spec, Spec)
            text: str | None = f"{CASTS[op.spec.dtype]}({operand(op.args[0])})"
        else:
            texts = [operand(a, place) for place, a in enumerate(op.args)]
            text = self._without_zeros(op, texts) or expression(op, texts, dtype, self.exact_math)
        assert text is not None
        return self._variable(width, text)

    def _without_zeros(self, op: Op, texts: list[Any]) -> str | None:
        """A sum with a piece of padding is the other operand."""
        if op.target is aten.add.Tensor and not op.kwargs and len(op.operands) == 2:
            left, right = ((t in ("float32(0)", "float64(0)")) for t in texts)
            return str(texts[1]) if left else str(texts[0]) if right else None
        return None

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

    def _load(self, memory: Memory, at: _Range, width: int) -> str:
        place = self._at(memory, at.begin, moving=at.width > 1 or width == 1)
        return self._variable(width, f"load_{memory.dtype}({self._name(memory)}, {place}, {self._scope(memory)})")

    def _at(self, memory: Memory, begin: int, moving: bool = True) -> str:
        row = "" if memory.rows == "shared" else f"row_{self._name(memory)} + "
        if memory.rows == "blocks":
            block, begin = divmod(begin, memory.width)
            row += f"{block} * B * {self._number(memory.width)} + " if block else ""
        shift = "" if begin == 0 else f"{self._number(begin)} + "
        return f"{row}{shift}{'j' if moving else '0'}"

    def _variable(self, width: int, text: str) -> str:
        if text.isidentifier():
            return text
        key = (width, text)
        if key not in self.known:
            self.known[key] = f"e{self.count}"
            self.count += 1
            self._line(width, f"{self.known[key]} = {text}")
        return self.known[key]

    def _name(self, memory: Memory) -> str:
        """The parameter for a memory; named by number, so that equal kernels of different cells are one."""
        self.memories.setdefault(memory.name, memory)
        return f"m{list(self.memories).index(memory.name)}"

    def _line(self, width: int, text: str) -> None:
        self.loops.setdefault(width, []).append(text)

    def _number(self, value: int) -> str:
        """A parameter for a size, so that a kernel does not depend on it."""
        return self.numbers.setdefault(value, f"n{len(self.numbers)}")

    def _scope(self, memory: Memory) -> int:
        if memory.name in self.scatters:
            return SCATTER_SCOPE
        return min(list(self.memories).index(memory.name), LAST_SCOPE)

    # Writing.
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
        for width, body in self.loops.items():
            lines.append(f"for j in range({self._number(width)}):")
            lines += [f"    {line}" for line in body]
        given = {f"s{i}": start for i, start in enumerate(starts)}
        given |= {f"m{i}": name for i, name in enumerate(self.memories)}
        given |= {name: str(size) for size, name in self.numbers.items()}
        given |= {name: _bits(value) for name, value in self.floats.values()}
        head = [f"B, w, index = {_read(_read('p', 0), 'b')}, {_read(_read('p', 1), 'b')}, {_read('p', 2)}"]
        for at, name in enumerate(given, FIRST_ARGUMENTS):
            value = _read("p", at)
            value = _read(value, f"b * {_read('p', 3)}") if name[0] == "s" else value
            head.append(f"{name} = {value.replace('i64', 'f64') if name[0] == 'c' else value}")
        inner = "\n        ".join(lines)
        outer = "\n    ".join([*head, "for r in range(B):"])
        return Kernel(f"def kernel(b, p):\n    {outer}\n        {inner}\n", tuple(given.values()))


def _read(address: str, at: int | str) -> str:
    return f"load_i64({address}, {at}, {INDEX_SCOPE})"


def _bits(value: float) -> str:
    return str(struct.unpack("q", struct.pack("d", value))[0])
