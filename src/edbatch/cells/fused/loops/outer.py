"""Elementwise ops that make a matrix of a column and a row by broadcasting: outer products, which are gradients of
matrices that were multiplied by a vector.

In: an op. Out: whether it is one. Kernels compute elements of such a matrix where they are read, so that the matrix
itself is never written.
"""

from __future__ import annotations

import math

from edbatch.cells.body.body import Body, Op, Val
from edbatch.spec import Spec


def columns(body: Body, op: Op) -> int:
    """n, if an op makes [m, n] of a column [m, 1] or a row [n], and perhaps of matrices and single elements; else 0."""
    shape = _without_ones(op.spec.shape) if isinstance(op.spec, Spec) else ()
    if len(shape) != 2 or shape[1] == 1:
        return 0
    shapes = [_without_ones(body.spec(v).shape) for v in op.operands]
    fits = all(s in (shape, (shape[0], 1), shape[1:]) or math.prod(s) == 1 for s in shapes)
    return shape[1] if fits and not all(math.prod(s) in (1, math.prod(shape)) for s in shapes) else 0


def is_column(body: Body, value: Val) -> bool:
    """Whether an operand that is no matrix is a column, not a row."""
    return len(_without_ones(body.spec(value).shape)) == 2


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while shape[:1] == (1,):
        shape = shape[1:]
    return shape
