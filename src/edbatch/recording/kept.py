"""Values that outlive their call: `self.state = h`, `tree.state = h, c`, or a tensor of the caller that was written.
Also conditions that were taken for true, and are checked when their numbers are there.

In, when a recording ends: the lazy values that are still alive, which somebody else than us holds. They are computed
and gathered like results. Out, when the numbers are there: in the attributes, lists and dicts of modules and examples
their tensors take their places; wherever else one is, it behaves like its tensor from then on.
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edbatch.recording.results import KEPT, Results, Value, groups
from edbatch.recording.values import lazy
from edbatch.recording.values.lazy import Kind, Lazy, Ragged
from edbatch.spec import Spec, is_tensor
from edbatch.torch_insides import pytree

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder

CLOSED = (str, bytes, int, float, complex, type, types.ModuleType, np.ndarray, Spec)  # hold no values, or too much


class Assumption(NamedTuple):
    """A condition that was taken for true while it was recorded, and what to say if it is not."""

    value: Lazy
    message: str
    example: int

    def check(self, condition: Tensor) -> None:
        if not condition:
            raise ValueError(f"{self.message} in example {self.example} of the mini-batch")


class AfterCall:
    """Takes the place of the recorder of values whose call is over: all that is done with them is done with tensors."""

    is_open, is_usual, sums_grow_in, known_calls = False, False, None, None

    def torch_function(self, func: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(Lazy, tensor_of, (args, kwargs))
        return func(*args, **kwargs)

    def read(self, value: Lazy, how: str) -> Tensor:
        return value.ref  # type: ignore[no-any-return]

    def plus(self, left: Any, right: Any) -> Any:
        return tensor_of(left) + tensor_of(right)

    def getitem(self, value: Lazy, key: Any) -> Any:
        return self.torch_function(torch.Tensor.__getitem__, (value, key), {})

    def write(self, value: Lazy, result: Any) -> Lazy:
        value.ref.copy_(tensor_of(result))
        return value


def tensor_of(value: Any) -> Any:
    """The tensor of a value whose call is over; anything else as it is."""
    return value.ref if isinstance(value, Lazy) and type(value.kind.recorder) is AfterCall else value


def survivors(recorder: Recorder) -> list[Any]:
    """The lazy values that somebody holds although their recording ends, and the tensors that were written.

    Results must have been collected or copied, and their lazy values dropped: else these seem to be held, too.
    """
    if lazy.living is None:
        recorder.overwritten.check()
        return [*recorder.assumed]
    ours = [*recorder.overwritten.held(), *recorder.assumed]
    recorder.let_go()
    known = {id(_value(kept)) for kept in ours} | {id(value) for value in recorder.copies}
    found = _living(recorder, known)
    if found and recorder.has_captured:  # errors that were caught in a capture may hold its frames, in cycles
        del found
        gc.collect()
        found = _living(recorder, known)
    recorder.refuse_own_leaves(found)
    return [*found, *ours]


def _living(recorder: Recorder, known: set[int]) -> list[Any]:
    assert lazy.living is not None
    return [v for v in lazy.living() if hasattr(v, "kind") and v.kind.recorder is recorder and id(v) not in known]


def _value(kept: Any) -> Lazy:
    return kept.value if isinstance(kept, Assumption) else kept[1] if type(kept) is tuple else kept


def with_kept(results: Results, recorder: Recorder, kept: Sequence[Any]) -> Results:
    """The results with groups for what is kept. Tensors that examples brought with them are there already."""
    given = [v for v in kept if type(v) is Lazy and type(v.ref) is int and v.ref < 0]
    for value in given:
        value.kind, value.ref = Kind(value.kind.spec, AfterCall()), recorder.tensor_of(value.ref)
    kept = [*[v for v in kept if not any(v is value for value in given)], *given]
    values = [Value.of(_value(v), recorder) for v in kept[: len(kept) - len(given)]]
    return results.keeping(kept, groups(KEPT, values))


def hand_over(results: Results, gathered: Sequence[Tensor], roots: Iterable[Any]) -> None:
    """Make tensors of what is kept, once it is computed, and put them where the values were.

    Args:
        roots: where to look for them: modules and examples.
    """
    after = AfterCall()
    for group, tensor in zip(results.groups, gathered, strict=True):
        parts = group.parts(tensor) if group.leaf == KEPT and group.lengths is not None else tensor
        for k, i in enumerate(group.examples) if group.leaf == KEPT else ():
            kept, part = results.kept[i], parts[k]
            if isinstance(kept, Assumption):
                kept.check(part)
            elif type(kept) is tuple:
                kept[0].copy_(part)
            else:
                spec = Spec(tuple(part.shape[1:] if type(kept) is Ragged else part.shape), part.dtype, part.device)
                kept.kind, kept.ref = Kind(spec, after), part
    _replace_in(roots)


def _replace_in(roots: Iterable[Any]) -> None:
    """Put tensors in the places of kept values, in the attributes, lists and dicts of all that is found from here."""
    seen: dict[int, Any] = {}
    waiting = list(roots)
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, CLOSED) or is_tensor(holder) or id(holder) in seen:
            continue
        seen[id(holder)] = holder  # kept alive, so that nothing else gets its id
        if isinstance(holder, tuple | frozenset | set):
            waiting.extend(holder)
        elif isinstance(holder, dict | list):
            for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
                if (new := _replaced(value)) is not value:
                    holder[key] = new
            waiting.extend(holder.values() if isinstance(holder, dict) else holder)
        elif isinstance(holder, types.FunctionType):
            waiting.extend(_contents(holder.__closure__ or ()))
        elif isinstance(holder, types.MethodType | functools.partial):
            waiting.extend((holder.__self__,) if isinstance(holder, types.MethodType) else (holder.func, holder.args))
        else:
            waiting.append(getattr(holder, "__dict__", None))
            waiting.extend(_in_slots(holder))


def _contents(cells: Sequence[types.CellType]) -> list[Any]:
    found = []
    for cell in cells:
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if (new := _replaced(value)) is not value:
            cell.cell_contents = new
        found.append(new)
    return found


def _in_slots(holder: Any) -> list[Any]:
    names = [name for cls in type(holder).__mro__ for name in _as_tuple(vars(cls).get("__slots__", ()))]
    found = [(name, getattr(holder, name, None)) for name in names]
    for name, value in found:
        if (new := _replaced(value)) is not value:
            object.__setattr__(holder, name, new)
    return [value for _, value in found]


def _as_tuple(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _replaced(value: Any) -> Any:
    """The tensor of a kept value, a tuple with their tensors; anything else as it is."""
    if not isinstance(value, tuple):
        return tensor_of(value)
    items = [_replaced(item) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
