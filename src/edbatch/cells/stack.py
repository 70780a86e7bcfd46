"""Batching inside a cell: products of one operand become one with stacked weights, sums of products one product.

In: a simplified body. Out: an equal body with fewer, wider products. Stacked weights are shared values, so they are put
together once per mini-batch, and always from the parameters of the day.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate

import torch

from edbatch.cells.body import Body, Draft, Op, Val, live_values, rebuild, renamed
from edbatch.cells.linear import PRODUCT, SUM
from edbatch.cells.simplify import view
from edbatch.spec import Spec

aten = torch.ops.aten
LARGEST_WEIGHT = 1 << 17  # elements of a matrix in a batched product


def stack_products(body: Body) -> Body:
    """The body with wider products; biases are added apart, where they cost nothing in a fused kernel."""
    return _sum_products(_batch_pieces(_share_operands(_read_pieces(_bias_apart(body))))).check()


def _bias_apart(body: Body) -> Body:
    """addmm(bias, a, w) as mm(a, w) + bias, where elementwise ops read it."""
    readers: dict[int, list[int]] = {}
    for index, op in enumerate(body.ops, body.num_inputs):
        for v in op.operands:
            readers.setdefault(v.index, []).append(index)

    def is_elementwise(index: int) -> bool:
        op = body.op(index)
        assert op is not None
        if op.target in (aten.view.default, aten.slice.Tensor):
            return all(map(is_elementwise, readers.get(index, ())))
        return torch.Tag.pointwise in getattr(op.target, "tags", ())

    def rewrite(draft: Draft, index: int, op: Op, now: dict[int, Val]) -> Val:
        if op.target is aten.addmm.default and not op.kwargs and isinstance(op.spec, Spec) and op.spec.shape[0] == 1:
            bias, a, w = op.args
            fits = draft.is_row[a.index] and not draft.is_row[w.index] and not draft.is_row[bias.index]
            if fits and index in readers and all(map(is_elementwise, readers[index])):
                product = draft.call(aten.mm.default, a, w, spec=op.spec)
                return draft.call(aten.add.Tensor, product, bias, spec=op.spec)
        return draft.add(op)

    return _walk(body, rewrite, range(body.num_inputs, len(body.specs)))


def _is_product(body: Body, index: int) -> bool:
    """A row [1, k] times a shared matrix."""
    op = body.op(index)
    if op is None or op.target is not aten.mm.default:
        return False
    a, w = op.args
    return body.is_row[a.index] and not body.is_row[w.index] and body.spec(a).shape[0] == 1


def _behind_views(body: Body | Draft, value: Val) -> Val:
    """The value that this one is in another shape; slices are values of their own."""
    while (op := body.op(value)) is not None and op.target is aten.view.default:
        value = op.args[0]
    return value


def _read_pieces(body: Body) -> Body:
    """Products of an operand that is also part of a concatenated operand read it there, so that it is gathered once.

    The product of the concatenated operand itself becomes a sum of products of its pieces, if that makes no more
    products in all: mm([a b], w), mm(a, v) → mm(a, w above) + mm(b, w below), mm(a, v), of which two share a.
    """
    ops = range(body.num_inputs, len(body.specs))
    products = [i for i in ops if _is_product(body, i)]
    read = {_behind_views(body, body.op(i).args[0]).index for i in products}  # type: ignore[union-attr]
    operands = [v for i in ops if body.op(i).target is aten.mm.default for v in body.op(i).args]  # type: ignore[union-attr]
    wholes = {whole.index: _pieces(body, whole) for whole in (_behind_views(body, v) for v in operands)}
    pieces: dict[int, tuple[int, int, int]] = {}  # an input -> the whole it is part of, and where
    for whole, parts in wholes.items():
        for piece, begin, end in parts:
            if piece.index < len(body.rows):
                pieces.setdefault(piece.index, (whole, begin, end))
    if not pieces:
        return body
    vectors = {i: parts for i, parts in wholes.items() if i in read and len(body.spec(Val(i)).shape) == 1}
    split = {i for i, parts in vectors.items() if 0 < len(parts) <= 1 + sum(p.index in read for p, _, _ in parts)}
    slices: dict[tuple[int, int, int], Val] = {}

    def piece_of(draft: Draft, now: dict[int, Val], place: tuple[int, int, int]) -> Val:
        if place not in slices:
            whole, begin, end = place
            like = body.spec(Val(whole))
            spec = Spec((end - begin, *like.shape[1:]), like.dtype, like.device)
            slices[place] = draft.call(aten.slice.Tensor, now[whole], 0, begin, end, spec=spec)
        return slices[place]

    def rewrite(draft: Draft, index: int, op: Op, now: dict[int, Val]) -> Val:
        if op.target not in (aten.mm.default, aten.permute.default) or not body.is_row[index]:
            return draft.add(op)
        base = [_behind_views(body, v).index for v in body.op(index).operands]  # type: ignore[union-attr]
        if index in products and base[0] in split:
            terms = []
            for _, begin, end in wholes[base[0]]:
                row = view(draft, piece_of(draft, now, (base[0], begin, end)), (1, end - begin))
                terms.append(draft.call(aten.mm.default, row, _rows_of(draft, op.args[1], begin, end), spec=op.spec))
            return reduce(lambda x, y: draft.call(aten.add.Tensor, x, y, spec=op.spec), terms)
        here = {
            given.index: view(draft, piece_of(draft, now, pieces[b]), draft.spec(given).shape)
            for b, given in zip(base, op.operands, strict=True)
            if b in pieces and pieces[b][0] in now
        }
        return draft.add(op.replace(lambda v: here.get(v.index, v)))

    return _walk(body, rewrite, _early(body, [Val(whole) for whole, _, _ in pieces.values()]))


def _pieces(body: Body, value: Val) -> list[tuple[Val, int, int]]:
    """What a value is put together of, and where each piece begins and ends; nothing if it is no concatenation."""
    op = body.op(value)
    if op is None or op.target is not aten.cat.default or op.args[1] != 0 or not body.is_row[value.index]:
        return []
    ends = list(accumulate(body.spec(piece).shape[0] for piece in op.args[0]))
    return list(zip(op.args[0], [0, *ends[:-1]], ends, strict=True))


def _rows_of(draft: Draft, weight: Val, begin: int, end: int) -> Val:
    """Some rows of a shared matrix; those of a transposed one are columns of the matrix itself."""
    spec, op = draft.spec(weight), draft.op(weight)
    part = Spec((end - begin, spec.shape[1]), spec.dtype, spec.device)
    if op is None or op.target is not aten.permute.default:
        return draft.call(aten.slice.Tensor, weight, 0, begin, end, spec=part)
    turned = Spec(part.shape[::-1], spec.dtype, spec.device)
    columns = draft.call(aten.slice.Tensor, op.args[0], 1, begin, end, spec=turned)
    return draft.call(aten.permute.default, columns, (1, 0), spec=part)


def _share_operands(body: Body) -> Body:
    """mm(a, w1), mm(a, w2) → slices of mm(a, [w1 w2])."""
    groups: dict[int, list[int]] = {}
    for index in range(body.num_inputs, len(body.specs)):
        if _is_product(body, index):
            groups.setdefault(_behind_views(body, body.op(index).args[0]).index, []).append(index)  # type: ignore[union-attr]
    member = {i: group for group in groups.values() if len(group) > 1 for i in group}
    if not member:
        return body
    made: dict[int, Val] = {}

    def rewrite(draft: Draft, index: int, op: Op, now: dict[int, Val]) -> Val:
        group = member.get(index)
        if group is None:
            return draft.add(op)
        if index not in made:
            weights = [now[body.op(i).args[1].index] for i in group]  # type: ignore[union-attr]
            wide = _side_by_side(draft, weights)
            spec = Spec((1, draft.spec(wide).shape[1]), draft.spec(wide).dtype, draft.spec(wide).device)
            product, begin = draft.call(aten.mm.default, op.args[0], wide, spec=spec), 0
            for i, weight in zip(group, weights, strict=True):
                end = begin + draft.spec(weight).shape[1]
                made[i] = draft.call(aten.slice.Tensor, product, 1, begin, end, spec=body.spec(Val(i)))
                begin = end
        return made[index]

    return _walk(body, rewrite, _shared_first(body))


def _batch_pieces(body: Body) -> Body:
    """Products of one shape whose operands are the pieces of one value become one batched product.

    Not of large weights: one product after the other, in blocks of columns that fit a core's cache, takes 0.8 of it.
    """
    wholes: dict[tuple[int, int], dict[int, int]] = {}  # (a value, columns) -> where a piece begins: its product
    for index in range(body.num_inputs, len(body.specs)):
        if _is_product(body, index):
            row, weight = body.op(index).args  # type: ignore[union-attr]
            piece = body.op(_behind_views(body, row))
            if piece is not None and piece.target is aten.slice.Tensor and len(body.spec(piece.args[0]).shape) == 1:
                key = (piece.args[0].index, body.spec(weight).shape[1])
                wholes.setdefault(key, {})[piece.args[2]] = index
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

    return _walk(body, rewrite, _shared_first(body))


def _one_behind_the_other(draft: Draft, weights: Sequence[Val]) -> Val:
    """Matrices of one shape as a list of matrices; transposed ones are transposed then, which copies whole rows."""
    (length, width), like = draft.spec(weights[0]).shape, draft.spec(weights[0])
    made, count = [draft.op(w) for w in weights], len(weights)
    turned = all(op is not None and op.target is aten.permute.default for op in made)
    parts = [op.args[0] for op in made if op is not None] if turned else list(weights)
    pieces = [piece for part in parts for piece in _piled(draft, part)]
    height, across = (width, length) if turned else (length, width)
    pile = Spec((count * height, across), like.dtype, like.device)
    piled = view(draft, draft.call(aten.cat.default, pieces, 0, spec=pile), (count, height, across))
    spec = Spec((count, length, width), like.dtype, like.device)
    return draft.call(aten.permute.default, piled, (0, 2, 1), spec=spec) if turned else piled


def _piled(draft: Draft, matrix: Val) -> Sequence[Val]:
    """What a matrix is put together of, one above the other."""
    op = draft.op(matrix)
    return op.args[0] if op is not None and op.target is aten.cat.default and op.args[1] == 0 else [matrix]


def _sum_products(body: Body) -> Body:
    """mm(a1, w1) + mm(a2, w2), where gradients are added up → mm([a1 a2], [w1; w2])."""
    uses = [0] * len(body.specs)
    for value in (*(v for op in body.ops for v in op.operands), *body.results):
        uses[value.index] += 1
    forward = live_values(body, body.outputs)
    sums: dict[int, list[int]] = {}
    inner: set[int] = set()
    for index in range(len(body.specs) - 1, body.num_inputs - 1, -1):
        if index not in inner and index not in forward and _is_sum(body, index):
            terms = _terms(body, Val(index), uses, inner)
            if sum(_is_product(body, _behind_views(body, t).index) for t in terms) > 1:
                sums[index] = [t.index for t in terms]
    if not sums:
        return body

    def rewrite(draft: Draft, index: int, op: Op, now: dict[int, Val]) -> Val:
        if index not in sums:
            return draft.add(op)
        spec = body.spec(Val(index))
        products = [_behind_views(body, Val(t)).index for t in sums[index]]
        chosen = [i for i in products if _is_product(body, i)]
        pairs = [(now[a.index], now[w.index]) for a, w in (body.op(i).args for i in chosen)]  # type: ignore[union-attr]
        total = _one_product(draft, pairs)
        total = view(draft, total, spec.shape)
        for t, i in zip(sums[index], products, strict=True):
            if i not in chosen:
                total = draft.call(aten.add.Tensor, total, now[t], spec=spec)
        return total

    return _walk(body, rewrite, _shared_first(body))


def _is_sum(body: Body, index: int) -> bool:
    op = body.op(index)
    return (
        op is not None
        and op.target is aten.add.Tensor
        and not op.kwargs
        and body.is_row[index]
        and all(isinstance(a, Val) and body.is_row[a.index] and body.spec(a) == op.spec for a in op.args)
    )


def _terms(body: Body, value: Val, uses: Sequence[int], inner: set[int]) -> list[Val]:
    """The terms of a sum of sums; sums that are used elsewhere are terms themselves."""
    found = []
    for term in body.op(value).args:  # type: ignore[union-attr]
        if uses[term.index] == 1 and _is_sum(body, term.index):
            inner.add(term.index)
            found += _terms(body, term, uses, inner)
        else:
            found.append(term)
    return found


def _one_product(draft: Draft, pairs: Sequence[tuple[Val, Val]]) -> Val:
    """The sum of products as one product over operands put side by side."""
    first = draft.spec(pairs[0][0])
    length = sum(draft.spec(a).shape[1] for a, _ in pairs)
    row = draft.call(aten.cat.default, [a for a, _ in pairs], 1, spec=Spec((1, length), first.dtype, first.device))
    width = draft.spec(pairs[0][1]).shape[1]
    weight = draft.call(
        aten.cat.default, [w for _, w in pairs], 0, spec=Spec((length, width), first.dtype, first.device)
    )
    return draft.call(aten.mm.default, row, weight, spec=Spec((1, width), first.dtype, first.device))


def _side_by_side(draft: Draft, weights: Sequence[Val]) -> Val:
    """[w1 w2 …]; transposed weights are stacked first and transposed then, which copies whole rows."""
    specs = [draft.spec(w) for w in weights]
    like, length, width = specs[0], specs[0].shape[0], sum(s.shape[1] for s in specs)
    spec = Spec((length, width), like.dtype, like.device)
    made = [draft.op(w) for w in weights]
    if all(op is not None and op.target is aten.permute.default for op in made):
        high = Spec((width, length), like.dtype, like.device)
        stacked = draft.call(aten.cat.default, [op.args[0] for op in made if op is not None], 0, spec=high)
        return draft.call(aten.permute.default, stacked, (1, 0), spec=spec)
    return draft.call(aten.cat.default, list(weights), 1, spec=spec)


def _shared_first(body: Body) -> list[int]:
    """The ops in an order in which every shared value exists before the first row is computed."""
    ops = range(body.num_inputs, len(body.specs))
    return [i for i in ops if not body.is_row[i]] + [i for i in ops if body.is_row[i]]


def _early(body: Body, values: Sequence[Val]) -> list[int]:
    """The ops in an order in which these values are computed first."""
    early = live_values(body, values)
    ops = range(body.num_inputs, len(body.specs))
    return [i for i in ops if i in early] + [i for i in ops if i not in early]


def _walk(body: Body, rewrite: Callable[[Draft, int, Op, dict[int, Val]], Val], order: Sequence[int]) -> Body:
    """Like `rebuild`, in a given order; `rewrite` also gets the op's number and what became of each value so far."""
    draft = Draft([*body.rows, *body.shared, *body.tangents], body.is_row[: body.num_inputs])
    now = {i: Val(i) for i in range(body.num_inputs)}
    for index in order:
        op = body.op(index)
        assert op is not None
        now[index] = rewrite(draft, index, op.replace(lambda v: now[v.index]), now)
    return rebuild(renamed(body, tuple(draft.ops), lambda v: now[v.index]))


def stack_sums(draft: Draft, totals: Sequence[Val | None]) -> list[Val | None]:
    """Gradients of weights that share an operand become slices of one product over all rows of the mini-batch."""
    reached = _reached(draft, totals)
    groups: dict[int, list[Val]] = {}
    for value in reached:
        op = draft.op(value)
        if op is not None and op.target == PRODUCT and all(draft.spec(v).shape[0] == 1 for v in op.args):
            groups.setdefault(op.args[1].index, []).append(value)
    now: dict[int, Val] = {}
    pieces: dict[int, tuple[Val, int]] = {}  # the value behind a piece -> (all pieces side by side, where it begins)
    for group in groups.values():
        if len(group) > 1:
            _stack_group(draft, group, now, pieces)
    if not now:
        return list(totals)
    for value in reached:  # operands come before what is made of them
        op = draft.op(value)
        if value.index in now or op is None:
            continue
        if op.target == SUM and _behind_views(draft, op.args[0]).index in pieces:
            now[value.index] = _sum_of_piece(draft, op, *pieces[_behind_views(draft, op.args[0]).index])
        else:
            now[value.index] = draft.add(op.replace(lambda v: now.get(v.index, v)))
    return [None if t is None else now.get(t.index, t) for t in totals]


def _stack_group(draft: Draft, group: list[Val], now: dict[int, Val], pieces: dict[int, tuple[Val, int]]) -> None:
    lefts = [draft.op(v).args[0] for v in group]  # type: ignore[union-attr]
    right = draft.op(group[0]).args[1]  # type: ignore[union-attr]
    like = draft.spec(right)
    height = sum(draft.spec(a).shape[1] for a in lefts)
    wide = draft.call(aten.cat.default, lefts, 1, spec=Spec((1, height), like.dtype, like.device))
    product = draft.call(PRODUCT, wide, right, spec=Spec((height, like.shape[1]), like.dtype, like.device))
    begin = 0
    for value, left in zip(group, lefts, strict=True):
        end = begin + draft.spec(left).shape[1]
        now[value.index] = draft.call(aten.slice.Tensor, product, 0, begin, end, spec=draft.spec(value))
        pieces.setdefault(_behind_views(draft, left).index, (wide, begin))
        begin = end


def _sum_of_piece(draft: Draft, op: Op, wide: Val, begin: int) -> Val:
    total = draft.call(SUM, wide, spec=draft.spec(wide))
    spec = draft.spec(op.args[0])
    size = math.prod(spec.shape)
    flat = Spec((1, size), spec.dtype, spec.device)
    return view(draft, draft.call(aten.slice.Tensor, total, 1, begin, begin + size, spec=flat), spec.shape)


def _reached(draft: Draft, totals: Sequence[Val | None]) -> list[Val]:
    """The shared values that the totals are made of, operands first."""
    found: set[int] = set()
    stack = [t.index for t in totals if t is not None]
    while stack:
        index = stack.pop()
        op = draft.op(Val(index))
        if index not in found and op is not None and not draft.is_row[index]:
            found.add(index)
            stack += [v.index for v in op.operands]
    return [Val(i) for i in sorted(found)]
