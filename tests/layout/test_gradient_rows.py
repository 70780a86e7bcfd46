"""Rows of gradients that need no zeros before, against a slow oracle."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edbatch.layout.gradient_rows import ADD, STORE, stored_rows


@st.composite
def reads(draw):
    """Batches of two types with up to three operands each, that read rows of one arena."""
    types = draw(st.lists(st.integers(0, 1), min_size=1, max_size=5))
    rows = [[draw(st.lists(st.integers(0, 11), max_size=4)) for _ in range(3)] for _ in types]
    flags = [[draw(st.booleans()) for _ in range(3)] for _ in range(2)]
    left_alone = [[draw(st.booleans()) for _ in range(3)] for _ in range(2)]
    return types, rows, flags, left_alone, draw(st.lists(st.integers(0, 11), max_size=3))


@given(reads())
def test_rows_are_stored_that_one_operand_alone_reads(case):
    types, rows, flags, left_alone, results = case
    index = np.array([row for batch in rows for slot in batch for row in slot], np.int64)
    sizes = np.array([[len(slot) for slot in batch] for batch in rows], np.int64)
    begins = (np.cumsum(sizes) - sizes.ravel()).reshape(sizes.shape)
    first = np.where(left_alone, -1, 0).astype(np.int64)
    ways, adds = stored_rows(
        index, begins, sizes, np.array(types, np.int32), first, np.array(flags), np.array(results, np.int64), 12
    )
    terms = [
        (b, s, row)
        for b, batch in enumerate(rows)
        for s, slot in enumerate(batch)
        for row in slot
        if not left_alone[types[b]][s]
    ]
    count = {row: sum(r == row for *_, r in terms) + 2 * results.count(row) for row in range(12)}
    stored = {
        (b, s)
        for b, t in enumerate(types)
        for s in range(3)
        if flags[t][s] and not left_alone[t][s] and all(count[r] == 1 for r in rows[b][s])
    }
    assert {tuple(place) for place in np.argwhere(ways == STORE).tolist()} == stored
    assert set(np.unique(ways)) <= {ADD, STORE}
    assert set(np.flatnonzero(~adds).tolist()) == {row for b, s, row in terms if (b, s) in stored}
