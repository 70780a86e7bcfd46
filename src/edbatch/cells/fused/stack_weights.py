"""Batching inside a cell: matrix products with a common operand become one with stacked weights; a sum of products
becomes one product.

In: a simplified body. Out: an equal body with fewer, wider products. Stacked weights are shared values: they are made
once per mini-batch, from the present values of the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edbatch.cells.body.body import Body, Draft, Op, Val, live_values
from edbatch.cells.body.rewriting import behind_views, is_product, shared_first, walk
from edbatch.cells.body.simplify import view
from edbatch.cells.fused.concatenations import batch_pieces, read_pieces
from edbatch.cells.fused.loops.reductions import REDUCTIONS
from edbatch.spec import Spec

aten = torch.ops.aten


def stack_products(body: Body) -> Body:
    """The body with wider products; biases are added by ops of their own, which cost nothing in a fused kernel."""
    return _sum_products(batch_pieces(_share_operands(read_pieces(bias_apart(body))))).check()


def bias_apart(body: Body) -> Body:
    """addmm(bias, a, w) → mm(a, w) + bias, where generated kernels read the result."""
    readers: dict[int, list[int]] = {}
    for index, op in enumerate(body.ops, body.num_inputs):
        for v in op.operands:
            readers.setdefault(v.index, []).append(index)

    def is_elementwise(index: int) -> bool:
        op = body.op(index)
        assert op is not None
        if op.target in (aten.view.default, aten.slice.Tensor):
            return all(map(is_elementwise, readers.get(index, ())))
        return torch.Tag.pointwise in getattr(op.target, "tags", ()) or op.target in REDUCTIONS

    def rewrite(draft: Draft, index: int, op: Op, now: dict[int, Val]) -> Val:
        if op.target is aten.addmm.default and not op.kwargs and isinstance(op.spec, Spec) and op.spec.shape[0] == 1:
            bias, a, w = op.args
            fits = draft.is_row[a.index] and not draft.is_row[w.index] and not draft.is_row[bias.index]
            if fits and index in readers and all(map(is_elementwise, readers[index])):
                product = draft.call(aten.mm.default, a, w, spec=op.spec)
                return draft.call(aten.add.Tensor, product, bias, spec=op.spec)
        return draft.add(op)

    return walk(body, rewrite, range(body.num_inputs, len(body.specs)))


def _share_operands(body: Body) -> Body:
    """mm(a, w1), mm(a, w2) → slices of mm(a, [w1 w2])."""
    groups: dict[int, list[int]] = {}
    for index in range(body.num_inputs, len(body.specs)):
        if is_product(body, index):
            groups.setdefault(behind_views(body, body.op(index).args[0]).index, []).append(index)  # type: ignore[union-attr]
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

    return walk(body, rewrite, shared_first(body))


def _sum_products(body: Body) -> Body:
    """mm(a1, w1) + mm(a2, w2) → mm([a1 a2], [w1; w2]). Such sums are gradients that were added up."""
    uses = [0] * len(body.specs)
    for value in (*(v for op in body.ops for v in op.operands), *body.results):
        uses[value.index] += 1
    forward = live_values(body, body.outputs)
    sums: dict[int, list[int]] = {}
    inner: set[int] = set()
    for index in range(len(body.specs) - 1, body.num_inputs - 1, -1):
        if index not in inner and index not in forward and _is_sum(body, index):
            terms = _terms(body, Val(index), uses, inner)
            if sum(is_product(body, behind_views(body, t).index) for t in terms) > 1:
                sums[index] = [t.index for t in terms]
    if not sums:
        return body

    def rewrite(draft: Draft, index: int, op: Op, now: dict[int, Val]) -> Val:
        if index not in sums:
            return draft.add(op)
        spec = body.spec(Val(index))
        products = [behind_views(body, Val(t)).index for t in sums[index]]
        chosen = [i for i in products if is_product(body, i)]
        pairs = [(now[a.index], now[w.index]) for a, w in (body.op(i).args for i in chosen)]  # type: ignore[union-attr]
        total = _one_product(draft, pairs)
        total = view(draft, total, spec.shape)
        for t, i in zip(sums[index], products, strict=True):
            if i not in chosen:
                total = draft.call(aten.add.Tensor, total, now[t], spec=spec)
        return total

    return walk(body, rewrite, shared_first(body))


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
    """The terms of a sum, nested sums resolved; a nested sum that is also used elsewhere stays one term."""
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
    """[w1 w2 …]. If all are transposed, the originals are stacked and the result is transposed, to copy whole rows."""
    specs = [draft.spec(w) for w in weights]
    like, length, width = specs[0], specs[0].shape[0], sum(s.shape[1] for s in specs)
    spec = Spec((length, width), like.dtype, like.device)
    made = [draft.op(w) for w in weights]
    if all(op is not None and op.target is aten.permute.default for op in made):
        high = Spec((width, length), like.dtype, like.device)
        stacked = draft.call(aten.cat.default, [op.args[0] for op in made if op is not None], 0, spec=high)
        return draft.call(aten.permute.default, stacked, (1, 0), spec=spec)
    return draft.call(aten.cat.default, list(weights), 1, spec=spec)
