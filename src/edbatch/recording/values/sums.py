"""Sums of many terms: `total = total + x` in a loop is recorded as one node, not as one per addition.

An addition of lazy values gives a `PendingSum`, to which further terms may be added. It is recorded, as a node over all
its terms, when it is used in any other way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edbatch.cells.segments import copy_kernel
from edbatch.layout.layout import Slot
from edbatch.recording.types.type_set import NodeType
from edbatch.recording.values.lazy import Kind, Lazy, PendingSum, own_key, pending, set_class
from edbatch.recording.values.ragged import name_of

if TYPE_CHECKING:
    from edbatch.recording.calls.entries import Entry
    from edbatch.recording.recorder import Recorder
    from edbatch.recording.types.kernel_cache import Context

SUMMANDS = (Lazy, PendingSum)


def add(recorder: Recorder, left: Any, right: Any) -> Any:
    """`left + right` as an n-ary sum that grows until it is used; None when it is an ordinary addition."""
    if type(left) not in SUMMANDS or type(right) not in SUMMANDS:
        return None
    kind = right.kind.one
    if left.kind.one is not kind or kind.recorder is not recorder or kind.pending is None:
        return None
    if left is right or (type(left) is type(right) is PendingSum and left.ref[0] is right.ref[0]):  # h + h, sum([h, h])
        right = recorder.resolve(right)
    if not _can_grow(left, recorder):
        if _can_grow(right, recorder):
            left, right = right, left
        else:
            left = _begin(recorder, left)
    terms, _, context = left.ref
    if _can_grow(right, recorder) and len(right.ref[0]) == 1:  # 0 + x
        terms.append(right.ref[0][0])
    else:  # (a + b) + (c + d) is not ((a + b) + c) + d, where c and d cancel
        terms.append(recorder.resolve(right).ref)
    return pending(terms, context, kind)


def _can_grow(value: Any, recorder: Recorder) -> bool:
    """Whether a value is a pending sum to which no term was added yet, made in the present context."""
    return type(value) is PendingSum and len(value.ref[0]) == value.ref[1] and value.ref[2] is recorder.context


def _begin(recorder: Recorder, value: Lazy) -> PendingSum:
    """A pending sum of one term."""
    return pending([recorder.resolve(value).ref], recorder.context, value.kind.one)


def record_sum(recorder: Recorder, value: PendingSum) -> Lazy:
    """Record a pending sum as one node over all its terms."""
    terms, count, context = value.ref
    kind = value.kind.one
    if count < len(terms):  # the list has grown since
        terms = terms[:count]
    if len(terms) == 1:  # 0 + x
        set_class(value, Lazy)
        value.kind, value.ref = kind, terms[0]
        return value
    entry = recorder.entries.get(kind.sum_key) if context is recorder.context else None
    if entry is None:
        entry = sum_entry(recorder, kind, Slot.SUM, context)
    recorder.known_calls.enter()
    set_class(value, Lazy)
    value.kind = kind
    value.ref = len(recorder.types)
    recorder.add_args((len(terms), *terms))
    recorder.add_type(entry.id)
    return value


def sum_entry(recorder: Recorder, kind: Kind, slot: Slot, context: Context) -> Entry:
    spec = kind.spec

    def make() -> NodeType:
        name = name_of(recorder, "sum of", slot, spec)
        return NodeType(name, copy_kernel(spec, grad=context.grad), (slot,), (spec,), (), (False,))

    return recorder.entry(own_key("sum", kind, slot), make, context)
