"""Finds the rows of gradients that are written only once: they need no zeros before, which in large arenas cost a pass.

In: the rows that every batch reads. Out: for each batch and operand, whether its gradients are added or stored. The
gradient of a value has one term for each operand that reads it, and one more if the value is a result. If there is just
one term, it can be stored. A batch stores the gradients of an operand if that holds for all rows that it reads.
"""

from __future__ import annotations

import numpy as np

from edbatch.layout.batch_order import Bools
from edbatch.scheduling.graph import Ints
from edbatch.storage.loops import loop

ADD, STORE = -1, 0  # masks for the number that lies there: all of its bits are kept, or none


@loop
def stored_rows(
    index: Ints,
    slot_begin: Ints,
    slot_size: Ints,
    batch_types: Ints,
    first_rows: Ints,
    can_store: Bools,
    results: Ints,
    num_rows: int,
) -> tuple[Ints, Bools]:
    """For each batch and slot, ADD or STORE; and for each row whether something is added to it, so that it needs zeros.

    Args:
        first_rows: for each type and slot, where the rows of its arena begin, if those of all arenas are one
            sequence; negative for slots that are left out.
        can_store: for each type and slot, whether its gradients are written row by row.
        results: the rows of results, which have a gradient from the beginning.
    """
    reads, ways = np.zeros(num_rows, np.int64), np.full(slot_begin.shape, ADD)
    for row in results:
        reads[row] += 2
    for b in range(len(batch_types)):
        for s in range(first_rows.shape[1]):
            first, begin = first_rows[batch_types[b], s], slot_begin[b, s]
            for k in range(begin, begin + slot_size[b, s] if first >= 0 else begin):
                reads[first + index[k]] += 1
    adds = np.ones(num_rows, np.bool_)
    for b in range(len(batch_types)):
        for s in range(first_rows.shape[1]):
            first, begin = first_rows[batch_types[b], s], slot_begin[b, s]
            if first < 0 or not can_store[batch_types[b], s]:
                continue
            is_alone = True
            for k in range(begin, begin + slot_size[b, s]):
                is_alone &= reads[first + index[k]] == 1
            if is_alone:
                ways[b, s] = STORE
                for k in range(begin, begin + slot_size[b, s]):
                    adds[first + index[k]] = False
    return ways, adds
