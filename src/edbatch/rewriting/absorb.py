"""Absorbs sums and means into the nodes that read them: a reader lists the terms itself; the sum is not launched.

In: a recording and its results. Out: the same computation by fewer launches. An operand that is read as one value
(Slot.ONE) becomes a list of terms (Slot.SUM or MEAN), for all nodes of the type; what is no sum becomes a list of one
term. The terms are summed while the operand is gathered, and its gradient goes to all terms. A sum that something else
needs too (a result, a stack, another sum) stays.

When it is done. Absorbing a type of sums into all operands that can take it saves launches: as many as the path with
most such sums loses. It costs rows: each reader reads all terms instead of one row, and single values are gathered that
may have been views; but what the vanished sums would have read and written is saved. It is done when the launches are
worth more than the rows. A launch counts as many bytes as can be summed in the time of a launch (`LAUNCH_BYTES`).

Measured on one core of a busy machine: a launch of two sums takes 17 µs forward and 22 backward, besides what the
runtime spends on it; 4 MB of rows are summed at 20 GB/s when they are in the caches, and 13 MB more in a mini-batch of
DAGs took 8 ms. So lattices, whose nodes are read 1.5 times, are absorbed (59 launches for 1,853 rows in a mini-batch of
32), and large mini-batches of random DAGs, whose states have four terms and are read four times, are not (56 launches
for 102,032 rows). A chain of sums, each read by a cell and by the next sum, saves no launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edbatch.cells.segments import SegmentKernel
from edbatch.layout.layout import Ints, Slot
from edbatch.recording.results import Results
from edbatch.recording.types.recording import Recording
from edbatch.recording.types.type_set import NodeType

LAUNCH_BYTES = 256 * 1024
ROW_BYTES = 256  # what a row costs at least, however short it is
NOBODY = np.zeros(0, dtype=np.bool_)


def absorb_sums(recording: Recording, results: Results) -> tuple[Recording, Results]:
    """The recording without the sums that are cheaper where they are read, and its results."""
    for node_type in [t for t in recording.node_types if _kind(t) is not None]:
        found = _absorb(recording, node_type, results)
        if found is not None:
            recording, place = found
            results = results.renumbered(place)
    return recording, results


def _kind(node_type: NodeType) -> Slot | None:
    """The slot by which a reader would read the terms of such nodes; None when they are neither sums nor means."""
    if not isinstance(node_type.kernel, SegmentKernel):
        return None
    found = {("copy", (Slot.SUM,)): Slot.SUM, ("mean", (Slot.SUM, Slot.DATA)): Slot.MEAN}
    return found.get((node_type.kernel.name, node_type.slots))


def _takes(consumer: NodeType, k: int, total: NodeType) -> bool:
    """Whether slot k of a type could read the terms of the sums of type `total` itself."""
    slot = consumer.slots[k]
    # A sum of sums is a sum of all terms; a mean of means is not their mean.
    is_single = slot == Slot.ONE or (slot == _kind(total) == Slot.SUM and _kind(consumer) is None)
    is_single &= consumer.slot_specs[k] == total.kernel.outputs[0]
    if not is_single or total.kernel.grad:  # type: ignore[attr-defined]
        return is_single
    # No gradient passes a sum that was made under no_grad, so none may pass its reader.
    needs = (True,) * len(consumer.slots), (True,) * len(consumer.shared)
    return not any(consumer.kernel.differentiable(*needs))


def _takers(node_types: Sequence[NodeType], total: NodeType) -> NDArray[np.bool_]:
    """For each slot of all types, whether it could read the terms of these sums itself; NOBODY when none could."""
    takes = np.array([_takes(t, k, total) for t in node_types for k in range(len(t.slots))], dtype=np.bool_)
    return takes if takes.any() else NOBODY


def _absorb(recording: Recording, total: NodeType, results: Results) -> tuple[Recording, Ints] | None:
    """The recording with one type of sums absorbed, and the new number of every node (-1: it vanished); None when it
    does not pay. The nodes that results refer to stay in any case."""
    from edbatch.rewriting import absorb_loops

    table, node_types, kind = recording.table, recording.node_types, _kind(total)
    assert kind is not None
    sum_type = node_types.index(total)
    takes = recording.type_set.keep(("takes", sum_type), lambda: _takers(node_types, total))
    if takes is NOBODY:
        return None
    nodes = (recording.types, recording.args, table.starts, table.kinds)
    readers, begin, stays = absorb_loops.find_readers(*nodes, sum_type, takes, results.nodes())
    if not readers.any():
        return None
    launches, rows, room = absorb_loops.weigh(*nodes, sum_type, readers, begin, stays)
    spec = total.kernel.outputs[0]
    row_bytes = max(math.prod(spec.shape) * spec.dtype.itemsize, ROW_BYTES)
    if launches == 0 or rows * row_bytes > launches * LAUNCH_BYTES:
        return None
    types, args, place = absorb_loops.absorb(*nodes, sum_type, readers, begin, stays, room)
    changed = [
        _reading(t, kind, readers[first:end].tolist())
        for t, first, end in zip(node_types, table.starts, table.starts[1:], strict=False)
    ]
    if not stays.any():
        del changed[sum_type]
        types -= types > sum_type
    number = np.concatenate(([0], np.cumsum(place >= 0)))  # for each node, how many nodes are left before it
    starts = number[recording.starts]
    return replace(recording, types=types, args=args, node_types=tuple(changed), starts=starts), place


def _reading(node_type: NodeType, kind: Slot, readers: list[bool]) -> NodeType:
    """The type, with the slots of `readers` read as lists of terms."""
    if not any(readers):
        return node_type
    pairs = zip(node_type.slots, readers, strict=True)
    return replace(node_type, slots=tuple(kind if is_reader else slot for slot, is_reader in pairs))
