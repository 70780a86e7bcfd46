"""Ragged values (`Ragged`): stacks of any number of lazy values of one kind (shape, dtype, device).

Their length is no part of the type of calls that read them, so that stacks of different lengths are batched together.
`torch.stack` of lazy values gives `Ragged`, which are at first only a list of references. `materialise` records a copy
in which they lie side by side in memory; `dense` makes them one value of a fixed length. What torch functions do with
`Ragged` is in `ragged_functions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edbatch.cells.segments import SegmentKernel, copy_kernel
from edbatch.errors import LeakedValueError, RecordingError
from edbatch.layout.layout import Slot
from edbatch.recording.types.type_set import NodeType
from edbatch.recording.values.lazy import Kind, Lazy, Ragged, own_key, rows_of
from edbatch.spec import Spec, is_tensor

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder


def stack(recorder: Recorder, values: Any) -> Ragged | None:
    """`torch.stack` of values of one kind, kept as a list of them; None when they are not of one kind."""
    if len(values) == 0:
        raise RecordingError(
            "torch.stack of an empty list has no shape; give a start value, e.g. torch.stack([zero, *values]), or "
            "treat an example without rows apart"
        )
    alike = stack_alike(recorder, values)
    if alike is not None:
        return alike
    if all(map(is_tensor, values)):
        return None  # nothing lazy: an ordinary call
    elements = []
    for value in values:
        if is_tensor(value):
            value = recorder.outside(value)
        if not isinstance(value, Lazy) or type(value) is Ragged:
            return None
        elements.append(recorder.resolve(value))
    if any(e.kind is not elements[0].kind for e in elements):
        return None
    return rows_of(None, elements[0].kind, len(elements), [e.ref for e in elements])


def stack_alike(recorder: Recorder, values: list[Any] | tuple[Any, ...]) -> Ragged | None:
    """Like `stack`, for recorded values of one kind, which is checked in 20 ns a value; None for anything else."""
    try:
        kinds = [value.kind for value in values]
    except AttributeError:
        return None
    kind = kinds[0] if kinds else None
    if type(kind) is not Kind or kind.one is not kind or kind.recorder is not recorder or not recorder.is_open:
        return None
    return rows_of(None, kind, len(values), [v.ref for v in values]) if kinds.count(kind) == len(kinds) else None


def materialise(recorder: Recorder, rows: Ragged) -> Ragged:
    """Rows that lie side by side in memory: the list of values is copied once, however often it is used."""
    check_owner(recorder, rows)
    if rows.ref is None:
        spec = rows.kind.spec

        def make() -> NodeType:
            name = name_of(recorder, "stack of", Slot.LIST, spec)
            return NodeType(name, copy_kernel(spec, grad=rows.context.grad), (Slot.LIST,), (spec,), (), (True,))

        entry = recorder.entry(own_key("stack", rows.kind, Slot.LIST), make, rows.context)
        rows.ref = recorder.add(entry, listed(rows), rows.length).ref
    return rows


def dense(recorder: Recorder, rows: Ragged) -> Any:
    """Rows as one value of shape [length, …]: from here on the length belongs to the type."""
    check_owner(recorder, rows)
    spec, length = rows.kind.spec, rows.length
    whole = Spec((length, *spec.shape), spec.dtype, spec.device)

    def run(operands: Any, outs: Any) -> None:
        outs[0].copy_(operands[0].view(outs[0].shape))

    def gradient(operands: Any, outs: Any, grads: Any) -> Any:
        return grads[0].flatten(0, 1)

    def make() -> NodeType:
        kernel = SegmentKernel(
            "dense", (whole,), run, gradient, reads=(False,), reads_outs=False, grad=rows.context.grad
        )
        name = name_of(recorder, f"stack of {length}", slot, spec)
        return NodeType(name, kernel, (slot,), (spec,), (), (False,))

    if rows.whole is None:
        slot, flat = (Slot.LIST, listed(rows)) if rows.ref is None else (Slot.ROWS, [rows.ref])
        key = own_key("dense", rows.kind, (length, slot))
        rows.whole = recorder.add(recorder.entry(key, make, rows.context), flat)
    return rows.whole


def name_of(recorder: Recorder, what: str, slot: Slot, spec: Spec) -> str:
    what_of = "rows" if slot in (Slot.ROWS, Slot.SUM_ROWS) else "values"
    return f"{what} {what_of} {recorder.names.spec(spec)}"


def listed(rows: Ragged) -> list[int]:
    return [rows.length, *(rows.elements or ())]


def is_list(recorder: Recorder, rows: Ragged) -> bool:
    """Whether rows can be read as a list here. If they were stacked in other modes, a copy is recorded in those."""
    if rows.ref is None and rows.context is not recorder.context:
        materialise(recorder, rows)
    return rows.ref is None


def operand(recorder: Recorder, rows: Ragged) -> tuple[Slot, list[int]]:
    return (Slot.LIST, listed(rows)) if is_list(recorder, rows) else (Slot.ROWS, [rows.ref])


def check_owner(recorder: Recorder, rows: Ragged) -> None:
    if rows.kind.recorder is not recorder or not recorder.is_open:
        raise LeakedValueError(
            "rows of values were used outside the call of the batched function that made them; return them instead"
        )
