"""Types of nodes inside one recording: how a new signature gets its type, and what is kept of it for further calls.

In: a call whose signature (its target, the specs of operands, constants) the recording has not seen. Out: its
`NodeType`, which all calls of the signature have. Its kernel comes from earlier calls of the batched function, or is
captured now, so that shape errors appear at the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from edbatch.cells.eager import EagerKernel
from edbatch.cells.in_order import TURN, InOrder, in_order
from edbatch.cells.kernel import Kernel
from edbatch.errors import RecordingError
from edbatch.layout.layout import REF, Slot
from edbatch.recording.calls.signature import Parts, calling, lasting_key
from edbatch.recording.program.marking import active, plain_loop, unhooked
from edbatch.recording.types.kernel_cache import Cell, Context
from edbatch.recording.types.type_set import NodeType
from edbatch.recording.values.lazy import Kind, Lazy, lazy, rows_of
from edbatch.recording.values.refusals import TRANSFORMS
from edbatch.spec import Spec
from edbatch.torch_insides import pytree
from edbatch.torch_insides.transforms import innermost_transform
from edbatch.torch_state.surroundings import Surroundings, Undrawn, inside

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder

_CALL = nn.Module.__call__
VIEWING: list[Any] = []  # our own functions for which torch would give views of their first operand


def module_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a cell with its hooks; without them if it runs only to learn the shapes of its results."""
    return module.forward(*args, **kwargs) if unhooked.get() else _CALL(module, *args, **kwargs)


class Signature(NamedTuple):
    """What tells a type from the others of its recording, and its name before it was made unique."""

    key: tuple[Hashable, ...]
    context: Context
    name: str


class Entry:
    """A type of node inside a recording, with what is needed to add one more node quickly."""

    __slots__ = ("id", "is_ordered", "is_plain", "kinds", "num_args", "simple", "type")

    def __init__(self, identity: int, node_type: NodeType, kinds: tuple[Kind, ...]):
        self.id = identity
        self.type = node_type
        self.kinds = kinds
        self.is_ordered = isinstance(node_type.kernel, InOrder)
        self.is_plain = not node_type.kernel.writes and not self.is_ordered  # others: `writes`, `Recorder._in_turn`
        is_list = any(slot in (Slot.LIST, Slot.SUM) for slot in node_type.slots)
        # How many numbers a node of this type has among the args of the recording; -1 if that differs.
        self.num_args = -1 if is_list else sum(slot is not Slot.OFFSETS for slot in node_type.slots)
        marks = tuple([object() for _ in kinds])
        shape = node_type.kernel.unflatten(list(marks))
        is_tuple = type(shape) is tuple and shape == marks and len(marks) > 1
        # The number of outputs, if they are one value or a plain tuple of values, none of them `Ragged`; else 0.
        self.simple = 0 if any(node_type.per_row) else 1 if (shape,) == marks else len(marks) if is_tuple else 0

    def outputs(self, node: int, length: int | None = None) -> Any:
        """What the call of a node returns; `length` is the number of its rows, if it has any."""
        if self.simple == 1:
            return lazy(node, self.kinds[0])
        if self.simple:
            return tuple([lazy(node + i * REF, kind) for i, kind in enumerate(self.kinds)])
        return self.type.kernel.unflatten(self.values(node, length))

    def values(self, node: int, length: int | None = None) -> list[Any]:
        """The outputs of a node."""
        return [
            lazy(node + i * REF, kind) if not per_row else rows_of(node + i * REF, kind, length or 0)
            for i, (kind, per_row) in enumerate(zip(self.kinds, self.type.per_row, strict=True))
        ]


def define(recorder: Recorder, target: Any, args: Any, kwargs: Any, parts: Parts, cell: Cell | None) -> NodeType:
    """The type of a new signature. A cell keeps its types from call to call, as long as its modules do not change."""
    lasts = cell is not None and not parts.shared and not parts.generators and not recorder.names.has_keywords
    if cell is None or not lasts:
        return _new_type(recorder, target, args, kwargs, parts, cell)
    key = recorder.context, *lasting_key(parts.key)
    found = cell.node_types.get(key)
    if found is None or not found.kernel.is_current:
        found = cell.node_types[key] = _new_type(recorder, target, args, kwargs, parts, cell)
    return found


def _new_type(recorder: Recorder, target: Any, args: Any, kwargs: Any, parts: Parts, cell: Cell | None) -> NodeType:
    if innermost_transform() is not None:
        raise RecordingError(TRANSFORMS)
    rows = tuple(o.spec if isinstance(o, Kind) else o for o in parts.operands)
    run = module_call.__get__(target) if isinstance(target, nn.Module) else getattr(target, "function", target)
    function = calling(run, args, kwargs, len(rows))
    num_captured = recorder.kernels.num_captured
    kernel = _kernel(recorder, function, parts, rows, target, cell)
    name = recorder.names.call(target, args, kwargs, parts)
    if recorder.kernels.num_captured > num_captured:
        recorder.kernels.growth.note(name)
    if cell is None and not kernel.outputs:
        raise RecordingError(f"{name} gives no tensor, so it cannot be asked while examples are recorded; leave it out")
    if any(isinstance(leaf, Lazy) for leaf in pytree.tree_leaves(kernel.unflatten([None] * len(kernel.outputs)))):
        raise RecordingError(
            f"{name} returns a lazy value that is none of its arguments, but came by a closure, an attribute or an "
            "object of your own; pass it as an argument"
        )
    slots = tuple(parts.slots)
    if isinstance(kernel, EagerKernel) and kernel.is_ordered and not parts.is_row_wise:
        kernel, slots, rows = in_order(kernel), (*slots, Slot.ONE), (*rows, TURN)
    per_row = (parts.is_row_wise,) * len(kernel.outputs)
    is_view = any(target is function for function in VIEWING)
    shared, again = (*parts.shared, *kernel.enclosed), None if parts.generators else function
    is_marked = cell is not None and cell.is_marked
    recorder.kernels.gives_numbers |= cell is not None and not is_marked and Slot.DATA in slots
    return NodeType(name, kernel, slots, rows, shared, per_row, is_view, again, is_marked)


def _kernel(
    recorder: Recorder,
    function: Callable[..., Any],
    parts: Parts,
    rows: tuple[Spec, ...],
    target: Any,
    cell: Cell | None,
) -> Kernel:
    """The kernel of a signature, from the cache of earlier calls or captured now."""
    shared = tuple(Spec.of(t) for t in parts.shared)
    reason = "it draws from a generator of its own, row by row" if parts.generators else None

    def found() -> Kernel:
        active.set(None)
        plain_loop.set(True)  # a batched function that a cell calls is a plain loop
        recorder.suspend(True)
        key = lasting_key(parts.key, parts.shared), rows, shared, recorder.context
        return recorder.kernels.kernel(function, rows, shared, key, target, cell, reason)

    try:
        return inside((Surroundings(active, plain_loop), Undrawn(*parts.generators)), found)
    finally:
        recorder.suspend(False)
