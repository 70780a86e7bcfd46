"""What needs a gradient: a fixpoint over types, since whether a value needs one depends on what feeds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edbatch.cells.kernel import Mask
from edbatch.errors import GradientError
from edbatch.frontend.recording import Recording
from edbatch.frontend.type_set import NodeType
from edbatch.planning.layout import SlotTable

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Needs:
    """For every type: which slots, shared tensors and outputs take part in backward."""

    rows: tuple[Mask, ...]
    shared: tuple[Mask, ...]
    outs: tuple[Mask, ...]
    differentiable: Bools  # for every output of every type, flat


def find_needs(recording: Recording, results: Bools) -> Needs:
    """Which slots, shared tensors and outputs need gradients, given which outputs (flat) are results."""
    from edbatch.planning.layout_kernels import feeds

    table, types = recording.table, recording.node_types
    outside = np.array([t.requires_grad for t in recording.outside], dtype=np.bool_)
    by_output, by_outside = feeds(
        recording.types, recording.args, table.starts, table.kinds, table.output_starts, outside
    )
    shared = tuple([tuple([t.requires_grad for t in node_type.shared]) for node_type in types])
    key = shared, by_output.tobytes(), by_outside.tobytes(), results.tobytes()
    return recording.type_set.keep(key, lambda: _fixpoint(types, table, shared, by_output, by_outside, results))


def _fixpoint(
    types: Sequence[NodeType],
    table: SlotTable,
    shared: tuple[Mask, ...],
    by_output: Bools,
    by_outside: Bools,
    results: Bools,
) -> Needs:
    differentiable = np.zeros(len(table.output_arenas), dtype=np.bool_)
    while True:
        slots = by_outside | (by_output & differentiable).any(axis=1)
        rows = tuple(tuple(slots[table.starts[t] : table.starts[t + 1]].tolist()) for t in range(len(types)))
        now = [
            need for t, node_type in enumerate(types) for need in node_type.kernel.differentiable(rows[t], shared[t])
        ]
        before, differentiable = differentiable, np.array(now, dtype=np.bool_)
        if np.array_equal(before, differentiable):
            break
    for t, node_type in enumerate(types):
        for i in getattr(node_type.kernel, "constant", ()):
            if (*rows[t], *shared[t])[i]:
                raise GradientError(
                    f"{node_type.name}: torch has no gradient for argument {i}, but it requires one; detach() it"
                )
    wanted = differentiable & (results | by_output[slots].any(axis=0))
    outs = tuple(tuple(wanted[table.output_starts[t] : table.output_starts[t + 1]].tolist()) for t in range(len(types)))
    return Needs(rows, shared, outs, differentiable)
