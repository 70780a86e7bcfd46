"""Hoisting: a node of a recurrent cell is split in two, and the part that does not wait for the recurrence runs ahead.

In: a recording. Out: a recording of the same computation. What a cell computes from operands that are not recurrent
(the input products of an LSTM) becomes a node of a type of its own, just before the node that remains. All these nodes
are ready before the recurrence starts, and run as one large batch. An operand is recurrent when, in this mini-batch,
the type that produces it depends in turn on the type that reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from edbatch.layout.layout import Ints, Slot, SlotTable
from edbatch.recording.types.recording import Recording
from edbatch.recording.types.type_set import NodeType

if TYPE_CHECKING:
    from edbatch.cells.compiled import Hoisted, HoistedPart

SLOTS = {Slot.ONE, Slot.DATA}  # with other slots a node may compute several rows


def hoist(recording: Recording) -> tuple[Recording, Ints | None]:
    """The recording with cells split where that pays; and for each old node the new one that has its results, or None
    if nothing was split."""
    from edbatch.rewriting import hoist_loops

    table, types = recording.table, recording.node_types
    recurrent = hoist_loops.recurrent_slots(recording.types, recording.args, table.starts, table.kinds)
    parting = recording.type_set.keep(("parting", recurrent.tobytes()), lambda: _part(types, table, recurrent))
    if not any(parting.parts):
        return recording, None
    node_types: list[NodeType] = []
    for node_type, both in zip(types, parting.parts, strict=True):
        if both is not None:
            node_types.append(_ahead(node_type, both.ahead))
        node_types.append(node_type if both is None else _main(node_type, both))
    split_types, args, node_of = hoist_loops.split_nodes(
        recording.types, recording.args, table.starts, table.kinds, parting.ahead, parting.main, parting.in_ahead,
        parting.in_main, parting.num_results,
    )  # fmt: skip
    starts = np.concatenate(([0], node_of + 1))[recording.starts]
    return replace(recording, types=split_types, args=args, node_types=tuple(node_types), starts=starts), node_of


@dataclass(frozen=True)
class _Parting:
    """Which types are split and how; the arrays are arguments of `split_nodes`."""

    parts: list[Hoisted | None]
    ahead: Ints
    main: Ints
    in_ahead: NDArray[np.bool_]
    in_main: NDArray[np.bool_]
    num_results: Ints


def _part(types: tuple[NodeType, ...], table: SlotTable, recurrent: NDArray[np.bool_]) -> _Parting:
    masks = [tuple(recurrent[a:b].tolist()) for a, b in zip(table.starts, table.starts[1:], strict=False)]
    parts = [_hoisted(node_type, mask) for node_type, mask in zip(types, masks, strict=True)]
    ahead, main, num_results = (np.full(len(types), -1, np.int64) for _ in range(3))
    in_ahead, in_main = np.zeros(len(table.kinds), np.bool_), np.ones(len(table.kinds), np.bool_)
    number = 0
    for t, both in enumerate(parts):
        if both is not None:
            ahead[t], number = number, number + 1
            num_results[t] = len(both.ahead.kernel.outputs)
            in_ahead[table.starts[t] + np.array(both.ahead.rows, np.int64)] = True
            in_main[table.starts[t] : table.starts[t + 1]] = False
            in_main[table.starts[t] + np.array(both.main.rows, np.int64)] = True
        main[t], number = number, number + 1
    return _Parting(parts, ahead, main, in_ahead, in_main, num_results)


def _hoisted(node_type: NodeType, recurrent: tuple[bool, ...]) -> Hoisted | None:
    if not any(recurrent) or not SLOTS.issuperset(node_type.slots) or any(node_type.per_row):
        return None
    return node_type.kernel.hoisted(recurrent)


def _ahead(whole: NodeType, part: HoistedPart) -> NodeType:
    return NodeType(
        f"{whole.name} ahead", part.kernel, tuple(whole.slots[i] for i in part.rows),
        tuple(whole.slot_specs[i] for i in part.rows), _shared(whole, part), (False,) * len(part.kernel.outputs),
    )  # fmt: skip


def _main(whole: NodeType, both: Hoisted) -> NodeType:
    part, given = both.main, both.ahead.kernel.outputs
    slots = (*(whole.slots[i] for i in part.rows), *[Slot.ONE] * len(given))
    specs = (*(whole.slot_specs[i] for i in part.rows), *given)
    return replace(whole, kernel=part.kernel, slots=slots, slot_specs=specs, shared=_shared(whole, part))


def _shared(whole: NodeType, part: HoistedPart) -> tuple[torch.Tensor, ...]:
    return (*(whole.shared[i] for i in part.shared), *part.kernel.enclosed)
