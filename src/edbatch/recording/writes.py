"""Writes in place while a function is recorded: `value += …`, `inplace=True`, cells that write their arguments.

Torch writes into memory, and all tensors that share the memory see it. A lazy value, which stands for a tensor that is
not computed yet, has no memory. Instead it is changed to refer to the result of the write. That means the same as long
as no other value would share its memory in torch; where one would, the write is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from edbatch.errors import InPlaceError
from edbatch.recording.calls.indexing import in_bounds, put_at
from edbatch.recording.values.lazy import Lazy, PendingSum, Ragged, others_alive, rows_of, set_class
from edbatch.spec import is_tensor
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction
from edbatch.torch_insides.tensors import base_of, num_owners

if TYPE_CHECKING:
    from edbatch.recording.calls.entries import Entry
    from edbatch.recording.calls.signature import Parts
    from edbatch.recording.recorder import Recorder


Part = tuple[Any, Any, Any, Sequence[Any]]  # a value, of what it is a part, the reference that had then, the index
SEEN = "another value, such as a view of it, shares its memory and would change too"


def record(recorder: Recorder, entry: Entry, parts: Parts, length: int | None) -> Any:
    """Record a call that writes some of its operands."""
    kernel, values = entry.type.kernel, parts.values
    taken = {i: _part(recorder, values[i]) for i in kernel.writes if values[i] is not None}
    for i, part in taken.items():  # without those that are numbers, which nobody sees change
        check_writable(recorder, values[i], [v for j, v in enumerate(values) if j != i], part)
    given = [None if i is None else values[i] for i in kernel.same]  # for each result the argument that it is, if any
    node = recorder.add_node(entry, parts.flat)
    outputs = entry.values(node, length)
    first = len(outputs) - len(kernel.writes)
    for k, i in enumerate(kernel.writes, first):
        if i in taken:
            _rebind(values[i], outputs[k])
            _put_back(recorder, taken[i])
    results = [made if value is None else value for made, value in zip(outputs[:first], given, strict=True)]
    return kernel.unflatten(results)


def write(recorder: Recorder, value: Lazy, result: Any) -> Lazy:
    """`value += …` and the like: from now on the value is the result."""
    is_like = (
        type(result) is Ragged if type(value) is Ragged else isinstance(result, Lazy) and type(result) is not Ragged
    )
    if not is_like and isinstance(result, Lazy) and (result.shape, result.dtype) == (value.shape, value.dtype):
        raise InPlaceError(
            "rows of torch.stack and a value of a fixed number of rows are written into one another, which are kept "
            "differently; write x = x + y instead of x += y"
        )
    if not is_like or result.shape != value.shape or result.dtype != value.dtype:
        raise InPlaceError(
            f"a value of shape {list(value.shape)} and {value.dtype} was written in place, but the result has shape "
            f"{list(result.shape)} and {result.dtype}; write x = x + y instead of x += y"
        )
    is_new = type(value) is PendingSum and (recorder.context.grad or value.ref[2] is recorder.context)
    part = None if is_new else _part(recorder, value)
    if not is_new:
        check_writable(recorder, value, [], part)
    _rebind(value, result)
    _put_back(recorder, part)
    return value


def _part(recorder: Recorder, value: Lazy) -> Part | None:
    """What is known of a value that is a part of another one, if that is still as it was."""
    _forget_dead(recorder)
    found = next((part for part in reversed(recorder.parts) if part[0] is value), None)
    if found is None:
        return None
    value, base, ref, index = found
    if type(base) is Lazy and not isinstance(index, list):  # noted in C, as the user has written it
        found = value, base, ref, in_bounds(index if isinstance(index, tuple) else (index,), base.shape)
    is_list = type(base) is Ragged and base.context is recorder.context
    return found if base.ref == ref and (is_list or type(base) is Lazy) else None


def _forget_dead(recorder: Recorder) -> None:
    """Let no part live on only because we remember it: it would seem that somebody looks at it."""
    alone = _num_references((object(), None))
    _keep_parts(recorder, [part for part in recorder.parts if _num_references(part) > alone])
    recorder.overwritten.forget_dead(alone)


def _keep_parts(recorder: Recorder, parts: list[Part]) -> None:
    recorder.parts.clear()
    recorder.parts.extend(parts)


def _put_back(recorder: Recorder, part: Part | None) -> None:
    """Write a part, which was written itself, into the value that it was taken of."""
    if part is None:
        return
    value, base, _, index = part
    value = recorder.resolve(value)
    if type(base) is Ragged:
        put_row(base, index[0], value)
        base.taken = {**(base.taken or {}), index[0]: 1}
    else:
        _rebind(base, put_at(recorder, base, index, value))
    others = [other for other in recorder.parts if other[0] is not value]
    _keep_parts(recorder, [*others, (value, base, base.ref, index)])


def is_put_back(recorder: Recorder, base: Any, index: Sequence[Any], new: Any) -> bool:
    """Whether a part was written into its value already: `x[i] += y` then puts it back itself."""
    part = _part(recorder, new) if type(new) is Lazy else None
    if part is None or part[1] is not base or len(part[3]) != len(index):
        return False
    pairs = zip(part[3], index, strict=True)
    return all(type(i) is type(j) and type(i) in (int, slice, type(None)) and i == j for i, j in pairs)


def put_row(rows: Ragged, place: int, new: Lazy) -> None:
    """`rows[place] = new`: the list of values has another one there."""
    elements = list(rows.elements or ())
    elements[place] = new.ref
    rows.elements, rows.ref, rows.whole = elements, None, None
    rows.taken = {k: count for k, count in rows.taken.items() if k != place} if rows.taken else None


def set_row(recorder: Recorder, rows: Ragged, place: int, new: Lazy) -> None:
    """`put_row`, if nobody else would see it."""
    elements = rows.elements or ()
    if elements[place] == new.ref:
        return
    _forget_dead(recorder)
    is_taken = rows.taken is not None and place in rows.taken and others_alive(rows, {elements[place]})
    if is_taken or any(_is_seen(recorder, rows, ref, None) for ref in _refs(rows)):
        _refuse(rows, SEEN)
    put_row(rows, place, new)


def _refs(rows: Ragged) -> list[int]:
    """The references of rows that lie in memory."""
    return [ref for ref in (rows.ref, getattr(rows.whole, "ref", None)) if ref is not None]


def check_writable(recorder: Recorder, value: Lazy, others: list[Lazy | None], part: Part | None = None) -> None:
    """Raise if, in torch, other values would change with this one: here they would not.

    Args:
        part: of what this value was taken, and into what it will be written, too.
    """
    why = _reason(recorder, value, others, part)
    if why is not None:
        _refuse(value, why)


def _refuse(value: Lazy, why: str) -> None:
    raise InPlaceError(
        f"a lazy value {value.kind.spec} is written in place (x += y, x.add_(y), x[i] = y, inplace=True, or a cell that"
        f" writes its argument), but {why}. Make a new value instead: x = x + y, inplace=False, or x = x.clone() first"
    )


def _reason(recorder: Recorder, value: Lazy, others: list[Lazy | None], part: Part | None) -> str | None:
    base = None if part is None else part[1]
    if type(value) is Ragged:
        elements = value.elements or ()
        taken = {elements[k] for k in value.taken or ()} if elements else set()
        refs, is_seen = _refs(value), bool(taken) and others_alive(value, taken)
    else:
        refs, is_seen = [recorder.resolve(value).ref], False
    if part is not None and type(base) is Ragged:
        is_seen = (base.taken or {}).get(part[3][0], 0) > 1 and others_alive(value, refs)
    else:
        if any(ref < 0 for ref in refs):
            return "it is a tensor from outside, such as an entry of a column, which the write would change there"
        is_seen = is_seen or any(_is_seen(recorder, value, ref, base) for ref in refs)
    if any(isinstance(other, Lazy) and (other is value or other.ref in refs) for other in others):
        return "the same value is another argument of the call"
    if is_seen:
        return SEEN
    if not recorder.context.grad and value.requires_grad:  # type: ignore[attr-defined]
        return "it requires gradients, which go past a write under no_grad"
    return None


def _is_seen(recorder: Recorder, value: Lazy, ref: int, base: Lazy | None) -> bool:
    """Whether a value that is alive would share memory with this one, besides its base."""
    sharing = recorder.lineage.sharing(ref)
    if min(sharing) < 0:  # of a tensor from outside
        return True
    if not recorder.lineage.others_unknown.isdisjoint(sharing):
        return True
    return len(sharing) > 1 and others_alive(value, sharing - {ref} - ({base.ref} if base is not None else set()))


def _rebind(value: Any, result: Any) -> None:
    """Make a lazy value refer to what another one refers to. Calls recorded before still read the old value."""
    if type(value) is Ragged:
        value.ref, value.elements, value.whole = result.ref, result.elements, result.whole
        value.context, value.taken = result.context, None
        return
    set_class(value, type(result))
    value.kind, value.ref = result.kind, result.ref


class Overwritten:
    """Plain tensors that lazy values were written into: `total = torch.zeros(3); total += value`.

    Such a tensor stands for the result from then on, wherever it is used in the same call. Nobody may hold it when the
    call ends, because the numbers of the result are not in it.
    """

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self.values: dict[int, tuple[torch.Tensor, Lazy]] = {}

    def write(self, tensor: torch.Tensor, result: Any) -> Any:
        """`tensor += …` with a lazy result: from now on the tensor stands for the result."""
        if not self.write_row(tensor, result):
            with DisableTorchFunction():
                self._check(self._reason(tensor, result.shape, result.dtype))
            self.values[id(tensor)] = tensor, result
            self._recorder.forget_outside(tensor)
        return result

    @staticmethod
    def _check(why: str | None) -> None:
        if why is not None:
            raise InPlaceError(
                f"a lazy value was written into a plain tensor (tensor += value, tensor[i] = value), but {why}; make a "
                "new value instead: tensor = tensor + value, tensor = tensor.clone(), or torch.stack(values)"
            )

    def _reason(self, tensor: torch.Tensor, shape: torch.Size, dtype: torch.dtype, num_parts: int = 0) -> str | None:
        if tensor in self._recorder.shared:
            return "it is a parameter, a buffer, a keyword or computed from these, which all examples share"
        if tensor.requires_grad:
            return "it requires gradients"
        if shape != tensor.shape or dtype != tensor.dtype:
            return f"the result is of another shape or dtype, {list(shape)} and {dtype}"
        if base_of(tensor) is not None or num_owners(tensor) > num_owners(torch.empty(1)) + num_parts:
            return "another tensor shares its memory, such as a view of it"
        return None

    def set_row(self, tensor: torch.Tensor, place: int, new: Lazy, num_parts: int = 0) -> None:
        """`tensor[place] = new`: from now on the tensor stands for a stack of its rows, with this one among them."""
        with DisableTorchFunction():
            self._check(self._reason(tensor, tensor.shape, new.dtype, num_parts))
            first = tensor[:1].clone()
            distinct = [first[0]] if bool((tensor == first).all()) else [row.clone() for row in tensor]
        outside = [self._recorder.outside(row).ref for row in distinct]
        elements = outside if len(outside) == len(tensor) else outside * len(tensor)
        elements[place] = new.ref
        self.values[id(tensor)] = tensor, rows_of(None, new.kind, len(elements), elements)
        self._recorder.forget_outside(tensor)

    def write_row(self, row: torch.Tensor, result: Any) -> bool:
        """`tensor[i] += …` with a lazy result, where `row` is tensor[i]; False if it is no row of another tensor."""
        with DisableTorchFunction():
            base = base_of(row)
            if base is None or not base.is_contiguous() or row.shape != base.shape[1:] or not row.is_contiguous():
                return False
            place, rest = divmod(int(row.storage_offset()) - int(base.storage_offset()), max(row.numel(), 1))
        if rest or row.numel() == 0 or type(result) is Ragged or not isinstance(result, Lazy):
            return False
        if result.shape != row.shape or result.dtype != row.dtype:
            return False
        result = self._recorder.resolve(result)
        self._recorder.copy_outside(row)
        self.set_row(base, place, result, num_parts=1)
        self.values[id(row)] = row, result
        return True

    def swapped(self, tree: Any) -> Any:
        """Arguments or results with lazy values in the places of such tensors."""
        if not self.values:
            return tree
        return pytree.tree_map_only(is_tensor, lambda t: self.values.get(id(t), (t, t))[1], tree)

    def forget_dead(self, alone: int) -> None:
        """Let no lazy value live on only because we remember it."""
        for number, pair in list(self.values.items()):
            if _num_references(pair) <= alone and not self._recorder.num_uses(pair[0]):
                del self.values[number]

    def held(self) -> list[tuple[torch.Tensor, Lazy]]:
        """Called at the end: the tensors that somebody else holds, and what they stand for."""
        alone = _num_references((object(), None))
        self.forget_dead(alone)
        return [p for p in self.values.values() if _num_references(p) > alone + self._recorder.num_uses(p[0])]

    def check(self) -> None:
        """Raise if somebody else holds such a tensor, where nothing can be handed over."""
        if self.held():
            raise InPlaceError(
                "a lazy value was written into a plain tensor (tensor += value) that lives longer than the batched "
                "call, where values do not exist yet; return the sum, and add it to the tensor after the call"
            )


def _num_references(pair: tuple[Any, ...]) -> int:
    """The reference count of the first of a pair. How many of them are our own depends on the version of Python."""
    return sys.getrefcount(pair[0])
