"""Loops over elements. In: the values that a kernel must store. Out: the lines of its loops.

Lines are written on demand, from results back to operands. A value has a range of elements per row. Asked for a range,
a slice asks its source for a shifted range, a concatenation asks the part that holds it, an elementwise op asks its
operands, and a value in memory is loaded. Equal elements are computed once. Ranges of the same width share one inner
loop over `j`, wherever they begin. So the gates of a cell, which are slices of one wide product, are computed side by
side.

Loops come in stages. A reduction along a row (see `reductions`) gives one number per row, which only loops of later
stages read. An element that several stages need is computed in each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from edbatch.cells.body.body import Body, Op, Val
from edbatch.cells.fused.loops.kernel_text import SCATTER_SCOPE, KernelText, Loop, RowMemory
from edbatch.cells.fused.loops.outer import columns, is_column
from edbatch.cells.fused.loops.pointwise import FLOATS, cast, expression
from edbatch.cells.fused.loops.ranges import PADDING, RANGES, SHIFTS, behind_shifts
from edbatch.cells.fused.loops.reductions import ONLY, REDUCTIONS, Element, Joining, Row
from edbatch.spec import Spec

aten = torch.ops.aten
NO_PLACE = "an index is out of bounds: it must be one of the places of the dimension that it picks an element of"


class _Range(NamedTuple):
    value: int
    begin: int
    width: int


class Loops(KernelText):
    """The loops of one kernel, from the values to be stored (`store`, `scatter`)."""

    def __init__(self, body: Body, find: Callable[[int], RowMemory | None], exact_math: bool) -> None:
        super().__init__()
        self.body, self.find, self.exact_math = body, find, exact_math
        self.cuts: dict[int, set[int]] = {}
        self.elements: dict[tuple[_Range, Loop], str] = {}
        self.along: dict[int, Element] = {}  # for results of reductions: how an element is computed
        self.stages: dict[int, int] = {}  # for each value: the first stage in which its elements can be computed
        self.rows: dict[Any, Row] = {}  # numbers of a row found so far, by what they are
        self.wide: dict[int, int] = {}  # for each value: see `_columns`

    # What is stored.
    def store(self, value: int, to: RowMemory) -> None:
        """Store all elements of a value."""
        for begin, width in self._ranges(value):
            loop = self._loop(value, begin, width)
            text = self._element(_Range(value, begin, width), loop)
            place = self._at(to, begin)
            self._line(loop, f"store_{to.dtype}({self._name(to)}, {place}, {text}, {self._scope(to)})")

    def scatter(self, value: int, to: RowMemory) -> None:
        """Add all elements of a value to memory, or store them (see `Memory.way`). Several rows of the batch may go to
        the same row."""
        self.scatters.add(to.name)
        for begin, width in self._ranges(value):
            loop = self._loop(value, begin, width)
            text = self._element(_Range(value, begin, width), loop)
            at = self._at(to, begin)
            before = f"kept_{to.dtype}({self._name(to)}, {at}, {self._way(to)}, {SCATTER_SCOPE})"
            self._line(loop, f"store_{to.dtype}({self._name(to)}, {at}, {before} + {text}, {SCATTER_SCOPE})")

    def _loop(self, value: int, begin: int, width: int) -> Loop:
        wide = self._columns(value)
        fits = wide and begin % wide == 0 and width % wide == 0
        return Loop(self._stage(value), width, columns=wide if fits else 0)

    def _columns(self, value: int) -> int:
        """The number of columns of the outer product (see `outer`) that a value is computed from; 0 if it is not."""
        if value not in self.wide:
            op, size = self.body.op(value), self._size(value)
            if self.find(value) is not None or op is None or not self.body.is_row[value] or op.target in REDUCTIONS:
                self.wide[value] = 0
            else:
                same = [self._columns(v.index) for v in op.operands if self._size(v.index) == size]
                self.wide[value] = columns(self.body, op) or max(same, default=0)
        return self.wide[value]

    # One number per row; see `reductions.RowNumbers`.
    def reduce(self, kind: Joining, term: Element) -> Row:
        values = [self._behind_views(v.index) for v in term.values]
        key = (kind, term.text, *values)
        if key not in self.rows:
            stage = max([row.stage for row in term.rows] + [self._stage(v) for v in values])
            name = self._new("r")
            ranges = self._ranges(*values)
            parts = [name] if len(ranges) == 1 else [f"{name}_{i}" for i in range(len(ranges))]
            for part, (begin, width) in zip(parts, ranges, strict=True):
                loop = Loop(stage, width)
                text = self._fill(term.text, [_Range(v, begin, width) for v in values], loop)
                self.before[stage].append(f"{part} = {kind.start}")
                self._line(loop, f"{part} = {kind.join.format(part, text)}")
            joined = parts[0]
            for part in parts[1:]:
                joined = kind.join.format(joined, part)
            if joined != name:
                self.after[stage].append(f"{name} = {joined}")
            self.rows[key] = Row(name, stage + 1)
        return self.rows[key]

    def pick(self, value: Val, at: Row) -> Row:
        source = self._behind_views(value.index)
        key = ("pick", source, at)
        if key not in self.rows:
            stage, name = max(at.stage, self._stage(source)), self._new("r")
            self.before[stage].append(f"{name} = {self._constant(0, self.body.spec(value).dtype)}")
            for begin, width in self._ranges(source):
                loop = Loop(stage, width, at.name, begin)
                self._line(loop, f"{name} = {self._element(_Range(source, begin, width), loop)}")
            self.rows[key] = Row(name, stage + 1)
        return self.rows[key]

    def row(self, text: str, *rows: Row) -> Row:
        if text not in self.rows:
            stage, name = max(row.stage for row in rows), self._new("r")
            self.after[stage - 1].append(f"{name} = {text}")
            self.rows[text] = Row(name, stage)
        return self.rows[text]

    def place(self, value: Val, size: int, from_end: bool) -> Row:
        key = ("place", self._behind_views(value.index), size, from_end)
        if key not in self.rows:
            given, most = self.reduce(ONLY, Element("unknown({0})", [value])), self._number(size)
            found = self.row(f"{given} + ({most} if {given} < 0 else 0)", given) if from_end else given
            self.after[given.stage - 1] += [f"if not 0 <= {found} < {most}:", f"    raise IndexError({NO_PLACE!r})"]
            self.rows[key] = found
        return self.rows[key]

    def size(self, value: Val) -> str:
        return self._number(self._size(value.index))

    def of_table(self, table: Val, at: Row) -> str:
        memory = self.find(table.index)
        assert memory is not None, "shared values lie in memory"
        first = f"{at} * {self._number(self.body.spec(table).shape[1])}"
        return f"load_{memory.dtype}({self._name(memory)}, {first} + {{j}}, {self._scope(memory)})"

    def _stage(self, value: int) -> int:
        """The first stage of loops in which a value's elements can be computed."""
        if value not in self.stages:
            op = self.body.op(value)
            if self.find(value) is not None or op is None or not self.body.is_row[value]:
                self.stages[value] = 0
            elif op.target in REDUCTIONS:
                self.along[value] = element = REDUCTIONS[op.target].element(self, op)
                needs = [row.stage for row in element.rows] + [self._stage(v.index) for v in element.values]
                self.stages[value] = max(needs)
            else:
                self.stages[value] = max(self._stage(v.index) for v in op.operands)
        return self.stages[value]

    def _behind_views(self, value: int) -> int:
        """The value of which this one is a reshape, if it is one that no memory holds."""
        op = self.body.op(value)
        while self.find(value) is None and op is not None and op.target is aten.view.default:
            value = op.args[0].index
            op = self.body.op(value)
        return value

    # Elements.
    def _size(self, value: int) -> int:
        return math.prod(self.body.spec(Val(value)).shape)

    def _ranges(self, *values: int) -> list[tuple[int, int]]:
        """Divides the elements of values of one size into ranges, in each of which all elements are computed alike."""
        bounds = sorted({0, self._size(values[0]), *(cut for value in values for cut in self._cuts(value))})
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
        if op.target in PADDING:
            begin, width = self._range(op)
            return {begin, begin + width} | {begin + c for c in self._cuts(op.args[0].index)}
        if op.target is aten.cat.default:
            cuts, begin = set(), 0
            for part in op.args[0]:
                cuts |= {begin} | {begin + c for c in self._cuts(part.index)}
                begin += self._size(part.index)
            return cuts
        return {c for v in op.operands if self._size(v.index) == size for c in self._cuts(v.index)}

    def _range(self, op: Op) -> tuple[int, int]:
        found = RANGES[op.target](self.body, op)
        assert found is not None
        return found

    def _element(self, at: _Range, loop: Loop) -> str:
        """The text of element j of a range in a loop: a variable or a constant."""
        if (at, loop) not in self.elements:
            self.elements[at, loop] = self._make_element(at, loop)
        return self.elements[at, loop]

    def _make_element(self, at: _Range, loop: Loop) -> str:
        memory = self.find(at.value)
        op = self.body.op(at.value)
        if memory is not None:
            return self._load(memory, at.begin, loop, "j" if at.width > 1 or loop.width == 1 else "0")
        assert op is not None
        if not self.body.is_row[at.value]:
            assert op.target is aten.full.default
            return self._constant(op.args[1], self.body.spec(Val(at.value)).dtype)
        if op.target in SHIFTS:
            begin, _ = self._range(op)
            return self._element(_Range(op.args[0].index, begin + at.begin, at.width), loop)
        if op.target is aten.expand.default:
            return self._element(_Range(op.args[0].index, 0, 1), loop)
        if op.target in PADDING:
            begin, size = self._range(op)
            if begin <= at.begin < begin + size:
                return self._element(_Range(op.args[0].index, at.begin - begin, at.width), loop)
            return self._constant(0, self.body.spec(Val(at.value)).dtype)
        if op.target is aten.cat.default:
            begin = 0
            for part in op.args[0]:
                size = self._size(part.index)
                if begin <= at.begin < begin + size:
                    return self._element(_Range(part.index, at.begin - begin, at.width), loop)
                begin += size
        if op.target in REDUCTIONS:
            element = self.along[at.value]
            return self._fill(element.text, [at._replace(value=v.index) for v in element.values], loop, at)
        return self._computed(op, at, loop)

    def _same(self, value: int, at: _Range) -> _Range:
        """The same range of another value; if that has one element only, this element."""
        return _Range(value, 0, 1) if self._size(value) == 1 else at._replace(value=value)

    def _fill(self, text: str, values: Sequence[_Range], loop: Loop, at: _Range | None = None) -> str:
        """Puts elements and their place j into a text of `reductions`."""
        place = values[0] if at is None and values else at
        j = "" if place is None else self._place(place, loop)
        return self._variable(loop, text.format(*[self._element(self._same(v.value, v), loop) for v in values], j=j))

    def _place(self, at: _Range, loop: Loop) -> str:
        if at.width == 1 and loop.width > 1:
            return self._number(at.begin)
        return "j" if at.begin == 0 else f"({self._number(at.begin)} + j)"

    def _computed(self, op: Op, at: _Range, loop: Loop) -> str:
        dtypes = [self.body.spec(v).dtype for v in op.operands]
        dtype = next((d for d in dtypes if d in FLOATS), torch.int64)

        wide = columns(self.body, op)

        def operand(tree: Any, place: int = 0) -> Any:
            if isinstance(tree, float) and dtype in FLOATS and op.target is not aten.pow.Tensor_Scalar:
                return self._float(tree, (at.value, place), dtype)
            if not isinstance(tree, Val):
                return tree
            if wide and self._size(tree.index) not in (1, self._size(at.value)):
                return self._border(tree, wide, at, loop)
            return self._element(self._same(tree.index, at), loop)

        if op.target is aten._to_copy.default:
            assert isinstance(op.spec, Spec)
            text: str | None = cast(operand(op.args[0]), dtypes[0], op.spec.dtype)
        else:
            texts = [operand(a, place) for place, a in enumerate(op.args)]
            text = self._without_zeros(op, texts) or expression(op, texts, dtype, self.exact_math)
        assert text is not None
        return self._variable(loop, text)

    def _border(self, value: Val, wide: int, at: _Range, loop: Loop) -> str:
        """Loads the element of a column or a row that an element of their outer product needs."""
        base, begin = behind_shifts(self.body, value, lambda i: self.find(i) is not None)
        memory = self.find(base)
        assert memory is not None, "see `Phases`"
        row, column = at.begin // wide, at.begin % wide
        if loop.columns != wide or column or at.width != loop.width:
            place = f"({self._place(at, loop)} {'//' if is_column(self.body, value) else '%'} {self._number(wide)})"
        elif is_column(self.body, value):
            place = f"({self._number(row)} + i)" if row else "i"
        else:
            place = "k"
        return self._load(memory, begin, loop, place)

    def _without_zeros(self, op: Op, texts: list[Any]) -> str | None:
        """Where one operand of a sum is padding (zeros), the other operand; else None."""
        if op.target is aten.add.Tensor and not op.kwargs and len(op.operands) == 2:
            left, right = ((t in ("float32(0)", "float64(0)")) for t in texts)
            return str(texts[1]) if left else str(texts[0]) if right else None
        return None

    def _load(self, memory: RowMemory, begin: int, loop: Loop, place: str) -> str:
        at = self._at(memory, begin, place)
        return self._variable(loop, f"load_{memory.dtype}({self._name(memory)}, {at}, {self._scope(memory)})")
