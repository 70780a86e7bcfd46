"""Products `[m, k] × [k, n]` of matrices that differ per row of the batch: one batched product per launch.

In: a body and its phases. Out: for each such product, where its matrices lie. They are read in place, by one pointer
each, without a gather. An operand that is a concatenation along k need not be built either: the products of its parts
are added up.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import NamedTuple

import torch

from edbatch.cells.body.body import Body, Val
from edbatch.cells.fused.loops.ranges import behind_shifts
from edbatch.cells.fused.phases import Phases

aten = torch.ops.aten


class Matrix(NamedTuple):
    """A matrix in memory: elements of value `base` from `offset` on, `stride` elements from one line to the next. For a
    shared value, `offset` is a column."""

    base: int
    offset: int
    stride: int
    is_transposed: bool


class RowProduct(NamedTuple):
    """The sum of left × right over pairs (left, right, k), with k as in [m, k] × [k, n]."""

    m: int
    n: int
    pairs: tuple[tuple[Matrix, Matrix, int], ...]


def find_row_products(body: Body, phases: Phases, stored: Container[int]) -> dict[int, RowProduct]:
    """The hard ops (see `phases`) that are such products.

    Args:
        stored: values that will lie in memory anyway, so that concatenations among them are not read in parts.
    """
    finder, found = _Finder(body, phases, stored), {}
    for index in phases.hard:
        op = body.op(index)
        assert op is not None
        if op.target is aten.mm.default and body.is_row[index] and body.is_row[op.args[1].index]:
            (m, k), (_, n) = (body.spec(v).shape for v in op.args)
            if m * k * n > 0 and (body.is_row[op.args[0].index] or n > 1):
                found[index] = finder.product(*op.args)
    return found


class _Finder:
    def __init__(self, body: Body, phases: Phases, stored: Container[int]) -> None:
        self.body, self.phases, self.stored = body, phases, stored

    def product(self, left: Val, right: Val) -> RowProduct:
        (m, k), (_, n) = self.body.spec(left).shape, self.body.spec(right).shape
        if not self.body.is_row[left.index]:
            pairs, begin = [], 0
            for part in self._parts(right):
                height = self.body.spec(part).shape[0]
                pairs.append((Matrix(left.index, begin, 0, False), self._matrix(part), height))
                begin += height
            return RowProduct(m, n, tuple(pairs))
        a, b = self._matrix(left), self._matrix(right)
        if n > 1:
            return RowProduct(m, n, ((a, b, k),))
        line = b._replace(stride=k, is_transposed=False)  # BLAS is quicker with a line than with a column
        return RowProduct(1, m, ((line, a._replace(is_transposed=not a.is_transposed), k),))

    def _parts(self, value: Val) -> list[Val]:
        """The matrices that a matrix is concatenated of, one below the other, if all lie in memory; else itself."""
        op = self.body.op(value)
        if self._is_put_together(value.index) and op is not None and op.args[1] % 2 == 0:
            parts: list[Val] = op.args[0]
            if not any(self._matrix(part).base in self.phases.soft for part in parts):
                return parts
        return [value]

    def _matrix(self, value: Val) -> Matrix:
        """Where the elements of a matrix lie."""
        op, is_known = self.body.op(value), self.phases.program.inputs.__contains__
        is_transposed = not is_known(value.index) and op is not None and op.target is aten.permute.default
        if is_transposed:
            assert op is not None
            value = op.args[0]
        base, offset = behind_shifts(self.body, value, is_known)
        part, begin = self._part_at(base, offset, math.prod(self.body.spec(value).shape))
        if part not in self.phases.soft and self.body.is_row[part]:
            base, offset = part, begin
        return Matrix(base, offset, self.body.spec(value).shape[1], is_transposed)

    def _part_at(self, base: int, offset: int, size: int) -> tuple[int, int]:
        """If `base` is a concatenation: the part of it that holds a range of elements, and where; else as given."""
        begin = 0
        for part in self.body.op(base).args[0] if self._is_put_together(base) else ():  # type: ignore[union-attr]
            end = begin + math.prod(self.body.spec(part).shape)
            if begin <= offset and offset + size <= end:
                found, first = behind_shifts(self.body, part, self.phases.program.inputs.__contains__)
                return found, first + offset - begin
            begin = end
        return base, offset

    def _is_put_together(self, index: int) -> bool:
        op = self.body.op(index)
        is_soft = index in self.phases.soft and index not in self.stored
        return is_soft and op is not None and op.target is aten.cat.default
