"""Turns the ops of a cell into the `CellGraph` that the planner of memory inside cells (`pq`) needs, and names them.

In: a `Body`, the captured ops of a cell for one example. Out: an `AbstractCell`. Only what the outputs need and what
differs between examples counts. Views are not ops: a reader of a view reads the memory behind it. Nor is joining along
the first dimension (`torch.cat`), which is a view if the parts lie side by side; nor cutting along it (`chunk`), which
gives such parts.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import torch

from edbatch.cells.body.body import VIEWS, Body, Op, Val, live_values, swap_vals
from edbatch.pq.cell_layout import CellGraph, CellOp, Operand, Parameter, Run
from edbatch.spec import Spec
from edbatch.torch_insides import pytree

aten = torch.ops.aten
PRODUCTS = frozenset({aten.mm.default, aten.addmm.default})


@dataclass(frozen=True)
class Ref:
    """A value of the body as memory: neighbouring values of the graph (a run), seen through views.

    views: only those whose results are not themselves a run.
    """

    run: Run
    views: tuple[str, ...] = ()


@dataclass(frozen=True)
class AbstractCell:
    """A cell for the planner.

    graph: inputs and outputs lie in tensors of their own. inputs: the values of the graph that are inputs of the cell.
    """

    graph: CellGraph
    inputs: frozenset[int]
    value_names: tuple[str, ...]
    op_names: tuple[str, ...]


def abstract(body: Body) -> AbstractCell:
    """The graph of the forward part of a body."""
    return _Abstraction(body).run()


class _Abstraction:
    def __init__(self, body: Body) -> None:
        self.body = body
        self.live = sorted(i for i in live_values(body, body.outputs) if body.is_row[i])
        self.sizes: list[int] = []
        self.value_names: list[str] = []
        self.refs: dict[int, Ref] = {}
        self.ops: list[CellOp] = []
        self.op_names: list[str] = []
        self.cuts = self._find_cuts()

    def run(self) -> AbstractCell:
        for index in self.live:
            op = self.body.op(index)
            self.refs[index] = self._input(index) if op is None else self._view(index, op) or self._made(index, op)
        inputs = frozenset(v for i in self.live if self.body.op(i) is None for v in self.refs[i].run)
        rows = [number for number, value in enumerate(self.body.outputs) if self.body.is_row[value.index]]
        outputs = frozenset(map(self._output, rows))
        graph = CellGraph(tuple(self.sizes), tuple(_widen(self.ops)), inputs | outputs)
        return AbstractCell(graph, inputs, tuple(self.value_names), tuple(self.op_names))

    def _value(self, name: str, size: int) -> int:
        self.value_names.append(name)
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _input(self, index: int) -> Ref:
        return Ref((self._value(f"%{index}", _num_bytes(self.body.specs[index])),))

    def _view(self, index: int, op: Op) -> Ref | None:
        """The memory that the result of a view refers to; None for other ops."""
        if op.target is aten.cat.default:
            return self._join(op)
        if op.target is not operator.getitem and op.target not in VIEWS:
            return None
        base = self.refs[op.args[0].index]
        if op.target is aten.view.default and not base.views:
            return base
        part = _part(self.body, op)
        if part is not None and not base.views and len(base.run) > 1:
            return self._part_of(base, part)
        return Ref(base.run, (*base.views, f"{op.name}{op.args[1:]}"))

    def _join(self, op: Op) -> Ref | None:
        shapes = [self.body.spec(v).shape for v in op.args[0]]
        if not all(self.body.is_row[v.index] and not self.refs[v.index].views for v in op.args[0]):
            return None
        if any(len(shape) != len(shapes[0]) or not _is_first(shape, op.args[1]) for shape in shapes):
            return None
        return Ref(tuple(chain.from_iterable(self.refs[v.index].run for v in op.args[0])))

    def _part_of(self, base: Ref, part: tuple[int, int]) -> Ref:
        ends = [0]
        for value in base.run:
            ends.append(ends[-1] + self.sizes[value])
        inside = tuple(v for v, (a, b) in zip(base.run, pairwise(ends), strict=True) if part[0] <= a and b <= part[1])
        if sum(self.sizes[v] for v in inside) != part[1] - part[0]:
            return Ref(base.run, (f"bytes{part}",))  # the part cuts through a value
        return Ref(inside)

    def _find_cuts(self) -> dict[int, list[int]]:
        """For each value that an op makes, at which bytes later ops cut it."""
        root = {index: index for index in self.live}
        cuts: dict[int, set[int]] = {}
        for index in self.live:
            op = self.body.op(index)
            if op is None:
                continue
            if op.target is aten.view.default:
                root[index] = root[op.args[0].index]
            elif (part := _part(self.body, op)) is not None:
                cuts.setdefault(root[op.args[0].index], set()).update(part)
        whole = {root[v.index] for v in self.body.outputs if v.index in root}  # outputs have tensors of their own
        size_of = {index: _num_bytes(self.body.specs[index]) for index in cuts.keys() - whole}
        return {index: sorted(cuts[index] - {0, size}) for index, size in size_of.items()}

    def _made(self, index: int, op: Op) -> Ref:
        places, item = [0, *self.cuts.get(index, ()), _num_bytes(op.spec)], _item_size(op.spec)
        names = (
            [f"%{index}[{a // item}:{b // item}]" for a, b in pairwise(places)] if len(places) > 2 else [f"%{index}"]
        )
        results = tuple(self._value(name, b - a) for name, (a, b) in zip(names, pairwise(places), strict=True))
        self.ops.append(CellOp(self._signature(index, op), self._operands(op), results, op.target in PRODUCTS))
        self.op_names.append(f"{', '.join(names)} = {op.replace(self._text)}")
        return Ref(results)

    def _text(self, value: Val) -> Unquoted:
        """A value in words: the names of the memory that is read, and the views."""
        ref = self.refs.get(value.index)
        if ref is None:
            return Unquoted(f"shared {value}")
        names = " ".join(self.value_names[v] for v in ref.run)
        return Unquoted("".join((f"({names})" if len(ref.run) > 1 else names, *(f".{view}" for view in ref.views))))

    def _operands(self, op: Op) -> tuple[Operand, ...]:
        return tuple(
            self.refs[v.index].run if self.body.is_row[v.index] else Parameter(v.index) for v in op.operands
        )  # fmt: skip

    def _signature(self, index: int, op: Op) -> str:
        """The op in words, with specs in place of its operands; ops with the same words may run as one batch."""

        def describe(v: Val) -> Unquoted:
            kind = "" if self.body.is_row[v.index] else "shared "
            ref = self.refs.get(v.index)
            views = f" by {ref.views} of {sum(self.sizes[v] for v in ref.run)} bytes" if ref and ref.views else ""
            return Unquoted(f"{kind}{self.body.specs[v.index]}{views}")

        alone = f" #{index}" if op.is_random or _holds_tensor(op) else ""
        return f"{op.target}{swap_vals(op.args, describe)}{swap_vals(op.kwargs, describe)} : {op.spec}{alone}"

    def _output(self, number: int) -> int:
        """The value that holds an output. If no op makes the output there, one more op is added that writes it."""
        output = self.body.outputs[number]
        ref = self.refs[output.index]
        makers = {value for op in self.ops for value in op.results}
        if len(ref.run) == 1 and not ref.views and ref.run[0] in makers:
            return ref.run[0]
        name = f"out{number}"
        value = self._value(name, _num_bytes(self.body.specs[output.index]))
        self.ops.append(CellOp(f"write {name}", (ref.run,), (value,)))
        self.op_names.append(f"{name} = {self._text(output)}")
        return value


class Unquoted(str):
    """A string that prints without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _widen(ops: list[CellOp]) -> list[CellOp]:
    """Give products of one value with different weights a signature of their own, so that they become one wide product.

    All other ops are not wide.
    """

    def shared_operand(op: CellOp) -> tuple[Any, ...] | None:
        runs = [operand for operand in op.operands if not isinstance(operand, Parameter)]
        return (op.signature, runs[0]) if op.is_wide and len(runs) == 1 else None

    counts = Counter(map(shared_operand, ops))
    widened = []
    for op in ops:
        key = shared_operand(op)
        if key is not None and counts[key] > 1:
            widened.append(replace(op, signature=key))
        else:
            widened.append(replace(op, is_wide=False))
    return widened


def _part(body: Body, op: Op) -> tuple[int, int] | None:
    """The bytes that a slice or selection along the first dimension takes of its operand; None for anything else."""
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
    line = _num_bytes(body.specs[op.args[0].index]) // max(shape[dim], 1)
    return (first * line, last * line) if step == 1 and first < last else None


def _is_first(shape: tuple[int, ...], dim: int) -> bool:
    """Whether parts along this dimension lie one after the other in memory."""
    return math.prod(shape[: dim % len(shape)]) == 1


def _holds_tensor(op: Op) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((op.args, op.kwargs)))


def _num_bytes(spec: Any) -> int:
    if isinstance(spec, Spec):
        return math.prod(spec.shape) * spec.dtype.itemsize
    return sum(map(_num_bytes, spec or ()))


def _item_size(spec: Any) -> int:
    return spec.dtype.itemsize if isinstance(spec, Spec) else 1
