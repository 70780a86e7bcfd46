"""Matrix products of concatenated operands and of their parts: every operand is to be gathered only once.

In: a body. Out: an equal body with no more products, of which more share an operand or run as one batched product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate

import torch

from edbatch.cells.body.body import Body, Draft, Op, Val
from edbatch.cells.body.rewriting import behind_views, early, is_product, shared_first, walk
from edbatch.cells.body.simplify import view
from edbatch.spec import Spec

aten = torch.ops.aten
LARGEST_WEIGHT = 1 << 17  # elements of one weight in a batched product


def read_pieces(body: Body) -> Body:
    """Products of an operand that is also part of a concatenation read it as a slice of that, so it is gathered once.

    The product of the concatenation itself becomes a sum of products of its parts, if that makes no more products in
    all: mm([a b], w), mm(a, v) → mm(a, top of w) + mm(b, bottom of w), mm(a, v), of which two share a.
    """
    ops = range(body.num_inputs, len(body.specs))
    products = [i for i in ops if is_product(body, i)]
    read = {behind_views(body, body.op(i).args[0]).index for i in products}  # type: ignore[union-attr]
    operands = [v for i in ops if body.op(i).target is aten.mm.default for v in body.op(i).args]  # type: ignore[union-attr]
    wholes = {whole.index: _pieces(body, whole) for whole in (behind_views(body, v) for v in operands)}
    sections: dict[int, tuple[int, int, int]] = {}  # an input -> (the concatenation it is part of, begin, end)
    for whole, parts in wholes.items():
        for section, begin, end in parts:
            if section.index < len(body.rows):
                sections.setdefault(section.index, (whole, begin, end))
    if not sections:
        return body
    vectors = {i: parts for i, parts in wholes.items() if i in read and len(body.spec(Val(i)).shape) == 1}
    split = {i for i, parts in vectors.items() if 0 < len(parts) <= 1 + sum(p.index in read for p, _, _ in parts)}
    slices: dict[tuple[int, int, int], Val] = {}

    def section_of(draft: Draft, now: dict[int, Val], place: tuple[int, int, int]) -> Val:
        if place not in slices:
            whole, begin, end = place
            like = body.spec(Val(whole))
            spec = Spec((end - begin, *like.shape[1:]), like.dtype, like.device)
            slices[place] = draft.call(aten.slice.Tensor, now[whole], 0, begin, end, spec=spec)
        return slices[place]

    def rewrite(draft: Draft, index: int, op: Op, now: dict[int, Val]) -> Val:
        if op.target not in (aten.mm.default, aten.permute.default) or not body.is_row[index]:
            return draft.add(op)
        base = [behind_views(body, v).index for v in body.op(index).operands]  # type: ignore[union-attr]
        if index in products and base[0] in split:
            terms = []
            for _, begin, end in wholes[base[0]]:
                row = view(draft, section_of(draft, now, (base[0], begin, end)), (1, end - begin))
                terms.append(draft.call(aten.mm.default, row, _rows_of(draft, op.args[1], begin, end), spec=op.spec))
            return reduce(lambda x, y: draft.call(aten.add.Tensor, x, y, spec=op.spec), terms)
        here = {
            given.index: view(draft, section_of(draft, now, sections[b]), draft.spec(given).shape)
            for b, given in zip(base, op.operands, strict=True)
            if b in sections and sections[b][0] in now
        }
        return draft.add(op.replace(lambda v: here.get(v.index, v)))

    return walk(body, rewrite, early(body, [Val(whole) for whole, _, _ in sections.values()]))


def _pieces(body: Body, value: Val) -> list[tuple[Val, int, int]]:
    """The parts of a concatenation, and where each begins and ends; nothing for other values."""
    op = body.op(value)
    if op is None or op.target is not aten.cat.default or op.args[1] != 0 or not body.is_row[value.index]:
        return []
    ends = list(accumulate(body.spec(section).shape[0] for section in op.args[0]))
    return list(zip(op.args[0], [0, *ends[:-1]], ends, strict=True))


def _rows_of(draft: Draft, weight: Val, begin: int, end: int) -> Val:
    """Lines begin to end of a shared matrix; if it is transposed, as columns of the original."""
    spec, op = draft.spec(weight), draft.op(weight)
    part = Spec((end - begin, spec.shape[1]), spec.dtype, spec.device)
    if op is None or op.target is not aten.permute.default:
        return draft.call(aten.slice.Tensor, weight, 0, begin, end, spec=part)
    turned = Spec(part.shape[::-1], spec.dtype, spec.device)
    columns = draft.call(aten.slice.Tensor, op.args[0], 1, begin, end, spec=turned)
    return draft.call(aten.permute.default, columns, (1, 0), spec=part)


def batch_pieces(body: Body) -> Body:
    """Products of one shape whose operands are slices that together are one whole value become one batched product.

    Not with large weights: separate products, in blocks of columns that fit a core's cache, take 0.8 of the time.
    """
    wholes: dict[tuple[int, int], dict[int, int]] = {}  # (a value, columns) -> {begin of a slice: its product}
    for index in range(body.num_inputs, len(body.specs)):
        if is_product(body, index):
            row, weight = body.op(index).args  # type: ignore[union-attr]
            section = body.op(behind_views(body, row))
            if (
                section is not None
                and section.target is aten.slice.Tensor
                and len(body.spec(section.args[0]).shape) == 1
            ):
                key = (section.args[0].index, body.spec(weight).shape[1])
                wholes.setdefault(key, {})[section.args[2]] = index
    member: dict[int, tuple[int, list[int]]] = {}
    for (whole, width), products in wholes.items():
        lengths = {body.spec(body.op(i).args[0]).shape[1] for i in products.values()}  # type: ignore[union-attr]
        size, length = body.spec(Val(whole)).shape[0], max(lengths)
        are_all = len(lengths) == 1 and len(products) > 1 and sorted(products) == list(range(0, size, length))
        if are_all and length * width <= LARGEST_WEIGHT:
            group = [products[begin] for begin in sorted(products)]
            member |= dict.fromkeys(group, (whole, group))
    if not member:
        return body
    made: dict[int, Val] = {}

    def rewrite(draft: Draft, index: int, op: Op, now: dict[int, Val]) -> Val:
        if index not in member:
            return draft.add(op)
        if index not in made:
            whole, group = member[index]
            weights = _one_behind_the_other(draft, [now[body.op(i).args[1].index] for i in group])  # type: ignore[union-attr]
            count, length, width = draft.spec(weights).shape
            like = draft.spec(weights)
            row = view(draft, now[whole], (count, 1, length))
            spec = Spec((count, 1, width), like.dtype, like.device)
            product = draft.call(aten.bmm.default, row, weights, spec=spec)
            for k, i in enumerate(group):
                spec = Spec((1, 1, width), like.dtype, like.device)
                one = draft.call(aten.slice.Tensor, product, 0, k, k + 1, spec=spec)
                made[i] = view(draft, one, (1, width))
        return made[index]

    return walk(body, rewrite, shared_first(body))


def _one_behind_the_other(draft: Draft, weights: Sequence[Val]) -> Val:
    """Matrices of one shape as one tensor [count, length, width]. If all are transposed, the originals are stacked and
    the result is transposed: that copies whole rows."""
    (length, width), like = draft.spec(weights[0]).shape, draft.spec(weights[0])
    made, count = [draft.op(w) for w in weights], len(weights)
    turned = all(op is not None and op.target is aten.permute.default for op in made)
    parts = [op.args[0] for op in made if op is not None] if turned else list(weights)
    sections = [section for part in parts for section in _piled(draft, part)]
    height, across = (width, length) if turned else (length, width)
    pile = Spec((count * height, across), like.dtype, like.device)
    piled = view(draft, draft.call(aten.cat.default, sections, 0, spec=pile), (count, height, across))
    spec = Spec((count, length, width), like.dtype, like.device)
    return draft.call(aten.permute.default, piled, (0, 2, 1), spec=spec) if turned else piled


def _piled(draft: Draft, matrix: Val) -> Sequence[Val]:
    """The parts of a matrix that is a concatenation along its first dimension; else the matrix itself."""
    op = draft.op(matrix)
    return op.args[0] if op is not None and op.target is aten.cat.default and op.args[1] == 0 else [matrix]
