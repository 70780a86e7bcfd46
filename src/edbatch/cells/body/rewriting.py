"""Helpers to rewrite bodies op by op: walks over the ops in some order, and questions about matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from edbatch.cells.body.body import Body, Draft, Op, Val, live_values, rebuild, renamed

aten = torch.ops.aten


def walk(body: Body, rewrite: Callable[[Draft, int, Op, dict[int, Val]], Val], order: Sequence[int]) -> Body:
    """Like `rebuild`, in a given order; `rewrite` also gets the op's number and the new value of each value so far."""
    draft = Draft([*body.rows, *body.shared, *body.tangents], body.is_row[: body.num_inputs])
    now = {i: Val(i) for i in range(body.num_inputs)}
    for index in order:
        op = body.op(index)
        assert op is not None
        now[index] = rewrite(draft, index, op.replace(lambda v: now[v.index]), now)
    return rebuild(renamed(body, tuple(draft.ops), lambda v: now[v.index]))


def shared_first(body: Body) -> list[int]:
    """The ops in an order in which all shared values are computed before any that differs between rows."""
    ops = range(body.num_inputs, len(body.specs))
    return [i for i in ops if not body.is_row[i]] + [i for i in ops if body.is_row[i]]


def early(body: Body, values: Sequence[Val]) -> list[int]:
    """The ops in an order in which these values are computed first."""
    early = live_values(body, values)
    ops = range(body.num_inputs, len(body.specs))
    return [i for i in ops if i in early] + [i for i in ops if i not in early]


def is_product(body: Body, index: int) -> bool:
    """A row [1, k] times a shared matrix."""
    return _is_of_rows_and_weights(body, index, aten.mm.default)


def is_list_of_products(body: Body, index: int) -> bool:
    """Rows [g, 1, k] times g shared matrices."""
    return _is_of_rows_and_weights(body, index, aten.bmm.default)


def _is_of_rows_and_weights(body: Body, index: int, target: Any) -> bool:
    op = body.op(index)
    if op is None or op.target is not target:
        return False
    a, w = op.args
    return body.is_row[a.index] and not body.is_row[w.index] and body.spec(a).shape[-2] == 1


def behind_views(body: Body | Draft, value: Val) -> Val:
    """The value of which this one is a reshape, through any number of `view` ops; slices are not looked through."""
    while (op := body.op(value)) is not None and op.target is aten.view.default:
        value = op.args[0]
    return value
