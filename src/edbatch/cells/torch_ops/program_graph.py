"""Turns programs of a cell into the `CellGraph` that the planner of memory inside cells (`pq`) needs, and names them.

In: a body and its programs, either inference alone or forward and backward, which share what forward saves. Out: a
`ProgramGraph`. Only what differs between examples counts. Values are cut into *atoms* where ops cut them (`chunk`) or
join them (`cat`), so that neither is an op; nor are other views. An elementwise op of several atoms counts as so many
ops, and so does a product with weights. Ops of one signature may run as one batch: elementwise ones, and products of a
row with weights. All others run alone, on whole values.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import Any, NamedTuple

import torch

from edbatch.cells.body.body import VIEWS, Body, Op, Val, find_vals, swap_vals
from edbatch.cells.body.program import Program
from edbatch.pq.cell_layout import CellGraph, CellOp, Operand, Parameter, Run
from edbatch.spec import Spec

aten = torch.ops.aten
PRODUCTS = frozenset({aten.mm.default, aten.addmm.default})


class Atom(NamedTuple):
    """A part of a value of the body, given by the value's number: elements of each row, one after the other."""

    number: int
    begin: int
    length: int


class SharedPart(NamedTuple):
    """A part of a shared value: of a vector these elements, of a matrix these columns and lines. A `Parameter` of the
    graph is named by such parts, of which the sum is meant."""

    number: int
    begin: int
    length: int
    first_line: int = 0
    num_lines: int = 0


@dataclass(frozen=True)
class ProgramGraph:
    """Programs for the planner.

    atoms: of each value of the graph. runs: of each value of the body that is whole atoms, these. numbers: for each op
    of the graph that of the op's result in the body. program_of: for each op of the graph the number of its program.
    rows: the values of the graph that are operands of the cell, with the numbers of these. ends: the values that have
    buffers of their own when all has run, for the end of the mini-batch. saved: the values that forward saves for
    backward and that nobody else reads. are_products: which ops are products with weights, or sums of
    them. dtype, device: of all values that may lie beside others.
    """

    graph: CellGraph
    atoms: tuple[Atom, ...]
    runs: dict[int, Run]
    numbers: tuple[int, ...]
    program_of: tuple[int, ...]
    rows: dict[int, int]
    ends: frozenset[int]
    saved: frozenset[int]
    are_products: tuple[bool, ...]
    dtype: torch.dtype
    device: torch.device


def abstract(body: Body, programs: Sequence[Program], apart: frozenset[int] = frozenset()) -> ProgramGraph:
    """The graph of one program, or of forward and backward; values `apart` are not saved together with others."""
    return _Abstraction(body, programs, apart).run()


class _Abstraction:
    def __init__(self, body: Body, programs: Sequence[Program], apart: frozenset[int]) -> None:
        self.body, self.programs, self.apart = body, programs, apart
        self.live = list(dict.fromkeys(i for program in programs for i in program.ops if body.is_row[i]))
        made = [spec for i in self.live if isinstance(spec := body.specs[i], Spec) and spec.is_float]
        kinds = Counter((spec.dtype, spec.device) for spec in made)
        self.kind = kinds.most_common(1)[0][0] if kinds else (torch.float32, torch.device("cpu"))
        self.inputs = list(
            dict.fromkeys(i for p in programs for i in p.inputs if body.is_row[i] and i not in self.live)
        )
        self.whole: set[int] = set()  # values that must be tensors of their own
        self.cuts = self._find_cuts()
        self.atoms: list[Atom] = []
        self.runs: dict[int, Run] = {}
        self.ops: list[CellOp] = []
        self.numbers: list[int] = []
        self.program_of: list[int] = []
        self.are_products: list[bool] = []

    def run(self) -> ProgramGraph:
        given = {v for index in self.inputs for v in self._new_atoms(index)}
        outside = set(given)
        rows: dict[int, int] = {}
        for number, program in enumerate(self.programs):
            for index, place in program.inputs.items():
                if place.group == "rows" and len(self.runs[index]) == 1:
                    rows[self.runs[index][0]] = place.number
            for index in program.ops:
                op = self.body.op(index)
                is_new = self.body.is_row[index] and index not in self.runs
                if op is not None and is_new and not self._is_view(index, op):
                    self._add(number, index, op)
        outside |= {v for index in self.whole for v in self.runs.get(index, ())}
        dests = [(place, value) for program in self.programs for place, value in program.dests.items()]
        results = [self.runs.get(value.index, ()) for place, value in dests if place.group == "outs"]
        outside |= {run[0] for run in results if len(run) == 1}
        last = [value for place, value in dests if place.group == "deferred" or value.index in self.apart]
        alone = [run[0] for value in last if len(run := self.runs.get(value.index, ())) == 1]
        ends = {v for v in alone if self.atoms[v].length == self._length(self.atoms[v].number)} - outside
        outside |= ends
        stored = [value.index for place, value in dests if place.group == "saved" and value.index not in self.apart]
        saved = {v for index in stored for v in self.runs.get(index, ())}
        wanted = [value for program in self.programs for value in find_vals(program.returns or ())]
        wanted += [value for program in self.programs for _, value in program.sums] + [value for _, value in dests]
        kept = {v for value in wanted for v in self.runs.get(value.index, ())} | self._seen_through_views()
        saved -= outside
        self._merge_sums(kept | saved)
        sums = [
            frozenset(v for run in self.ops[i].runs for v in run)
            for i, is_sum in enumerate(self.are_products)
            if is_sum
        ]
        size = self.kind[0].itemsize
        graph = CellGraph(
            tuple(atom.length * size for atom in self.atoms), tuple(self.ops), frozenset(outside), frozenset(kept),
            (*(values for values in sums if len(values) > 1), *([frozenset(saved)] if len(saved) > 1 else [])),
            tensors=tuple((v, (self.atoms[v].number, self.atoms[v].begin * size)) for v in sorted(given)),
        )  # fmt: skip
        return ProgramGraph(
            graph, tuple(self.atoms), self.runs, tuple(self.numbers), tuple(self.program_of), rows,
            frozenset(ends), frozenset(saved),
            tuple(self.are_products), *self.kind,
        )  # fmt: skip

    # ---- atoms

    def _find_cuts(self) -> dict[int, list[int]]:
        """For each value the elements at which it is cut. What is cut in one value is cut in all that share elements
        with it, one by one: unless one of them must be whole."""
        links: list[tuple[int, int, int, int, int]] = []  # elements of one value are those of another
        cuts: dict[int, set[int]] = defaultdict(set)
        for index in self.live:
            op = self.body.op(index)
            assert op is not None
            if self._is_elementwise(op):
                length = self._length(index)
                links += [(index, 0, v.index, 0, length) for v in op.operands if self.body.is_row[v.index]]
            for v, begin, length, at in self._parts_of_view(op):
                links.append((index, at, v.index, begin, length))
                cuts[v.index] |= {begin, begin + length}
                cuts[index] |= {at, at + length}
        whole = self._read_whole()
        changed = True
        while changed:
            changed = False
            for a, at, b, begin, length in links:
                there = {x - at + begin for x in cuts[a] if at <= x <= at + length}
                here = {x - begin + at for x in cuts[b] if begin <= x <= begin + length}
                if not there <= cuts[b] or not here <= cuts[a]:
                    cuts[b] |= there
                    cuts[a] |= here
                    changed = True
        linked = _components((a, b) for a, _, b, _, _ in links)
        is_whole = {linked.get(index, index) for index in whole}
        self.whole = {index for index in (*self.live, *self.inputs) if linked.get(index, index) in is_whole}
        return {
            index: sorted(found - {0, self._length(index)}) for index, found in cuts.items() if index not in self.whole
        }

    def _read_whole(self) -> set[int]:
        """The values that ops read or make that are neither elementwise nor products of one line, and those of other
        dtypes."""
        found = {i for i in (*self.live, *self.inputs) if not self._is_of_kind(self.body.specs[i])}
        for index in self.live:
            op = self.body.op(index)
            assert op is not None
            if not (self._is_elementwise(op) or self._is_product(op) or self._parts_of_view(op)):
                found.add(index)
                found.update(v.index for v in op.operands if self.body.is_row[v.index])
        return found

    def _is_of_kind(self, spec: Any) -> bool:
        return isinstance(spec, Spec) and (spec.dtype, spec.device) == self.kind and 0 not in spec.shape

    def _length(self, index: int) -> int:
        spec = self.body.specs[index]
        return math.prod(spec.shape) if isinstance(spec, Spec) else 0

    def _parts_of_view(self, op: Op) -> list[tuple[Val, int, int, int]]:
        """Of a view that only cuts, joins or reshapes: the values it reads, from which element, how many, and to which
        element of the result; nothing for other ops."""
        if not self._is_of_kind(op.spec) or not all(self._is_of_kind(self.body.specs[v.index]) for v in op.operands):
            return []
        if op.target is aten.view.default:
            return [(op.args[0], 0, self._length(op.args[0].index), 0)]
        if op.target is aten.cat.default:
            shapes = [self.body.spec(v).shape for v in op.args[0]]
            joins = all(len(shape) == len(shapes[0]) and _is_first(shape, op.args[1]) for shape in shapes)
            if not joins or not all(self.body.is_row[v.index] for v in op.args[0]):
                return []
            ends = [0]
            for shape in shapes:
                ends.append(ends[-1] + math.prod(shape))
            return [(v, 0, b - a, a) for v, (a, b) in zip(op.args[0], pairwise(ends), strict=True)]
        part = _part(self.body, op)
        return [] if part is None else [(op.args[0], part[0], part[1] - part[0], 0)]

    def _is_view(self, index: int, op: Op) -> bool:
        """Whether a result lies in the memory of others; if it is whole atoms of them, these are its own."""
        parts = self._parts_of_view(op)
        if not parts:
            return op.target is operator.getitem or op.target in VIEWS
        run: list[int] = []
        for v, begin, length, _ in parts:
            inside = [a for a in self.runs.get(v.index, ()) if self._lies_in(v.index, a, begin, begin + length)]
            if sum(self.atoms[a].length for a in inside) != length:
                return op.target is not aten.cat.default
            run += inside
        self.runs[index] = tuple(run)
        return True

    def _lies_in(self, index: int, atom: int, begin: int, end: int) -> bool:
        """Whether an atom of a value lies between two elements of it."""
        at = 0
        for other in self.runs[index]:
            if other == atom:
                break
            at += self.atoms[other].length
        return begin <= at and at + self.atoms[atom].length <= end

    def _new_atoms(self, index: int) -> Run:
        ends = [0, *self.cuts.get(index, ()), self._length(index)]
        first = len(self.atoms)
        self.atoms += [Atom(index, a, b - a) for a, b in pairwise(ends)]
        self.runs[index] = tuple(range(first, len(self.atoms)))
        return self.runs[index]

    def _seen_through_views(self) -> set[int]:
        """The values of which there are views that are no whole atoms; nothing may overwrite them."""
        found: set[int] = set()
        for index in self.live:
            op = self.body.op(index)
            if op is not None and index not in self.runs:
                found |= {atom for v in op.operands for atom in self.runs.get(v.index, ())}
        return found

    # ---- ops

    def _add(self, program: int, index: int, op: Op) -> None:
        results = self._new_atoms(index)
        head = f"{program}: {self._signature(op)}"
        rows = [v.index for v in op.operands if self.body.is_row[v.index]]
        has_atoms = all(index in self.runs for index in rows)
        lengths = [[self.atoms[atom].length for atom in self.runs.get(i, ())] for i in (index, *rows)]
        if self._is_elementwise(op) and all(found == lengths[0] for found in lengths):
            for k, result in enumerate(results):
                pieces = [self._piece(v, k, result) for v in op.operands]
                self._append(program, index, CellOp(self._of_lengths(head, pieces, result), tuple(pieces),
                                                    (result,), is_local=True))  # fmt: skip
        elif has_atoms and self._is_product(op):
            *bias, a, w = op.args
            parts = self.runs[a.index]
            for result in results:
                _, begin, length = self.atoms[result]
                line = 0
                operands: list[Operand] = [Parameter((SharedPart(b.index, begin, length),)) for b in bias]
                for part in parts:
                    count = self.atoms[part].length
                    operands += [(part,), Parameter((SharedPart(w.index, begin, length, line, count),))]
                    line += count
                head = f"{program}: product {[False] * len(bias)}"
                op_of_atom = CellOp(self._of_lengths(head, operands, result), tuple(operands), (result,))
                self._append(program, index, op_of_atom, is_product=True)
        else:
            runs = tuple(self._behind(v.index) for v in op.operands if self.body.is_row[v.index])
            self._append(program, index, CellOp(f"{head} #{index}", runs, results))

    def _merge_sums(self, kept: set[int]) -> None:
        """A sum of products that nobody else reads becomes one product, of several operands; and so does the sum of a
        product and another value."""
        readers = Counter(v for op in self.ops for run in op.runs for v in run)
        maker = {op.results[0]: i for i, op in enumerate(self.ops) if len(op.results) == 1}
        gone: set[int] = set()

        def product(value: int) -> int | None:
            i = maker.get(value)
            return i if i is not None and self.are_products[i] and readers[value] == 1 and value not in kept else None

        for i, op in enumerate(self.ops):
            if not op.is_local or not _is_sum(self.body.op(self.numbers[i])) or len(op.runs) != 2:
                continue
            (a,), (b,) = op.runs
            first, second = product(a), product(b)
            if a == b or (first is None and second is None):
                continue
            made = [self.ops[k].operands for k in (first, second) if k is not None]
            starts = [operands[0] for operands in made if len(operands) % 2]  # a bias, or what is added to
            if first is None or second is None:
                starts.append((a,) if first is None else (b,))
            if all(isinstance(start, Parameter) for start in starts) and len(starts) == 2:
                starts = [Parameter(tuple(part for start in starts for part in start.name))]  # type: ignore[union-attr]
            if len(starts) > 1:
                continue
            pairs = [operand for operands in made for operand in operands[len(operands) % 2 :]]
            operands = (*starts, *pairs)
            head = f"{self.program_of[i]}: product {[isinstance(start, tuple) for start in starts]}"
            self.ops[i] = CellOp(self._of_lengths(head, operands, op.results[0]), operands, op.results)
            self.are_products[i] = True
            gone |= {k for k in (first, second) if k is not None}
        left = [i not in gone for i in range(len(self.ops))]
        self.ops, self.numbers = list(compress(self.ops, left)), list(compress(self.numbers, left))
        self.program_of = list(compress(self.program_of, left))
        self.are_products = list(compress(self.are_products, left))

    def _behind(self, index: int) -> Run:
        """The atoms of a value, or, if it is a view that is no whole atoms, all atoms of what is viewed."""
        op = self.body.op(index)
        if index in self.runs or op is None:
            return self.runs[index]
        rows = [v.index for v in op.operands if self.body.is_row[v.index]]
        return tuple(dict.fromkeys(atom for row in rows for atom in self._behind(row)))

    def _append(self, program: int, index: int, op: CellOp, *, is_product: bool = False) -> None:
        self.are_products.append(is_product)
        self.ops.append(op)
        self.numbers.append(index)
        self.program_of.append(program)

    def _of_lengths(self, head: str, operands: Sequence[Operand], result: int) -> Hashable:
        runs = [self.atoms[o[0]].length if isinstance(o, tuple) else "shared" for o in operands]
        return head, *runs, self.atoms[result].length

    def _piece(self, value: Val, k: int, result: int) -> Operand:
        if self.body.is_row[value.index]:
            return (self.runs[value.index][k],)
        _, begin, length = self.atoms[result]
        return Parameter((SharedPart(value.index, begin, length),))

    def _is_elementwise(self, op: Op) -> bool:
        """Whether it computes element by element, and all its operands have the shape of the result."""
        if torch.Tag.pointwise not in getattr(op.target, "tags", ()) or op.is_random or not self._is_of_kind(op.spec):
            return False
        assert isinstance(op.spec, Spec)
        specs = [self.body.specs[v.index] for v in op.operands]
        return all(isinstance(s, Spec) and s.shape == op.spec.shape and self._is_of_kind(s) for s in specs)

    def _is_product(self, op: Op) -> bool:
        """Whether it is a row times a shared matrix, with or without a shared bias."""
        if op.target not in PRODUCTS or op.kwargs or not self._is_of_kind(op.spec):
            return False
        assert isinstance(op.spec, Spec)
        *bias, a, w = op.args
        is_row, shape = self.body.is_row, op.spec.shape
        return (
            shape[0] == 1 and is_row[a.index] and not is_row[w.index]
            and all(not is_row[b.index] and self.body.spec(b).shape in (shape, shape[1:]) for b in bias)
        )  # fmt: skip

    def _signature(self, op: Op) -> str:
        """The op in words, with levels in place of its operands."""

        def describe(v: Val) -> _Unquoted:
            return _Unquoted("row" if self.body.is_row[v.index] else "shared")

        return f"{op.target}{swap_vals(op.args, describe)}{swap_vals(op.kwargs, describe)}"


def _is_sum(op: Op | None) -> bool:
    return op is not None and op.target is aten.add.Tensor and not op.kwargs


class _Unquoted(str):
    """A string that prints without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _components(links: Any) -> dict[int, int]:
    """Of each linked value one that stands for all that are linked with it."""
    above: dict[int, int] = {}

    def find(value: int) -> int:
        while above.setdefault(value, value) != value:
            value = above[value]
        return value

    for a, b in links:
        above[find(a)] = find(b)
    return {value: find(value) for value in list(above)}


def _part(body: Body, op: Op) -> tuple[int, int] | None:
    """The elements that a slice or selection along the first dimension takes of its operand; None for anything else."""
    if op.target not in (aten.slice.Tensor, aten.select.int):
        return None
    shape = body.spec(op.args[0]).shape
    dim = (op.args[1] if len(op.args) > 1 else 0) % len(shape)
    if not _is_first(shape, dim):
        return None
    if op.target is aten.select.int:
        first, last, step = op.args[2] % shape[dim], op.args[2] % shape[dim] + 1, 1
    else:
        first, last, step = slice(*(*op.args[2:], None, None, None)[:3]).indices(shape[dim])
    line = math.prod(shape) // max(shape[dim], 1)
    return (first * line, last * line) if step == 1 and first < last else None


def _is_first(shape: tuple[int, ...], dim: int) -> bool:
    """Whether parts along this dimension lie one after the other in memory."""
    return math.prod(shape[: dim % len(shape)]) == 1
