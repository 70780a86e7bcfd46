"""Hoisting: a cell is cut in two, so that matrix products that wait for no recurrence run ahead, for all steps at once.

In: a cell's body, how to capture it again, and which operands are recurrent. Out: the two captured parts that together
equal the cell, or None if that is not worth while. The part ahead computes a few values (the cuts). The part that
remains takes them as further operands, after those that it still reads itself, and gives their gradients back. The cell
is captured once to see where it can be cut and once with the cuts, so that autograd itself derives the gradients of
both parts (see `cutting`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from edbatch.cells.body.body import Body, Val, live_values
from edbatch.cells.capture.capture import Captured
from edbatch.cells.capture.recapture import Recapture
from edbatch.spec import Spec
from edbatch.torch_insides import pytree
from edbatch.torch_insides.ops import schema_if_any

aten = torch.ops.aten
PRODUCTS = frozenset({
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default,
})  # fmt: skip
MAX_WIDTH = 16  # the cuts of a node have at most so many times the elements of its largest argument or result


@dataclass(frozen=True)
class CapturedPart:
    """One of the two captured parts of a cell. `rows` and `shared`: which operands and shared arguments of the cell it
    reads, in its own order."""

    captured: Captured
    rows: tuple[int, ...]
    shared: tuple[int, ...]


def hoist(body: Body, again: Recapture, recurrent: Sequence[bool]) -> tuple[CapturedPart, CapturedPart] | None:
    """The part of a cell that can run ahead and the part that remains; None if every product depends on a recurrent
    operand, or if the body draws random numbers.

    Raises:
        CaptureError: the cell cannot be captured in two parts.
    """
    if any(op.is_random for op in body.ops) or not any(_Levels(body, recurrent).has_product):
        return None
    traced = again(())
    cuts = find_cuts(traced.body, traced.seen, recurrent)
    if not cuts:
        return None
    captured = again(cuts)
    if captured.ahead is None or len(captured.ahead.outputs) < len(cuts):
        return None
    last = range(len(body.rows), len(captured.body.rows))
    results, tree = pytree.tree_flatten((None,) * len(cuts), is_leaf=lambda x: x is None)
    ahead = replace(captured, body=captured.ahead, leaves=tuple(results), tree=tree)
    return _captured_part(ahead, again, ()), _captured_part(captured, again, last)


def find_cuts(body: Body, seen: Collection[int], recurrent: Sequence[bool]) -> list[int]:
    """The numbers of the ops to cut at: the last values before the recurrence that are computed from a product.

    Args:
        body: as captured. seen: the numbers of the ops that can be cut at.
    """
    levels = _Levels(body, recurrent)
    can_cut = {body.num_inputs + number for number in seen}
    found = _first(body, _fewest(levels, can_cut, _smallest(levels, can_cut)))
    arguments = [*body.rows, *(body.spec(v) for v in body.outputs)]
    if levels.total(found) > MAX_WIDTH * max(math.prod(spec.shape) for spec in arguments):
        return []  # such as a matrix for every node: together they would take more memory than all else
    return [value - body.num_inputs for value in found]


class _Levels:
    """What every value of a body depends on. `is_recurrent`: on a recurrent operand or a tangent. `has_product`: on
    none of these, but on a matrix product of another operand, so it can be computed ahead."""

    def __init__(self, body: Body, recurrent: Sequence[bool]) -> None:
        self.body = body
        self.is_recurrent = [*recurrent, *[False] * len(body.shared), *[True] * len(body.tangents)]
        self.has_product = [False] * body.num_inputs
        for i, op in enumerate(body.ops):
            operands = [v.index for v in op.operands]
            self.is_recurrent.append(any(self.is_recurrent[v] for v in operands))
            ahead = not self.is_recurrent[-1] and body.is_row[body.num_inputs + i]
            product = _is_product(body, body.num_inputs + i) or any(self.has_product[v] for v in operands)
            self.has_product.append(ahead and product)

    @property
    def ahead(self) -> Iterator[int]:
        """The values that can be computed ahead and contain a product, in order."""
        return (i for i, found in enumerate(self.has_product) if found)

    def boundary(self) -> Iterator[int]:
        """Those of `ahead` that recurrent ops read or that are results."""
        live = sorted(live_values(self.body, self.body.outputs))
        ops = [op for i in live if self.is_recurrent[i] and (op := self.body.op(i)) is not None]
        read = [v.index for v in (*self.body.outputs, *(v for op in ops for v in op.operands))]
        return (i for i in read if self.has_product[i])

    def behind(self, value: int) -> list[int]:
        """Those of `ahead` that a value is computed from."""
        op = self.body.op(value)
        return [] if op is None else list({v.index: None for v in op.operands if self.has_product[v.index]})

    def size(self, value: int) -> int:
        spec = self.body.specs[value]
        parts = spec if isinstance(spec, tuple) else (spec,)
        return sum(math.prod(part.shape) for part in parts if isinstance(part, Spec))

    def total(self, values: Iterable[int] | None) -> float:
        return math.inf if values is None else sum(map(self.size, values))


def _smallest(levels: _Levels, can_cut: Collection[int]) -> list[int]:
    """Cuts between the products and the recurrence, where the values are smallest, such as before a broadcast. Among
    values of one size the last is taken."""
    best: dict[int, dict[int, None] | None] = {}  # the cuts from which a value follows; None: not without a product
    for value in levels.ahead:
        parts = [best[b] for b in levels.behind(value)]
        best[value] = (
            None if _is_product(levels.body, value) or None in parts else {c: None for p in parts for c in p or ()}
        )
        if value in can_cut and levels.size(value) <= levels.total(best[value]):
            best[value] = {value: None}
    found = _search(levels, levels.boundary(), lambda value: best[value] is not None)
    return list(dict.fromkeys(cut for value in found for cut in best[value] or ()))


def _fewest(levels: _Levels, can_cut: Collection[int], cuts: list[int]) -> list[int]:
    """Cuts right after the products instead, if they are fewer and no larger: one operand instead of its slices."""
    views: dict[int, int] = {}  # a view of a product -> the earliest one that can be cut at
    for value in levels.ahead:
        behind = levels.behind(value)
        if _is_product(levels.body, value) or (_is_view(levels.body, value) and behind[0] in views):
            views[value] = value if _is_product(levels.body, value) else views[behind[0]]
            views[value] = views[value] if views[value] in can_cut else value
    products = _search(levels, cuts, lambda value: views.get(value) in can_cut)
    products = list(dict.fromkeys(views[value] for value in products))
    is_better = len(products) < len(cuts) and levels.total(products) <= levels.total(cuts)
    return products if is_better else cuts


def _search(levels: _Levels, start: Iterable[int], is_found: Callable[[int], bool]) -> list[int]:
    """Walks back from `start` along operands; on every path the first value that `is_found` accepts, if any."""
    met = dict.fromkeys(start)
    waiting, found = list(met), []
    for value in waiting:
        if is_found(value):
            found.append(value)
            continue
        behind = [b for b in levels.behind(value) if b not in met]
        met.update(dict.fromkeys(behind))
        waiting += behind
    return found


def _first(body: Body, cuts: list[int]) -> list[int]:
    """The cuts that depend on no other cut: after a cut the function goes on with a new leaf, so nothing is ahead."""
    found: list[int] = []
    for cut in sorted(cuts):
        if live_values(body, [Val(cut)]).isdisjoint(found):
            found.append(cut)
    return found


def _is_product(body: Body, value: int) -> bool:
    op = body.op(value)
    return op is not None and op.target in PRODUCTS


def _is_view(body: Body, value: int) -> bool:
    op = body.op(value)
    if op is not None and op.target is operator.getitem:
        op = body.op(op.args[0])
    returns = None if op is None else schema_if_any(op.target)
    return returns is not None and any(r.alias_info is not None for r in returns.returns)


def _captured_part(captured: Captured, again: Recapture, kept: Collection[int]) -> CapturedPart:
    """A captured part, without the inputs that it does not need; the rows in `kept` stay."""
    body = captured.body
    live = live_values(body, body.results)
    first, tangent = len(body.rows), len(body.rows) + len(body.shared)
    rows = [i for i in range(first) if i in live or i in kept or body.row_grads[i] is not None]
    shared = [i for i, g in enumerate(body.shared_grads) if first + i in live or g is not None]
    tangents = [t.index - tangent for t in body.tangent_of if t is not None]
    inputs = [*rows, *(first + i for i in shared), *(tangent + i for i in tangents)]
    ops = [(i, op) for i, op in enumerate(body.ops, body.num_inputs) if i in live]
    now = {old: Val(i) for i, old in enumerate([*inputs, *(i for i, _ in ops)])}

    def renamed(values: Sequence[Val | None]) -> tuple[Val | None, ...]:
        return tuple(None if v is None else now[v.index] for v in values)

    restricted = Body(
        tuple(body.rows[i] for i in rows), tuple(body.shared[i] for i in shared),
        tuple(body.tangents[i] for i in tangents), tuple(op.replace(lambda v: now[v.index]) for _, op in ops),
        tuple(now[v.index] for v in body.outputs), renamed([body.row_grads[i] for i in rows]),
        renamed([body.shared_grads[i] for i in shared]), renamed(body.tangent_of),
        tuple(frozenset(now[i].index for i in reached if i in now) for reached in body.reach),
    )  # fmt: skip
    explicit = len(again.shared)
    return CapturedPart(
        replace(
            captured, body=restricted.check(), ahead=None,
            enclosed=tuple(captured.enclosed[i - explicit] for i in shared if i >= explicit),
            sparse=frozenset(k for k, i in enumerate(shared) if i in captured.sparse),
        ),
        tuple(i for i in rows if i not in kept), tuple(i for i in shared if i < explicit),
    )  # fmt: skip
