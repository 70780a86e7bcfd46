"""Ops along a whole row in generated kernels: sums, extremes, softmax, lookups by index. A table with one row per op.

In: an op. Out: an `Element`: how an element of the result follows from elements of the operands and from numbers of the
row. Such a number, the largest element for example, is found by an earlier loop over the row. Only ops along all
elements of an example's value fit; others stay calls of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from edbatch.cells.body.body import Body, Op, Val
from edbatch.cells.fused.loops.pointwise import CASTS, DTYPES, FLOATS, number
from edbatch.spec import Spec

aten = torch.ops.aten
# Elements: ops along longer rows are left to torch, which uses all threads. With one thread it is as fast from here on;
# with two it takes two thirds of the time.
WIDEST = 4096
_LAST = "int64(9223372036854775807)"


class Row(NamedTuple):
    """One number per row: the variable that holds it, and the first stage of loops that may read it."""

    name: str
    stage: int

    def __str__(self) -> str:
        return self.name


class Joining(NamedTuple):
    """A way to reduce elements to one number: the start value, and how two numbers are joined."""

    start: str
    join: str


class Element(NamedTuple):
    """The text of element j of a result. In it {0}, {1}, … stand for element j (or the only one) of each of `values`,
    and {j} for j. `rows` are the numbers of the row that the text contains."""

    text: str
    values: Sequence[Val] = ()
    rows: Sequence[Row] = ()


class RowNumbers(Protocol):
    """Writes loops that find numbers of a row, see `loops.Loops`."""

    body: Body

    def reduce(self, kind: Joining, term: Element) -> Row:
        """A term, computed for every element and reduced to one number."""
        ...

    def pick(self, value: Val, at: Row) -> Row:
        """The element of a value whose index is itself a number of the row."""
        ...

    def row(self, text: str, *rows: Row) -> Row:
        """A number computed from others."""
        ...

    def place(self, value: Val, size: int, from_end: bool) -> Row:
        """An index from data, of one of `size` elements; kernels raise IndexError if it is out of range."""
        ...

    def size(self, value: Val) -> str:
        """How many elements a value has."""
        ...

    def of_table(self, table: Val, at: Row) -> str:
        """The text of element {j} of one line of a shared matrix."""
        ...


ONLY = Joining("int64(0)", "{1}")  # for a value of one element
_LARGEST = {dtype: Joining(f"upper_key({CASTS[dtype]}(-inf))", "max({0}, {1})") for dtype in FLOATS}
_SMALLEST = {dtype: Joining(f"lower_key({CASTS[dtype]}(inf))", "min({0}, {1})") for dtype in FLOATS}
_TOTAL, _COUNT = Joining("float64(0)", "plus({0}, {1})"), Joining("int64(0)", "wrapped_sum({0}, {1})")
_FIRST = Joining(_LAST, "min({0}, {1})")


def _total(loops: RowNumbers, text: str, values: Sequence[Val], *rows: Row) -> Row:
    """The sum of a term of floats, in float64. torch adds pairwise, and rounding must not be worse here."""
    return loops.reduce(_TOTAL, Element(f"float64({text})", values, rows))


def _sum(loops: RowNumbers, op: Op) -> Element:
    (x,) = op.operands
    dtype = loops.body.spec(x).dtype
    if dtype not in FLOATS:
        return _alone(loops.reduce(_COUNT, Element("int64({0})", [x])))
    total = _total(loops, "{0}", [x])
    return _alone(loops.row(f"{CASTS[dtype]}({total})", total))


def _mean(loops: RowNumbers, op: Op) -> Element:
    (x,) = op.operands
    total = _total(loops, "{0}", [x])
    return _alone(loops.row(f"{CASTS[loops.body.spec(x).dtype]}({total} / float64({loops.size(x)}))", total))


def _largest(loops: RowNumbers, x: Val) -> Row:
    key = loops.reduce(_LARGEST[loops.body.spec(x).dtype], Element("upper_key({0})", [x]))
    return loops.row(f"of_key({key})", key)


def _smallest(loops: RowNumbers, x: Val) -> Row:
    key = loops.reduce(_SMALLEST[loops.body.spec(x).dtype], Element("lower_key({0})", [x]))
    return loops.row(f"of_key({key})", key)


def _extreme(find: Callable[[RowNumbers, Val], Row]) -> Callable[[RowNumbers, Op], Element]:
    return lambda loops, op: _alone(find(loops, op.args[0]))


def _place_of(find: Callable[[RowNumbers, Val], Row]) -> Callable[[RowNumbers, Op], Element]:
    """The first index of an extreme; of a NaN if there is one, since the extreme is NaN then."""

    def rule(loops: RowNumbers, op: Op) -> Element:
        (x,) = op.operands
        extreme = find(loops, x)
        text = f"({{j}} if {{0}} == {extreme} or {{0}} != {{0}} else {_LAST})"
        return _alone(loops.reduce(_FIRST, Element(text, [x], [extreme])))

    return rule


def _exponentials(loops: RowNumbers, x: Val) -> tuple[str, Row, Row]:
    """exp(element - largest) as a text, the largest element, and the sum of these exponentials."""
    dtype = loops.body.spec(x).dtype
    top = _largest(loops, x)
    text = f"exp_{DTYPES[dtype]}({{0}} - {top})"
    return text, top, _total(loops, text, [x], top)


def _log(loops: RowNumbers, x: Val, total: Row) -> Row:
    dtype = loops.body.spec(x).dtype
    return loops.row(f"log_{DTYPES[dtype]}({CASTS[dtype]}({total}))", total)


def _softmax(loops: RowNumbers, op: Op) -> Element:
    (x,) = op.operands
    text, top, total = _exponentials(loops, x)
    total = loops.row(f"{CASTS[loops.body.spec(x).dtype]}({total})", total)
    return Element(f"{text} / {total}", [x], [top, total])


def _log_softmax(loops: RowNumbers, op: Op) -> Element:
    (x,) = op.operands
    _, top, total = _exponentials(loops, x)
    log = _log(loops, x, total)
    return Element(f"({{0}} - {top}) - {log}", [x], [top, log])


def _logsumexp(loops: RowNumbers, op: Op) -> Element:
    """As in torch, an infinite largest element is not subtracted (it counts as 0), so that the result is infinite."""
    (x,) = op.operands
    dtype = loops.body.spec(x).dtype
    zero = number(0, dtype)
    top = _largest(loops, x)
    top = loops.row(f"({zero} if abs({top}) == {number(math.inf, dtype)} else {top})", top)
    log = _log(loops, x, _total(loops, f"exp_{DTYPES[dtype]}({{0}} - {top})", [x], top))
    return _alone(loops.row(f"{log} + {top}", log, top))


def _softmax_backward(loops: RowNumbers, op: Op) -> Element:
    gradient, result = op.args[:2]
    total = _total(loops, "{0} * {1}", [gradient, result])
    total = loops.row(f"{CASTS[loops.body.spec(result).dtype]}({total})", total)
    return Element(f"({{0}} - {total}) * {{1}}", [gradient, result], [total])


def _log_softmax_backward(loops: RowNumbers, op: Op) -> Element:
    gradient, result = op.args[:2]
    dtype = loops.body.spec(result).dtype
    total = _total(loops, "{0}", [gradient])
    total = loops.row(f"{CASTS[dtype]}({total})", total)
    return Element(f"{{0}} - exp_{DTYPES[dtype]}({{1}}) * {total}", [gradient, result], [total])


def _where(loops: RowNumbers, op: Op) -> Row:
    """The index of a `gather`, `scatter`, `index` or `index_put`; the last two also take negative ones."""
    from_end = isinstance(op.args[1], tuple)
    index = op.args[1][-1] if from_end else op.args[2]
    return loops.place(index, math.prod(loops.body.spec(op.args[0]).shape), from_end)


def _take(loops: RowNumbers, op: Op) -> Element:
    return _alone(loops.pick(op.args[0], _where(loops, op)))


def _look_up(loops: RowNumbers, op: Op) -> Element:
    table, index = op.args[0], op.args[1] if op.target is aten.embedding.default else op.args[2]
    at = loops.place(index, loops.body.spec(table).shape[0], from_end=False)
    return Element(loops.of_table(table, at), (), [at])


def _put(add: Callable[[Op], bool]) -> Callable[[RowNumbers, Op], Element]:
    """All elements as they are, but for one that is replaced by a value, or to which it is added."""

    def rule(loops: RowNumbers, op: Op) -> Element:
        x, given = op.args[0], op.args[2 if isinstance(op.args[1], tuple) else 3]
        at, dtype = _where(loops, op), loops.body.spec(x).dtype
        is_value = isinstance(given, Val)
        one = "{1}" if is_value else number(given, dtype)
        if add(op):
            one = f"{{0}} + {one}" if dtype in FLOATS else f"wrapped_sum({{0}}, {one})"
        return Element(f"({one} if {{j}} == {at} else {{0}})", [x, given] if is_value else [x], [at])

    return rule


def _alone(row: Row) -> Element:
    return Element(row.name, (), [row])


# Which ops fit.
def _along(body: Body, op: Op) -> bool:
    """Whether an op runs along all elements of its first operand, and these are neither none nor too many."""
    shape, dims = body.spec(op.args[0]).shape, op.args[1] if len(op.args) > 1 else None
    dims = [dims] if isinstance(dims, int) else dims or range(len(shape))
    return _is_flat(shape, dims) and math.prod(shape) < WIDEST


def _is_flat(shape: Sequence[int], dims: Sequence[int]) -> bool:
    inside = math.prod(shape[d] for d in {d % len(shape) for d in dims}) if shape else 1
    return math.prod(shape) == inside > 0


def _floats(body: Body, op: Op) -> bool:
    """The same, for floats and a result of the same dtype."""
    assert isinstance(op.spec, Spec)
    return _along(body, op) and body.spec(op.args[0]).dtype is op.spec.dtype and op.spec.dtype in FLOATS


def _summable(body: Body, op: Op) -> bool:
    assert isinstance(op.spec, Spec)
    counts = op.spec.dtype is torch.int64 and body.spec(op.args[0]).dtype in (torch.int64, torch.bool)
    return _floats(body, op) or (counts and _along(body, op))


def _orderable(body: Body, op: Op) -> bool:
    return _along(body, op) and body.spec(op.args[0]).dtype in FLOATS


def _backward(body: Body, op: Op) -> bool:
    gradient, result, dim, _ = op.args
    spec = body.spec(result)
    same = spec.dtype in FLOATS and body.spec(gradient) == spec == op.spec
    return same and _is_flat(spec.shape, [dim]) and math.prod(spec.shape) < WIDEST


def _one_place(body: Body, op: Op) -> bool:
    """Whether an op reads or writes one element of a whole row, by its index."""
    x, where = op.args[:2]
    if isinstance(where, tuple):
        dim, index, given = len(where) - 1, where[-1], op.args[2:3]
        if not isinstance(index, Val) or any(i is not None for i in where[:-1]):
            return False
    else:
        dim, index, given = where, op.args[2], op.args[3:4]
    one = all(math.prod(body.spec(v).shape) == 1 for v in (index, *given) if isinstance(v, Val))
    shape, dtypes = body.spec(x).shape, [body.spec(v).dtype for v in (x, *given) if isinstance(v, Val)]
    fits = body.spec(index).dtype is torch.int64 and len(set(dtypes)) == 1 and not op.kwargs and bool(shape)
    constant = all(isinstance(v, Val) or number(v, dtypes[0]) is not None for v in given)
    return one and fits and constant and torch.bool not in dtypes and _is_flat(shape, [dim])


def _one_row(body: Body, op: Op) -> bool:
    """Whether an op reads one line of a shared matrix by its index. A constant (`full`) is not in memory."""
    table, *dim, index = op.args[:2] if op.target is aten.embedding.default else op.args
    spec, made = body.spec(table), body.op(table)
    is_table = not body.is_row[table.index] and len(spec.shape) == 2 and 0 not in spec.shape and dim in ([], [0])
    lies_somewhere = made is None or made.target is not aten.full.default
    is_one = body.spec(index).dtype is torch.int64 and math.prod(body.spec(index).shape) == 1
    return is_table and lies_somewhere and is_one


class Rule(NamedTuple):
    fits: Callable[[Body, Op], bool]
    element: Callable[[RowNumbers, Op], Element]
    is_exact: bool = True  # or it uses functions that differ from torch's in the last bits


REDUCTIONS: dict[Any, Rule] = {
    aten.sum.dim_IntList: Rule(_summable, _sum), aten.mean.dim: Rule(_floats, _mean),
    aten.amax.default: Rule(_floats, _extreme(_largest)), aten.amin.default: Rule(_floats, _extreme(_smallest)),
    aten.argmax.default: Rule(_orderable, _place_of(_largest)),
    aten.argmin.default: Rule(_orderable, _place_of(_smallest)),
    aten._softmax.default: Rule(_floats, _softmax, False),
    aten._log_softmax.default: Rule(_floats, _log_softmax, False),
    aten.logsumexp.default: Rule(_floats, _logsumexp, False),
    aten._softmax_backward_data.default: Rule(_backward, _softmax_backward),
    aten._log_softmax_backward_data.default: Rule(_backward, _log_softmax_backward, False),
    aten.gather.default: Rule(_one_place, _take), aten.index.Tensor: Rule(_one_place, _take),
    aten.embedding.default: Rule(_one_row, _look_up), aten.index_select.default: Rule(_one_row, _look_up),
    aten.scatter.src: Rule(_one_place, _put(lambda op: False)),
    aten.scatter.value: Rule(_one_place, _put(lambda op: False)),
    aten.scatter_add.default: Rule(_one_place, _put(lambda op: True)),
    aten.index_put.default: Rule(_one_place, _put(lambda op: op.args[3:4] == (True,))),
}  # fmt: skip


def is_reduction(body: Body, op: Op, exact_math: bool) -> bool:
    """Whether an op runs along a row in generated kernels."""
    rule = REDUCTIONS.get(op.target)
    return rule is not None and (rule.is_exact or not exact_math) and rule.fits(body, op)
