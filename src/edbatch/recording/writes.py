"""Writes in place while a function is recorded: `value += …`, `inplace=True`, cells that write their arguments.

Torch writes into memory, and all tensors that share the memory see it. A lazy value, which stands for a tensor that is
not computed yet, has no memory. Instead it is changed to refer to the result of the write. That means the same as long
as no other value would share its memory in torch; where one would, the write is refused.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from edbatch.errors import InPlaceError
from edbatch.recording.values.lazy import Lazy, PendingSum, Ragged, set_class
from edbatch.spec import is_tensor
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction
from edbatch.torch_insides.tensors import base_of, num_owners

if TYPE_CHECKING:
    from edbatch.recording.calls.entries import Entry
    from edbatch.recording.calls.signature import Parts
    from edbatch.recording.recorder import Recorder


def record(recorder: Recorder, entry: Entry, parts: Parts, length: int | None) -> Any:
    """Record a call that writes some of its operands."""
    kernel, values = entry.type.kernel, parts.values
    for i in kernel.writes:
        value = values[i]
        if value is not None:  # None is a number, which nobody sees change
            check_writable(recorder, value, [v for j, v in enumerate(values) if j != i])
    given = [None if i is None else values[i] for i in kernel.same]  # for each result the argument that it is, if any
    node = recorder.add_node(entry, parts.flat)
    outputs = entry.values(node, length)
    first = len(outputs) - len(kernel.writes)
    for k, i in enumerate(kernel.writes, first):
        if values[i] is not None:
            _rebind(values[i], outputs[k])
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
    if not is_new:
        check_writable(recorder, value, [])
    _rebind(value, result)
    return value


def check_writable(recorder: Recorder, value: Lazy, others: list[Lazy | None]) -> None:
    """Raise if, in torch, other values would change with this one: here they would not."""
    why = _reason(recorder, value, others)
    if why is not None:
        raise InPlaceError(
            f"a lazy value {value.kind.spec} is written in place (+=, inplace=True, or a cell that writes its argument)"
            f", but {why}. Make a new value instead: x = x + y, inplace=False, or x.clone() first"
        )


def _reason(recorder: Recorder, value: Lazy, others: list[Lazy | None]) -> str | None:
    if type(value) is Ragged:
        refs = [] if value.ref is None else [value.ref]
        refs += [] if value.whole is None else [value.whole.ref]
        is_viewed = value.is_viewed
    else:
        refs, is_viewed = [recorder.resolve(value).ref], False
    if any(ref < 0 for ref in refs):
        return "it is a tensor from outside, such as an entry of a column, which the write would change there"
    if any(isinstance(other, Lazy) and (other is value or other.ref in refs) for other in others):
        return "the same value is another argument of the call"
    recorder.lineage.look()
    if is_viewed or not recorder.lineage.shares.isdisjoint(refs):
        return "another value, such as a view of it, shares its memory and would change too"
    if not recorder.context.grad and value.requires_grad:  # type: ignore[attr-defined]
        return "it requires gradients, which go past a write under no_grad"
    return None


def _rebind(value: Any, result: Any) -> None:
    """Make a lazy value refer to what another one refers to. Calls recorded before still read the old value."""
    if type(value) is Ragged:
        value.ref, value.elements, value.whole, value.context = (
            result.ref,
            result.elements,
            result.whole,
            result.context,
        )
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
        with DisableTorchFunction():
            why = self._reason(tensor, result)
        if why is not None:
            raise InPlaceError(
                f"a lazy value was written into a plain tensor (tensor += value), but {why}; write tensor = tensor + "
                "value"
            )
        self.values[id(tensor)] = tensor, result
        self._recorder.forget_outside(tensor)
        return result

    def _reason(self, tensor: torch.Tensor, result: Any) -> str | None:
        if tensor in self._recorder.shared:
            return "it is a parameter, a buffer, a keyword or computed from these, which all examples share"
        if tensor.requires_grad:
            return "it requires gradients"
        if not isinstance(result, Lazy) or result.shape != tensor.shape or result.dtype != tensor.dtype:
            return f"the result is of another shape or dtype, {list(result.shape)} and {result.dtype}"
        if base_of(tensor) is not None or num_owners(tensor) > num_owners(torch.empty(1)):
            return "another tensor shares its memory, such as a view of it"
        return None

    def swapped(self, tree: Any) -> Any:
        """Arguments or results with lazy values in the places of such tensors."""
        if not self.values:
            return tree
        return pytree.tree_map_only(is_tensor, lambda t: self.values.get(id(t), (t, t))[1], tree)

    def check(self) -> None:
        """Called at the end: raise if somebody still holds such a tensor."""
        alone = _num_references((object(), None))
        for pair in self.values.values():
            if _num_references(pair) > alone + self._recorder.num_uses(pair[0]):
                raise InPlaceError(
                    "a lazy value was written into a plain tensor (tensor += value) that lives longer than the batched "
                    "call, where values do not exist yet; return the sum, and add it to the tensor after the call"
                )


def _num_references(pair: tuple[Any, Any]) -> int:
    """The reference count of the first of a pair. How many of them are our own depends on the version of Python."""
    return sys.getrefcount(pair[0])
