"""One matrix product for the gradients of several weights.

In: gradients of weights, each a product summed over all rows of a mini-batch. Out: the same gradients; those whose
products share an operand are slices of one wider product, which takes less time than several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from edbatch.cells.body.body import Draft, Op, Val
from edbatch.cells.body.linear import PRODUCT, SUM
from edbatch.cells.body.rewriting import behind_views
from edbatch.cells.body.simplify import view
from edbatch.spec import Spec

aten = torch.ops.aten


def stack_sums(draft: Draft, totals: Sequence[Val | None]) -> list[Val | None]:
    """The totals, where products over all rows of the mini-batch that share an operand become slices of one product."""
    reached = _reached(draft, totals)
    groups: dict[int, list[Val]] = {}
    for value in reached:
        op = draft.op(value)
        if op is not None and op.target == PRODUCT and all(draft.spec(v).shape[0] == 1 for v in op.args):
            groups.setdefault(op.args[1].index, []).append(value)
    now: dict[int, Val] = {}
    parts: dict[int, tuple[Val, int]] = {}  # an operand -> (all operands side by side, its begin)
    for group in groups.values():
        if len(group) > 1:
            _stack_group(draft, group, now, parts)
    if not now:
        return list(totals)
    for value in reached:  # operands come before what is made of them
        op = draft.op(value)
        if value.index in now or op is None:
            continue
        if op.target == SUM and behind_views(draft, op.args[0]).index in parts:
            now[value.index] = _sum_of_part(draft, op, *parts[behind_views(draft, op.args[0]).index])
        else:
            now[value.index] = draft.add(op.replace(lambda v: now.get(v.index, v)))
    return [None if t is None else now.get(t.index, t) for t in totals]


def _stack_group(draft: Draft, group: list[Val], now: dict[int, Val], parts: dict[int, tuple[Val, int]]) -> None:
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
        parts.setdefault(behind_views(draft, left).index, (wide, begin))
        begin = end


def _sum_of_part(draft: Draft, op: Op, wide: Val, begin: int) -> Val:
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
