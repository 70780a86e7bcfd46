"""Says in words how two recordings of one example differ.

In: two *pieces* (a piece is what was recorded of one example) with the same key. Out: the first difference, or None.
Wrong keys are found by it: with `debug`, examples with known keys are recorded all the same, and compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from edbatch.layout.layout import Slot
from edbatch.replay.piece_bank import Piece
from edbatch.spec import float_bits


def difference(before: Piece, now: Piece) -> str | None:
    """The first difference between two pieces; None when either can stand for the other."""
    return _of_nodes(before, now) or _of_args(before, now) or _of_outside(before, now) or _of_results(before, now)


def _of_nodes(before: Piece, now: Piece) -> str | None:
    shared = min(len(before.types), len(now.types))
    for i, (b, n) in enumerate(zip(before.types[:shared].tolist(), now.types[:shared].tolist(), strict=True)):
        if before.node_types[b] is not now.node_types[n]:
            names = before.node_types[b].node_type.name, now.node_types[n].node_type.name
            shared_tensors = " (with other shared tensors)" if names[0] == names[1] else ""
            return f"its call number {i} was {names[0]} and is {names[1]} now{shared_tensors}"
    if len(before.types) != len(now.types):
        return f"it had {len(before.types)} recorded calls and has {len(now.types)} now"
    return None


def _of_args(before: Piece, now: Piece) -> str | None:
    """A difference in the data or operands of nodes, which are of the same types."""
    if np.array_equal(before.args, now.args):
        return None
    at = 0
    for i, t in enumerate(now.types.tolist()):
        node_type = now.node_types[t].node_type
        for s, slot in enumerate(node_type.slots):
            count = 0 if slot is Slot.OFFSETS else 1
            if slot in (Slot.LIST, Slot.SUM):
                if before.args[at] != now.args[at]:
                    return f"its call number {i}, {node_type.name}, had {before.args[at]} values and has {now.args[at]}"
                count += int(now.args[at])
            if not np.array_equal(before.args[at : at + count], now.args[at : at + count]):
                what = "another number" if slot is Slot.DATA else "another value"
                return f"its call number {i}, {node_type.name}, has {what} as operand {s} than before"
            at += count
    return None


def _of_outside(before: Piece, now: Piece) -> str | None:
    counts = len(before.others.outside), len(now.others.outside)
    if counts[0] != counts[1]:
        return f"it used {counts[0]} tensors from outside and uses {counts[1]} now"
    for i, (b, n) in enumerate(zip(before.others.outside, now.others.outside, strict=True)):
        if not _is_same(b, n):
            return f"tensor number {i} that it uses ({before.others.outside_specs[i]}) has other values than before"
    return None


def _of_results(before: Piece, now: Piece) -> str | None:
    if before.structure.tree != now.structure.tree:
        return f"it returned {before.structure.tree} and returns {now.structure.tree} now"
    for name, b, n in zip(now.structure.names, before.leaves, now.leaves, strict=True):
        if not _is_same(b, n):
            return f"its {name} was {b} and is {n} now"
    return None


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor):
        is_alike = before.shape == now.shape and before.dtype == now.dtype and before.device == now.device
        return before is now or (is_alike and bool(torch.allclose(before, now, rtol=0, atol=0, equal_nan=True)))
    if isinstance(before, float) and isinstance(now, float):
        return float_bits(before) == float_bits(now)
    return type(before) is type(now) and bool(before == now)
