"""The recorder: every call of a cell or torch function on lazy values becomes one node of a graph.

In: calls, from `interception` and from the methods of lazy values. Out: at once, lazy values for the results of a call;
at the end, a `Recording`. A node's type says which nodes may run together. It follows from the signature of the call
(its target, the specs of operands, constants) and is found by one look-up in a dictionary. `entries.define` makes the
type of a signature that is new to the recording. Only the code here runs once per node, so it has to be quick.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edbatch.cells.capture.in_place import is_in_place
from edbatch.cells.in_order import TURN, InOrder
from edbatch.errors import InPlaceError, RecordingError
from edbatch.recording import writes
from edbatch.recording.calls.entries import Entry, Signature, define, module_call
from edbatch.recording.calls.fast_cells import KnownCalls, Numbers, as_value
from edbatch.recording.calls.fast_functions import ADD, ARITHMETIC, known, known_rows
from edbatch.recording.calls.indexing import as_index, getitem, is_row_number, row_of, with_known_masks
from edbatch.recording.calls.names import Names
from edbatch.recording.calls.shared import SharedTensors, flatten, memory_of
from edbatch.recording.calls.signature import Parts
from edbatch.recording.given import GivenValues
from edbatch.recording.in_place_calls import in_place
from edbatch.recording.kept import Assumption, tensor_of
from edbatch.recording.made import MAKING, MadeTensors
from edbatch.recording.program.attributes import Same
from edbatch.recording.program.marking import CellFunction, is_row_wise
from edbatch.recording.questions import ask
from edbatch.recording.results import settle
from edbatch.recording.types.kernel_cache import Cell, Context, KernelCache
from edbatch.recording.types.recording import Recording
from edbatch.recording.types.type_set import NodeType
from edbatch.recording.values import ragged_functions, sums
from edbatch.recording.values.lazy import Kind, Lazy, PendingSum, Ragged, lazy, leaked, reading
from edbatch.recording.values.lineage import Lineage
from edbatch.recording.values.ragged import dense
from edbatch.recording.values.refusals import refuse
from edbatch.spec import OWN_RULES, Spec, is_tensor, own_rules
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction, set_grad_enabled
from edbatch.torch_insides.modules import backward_hooks_in, compiled_call_of

# Questions whose answers for a parameter stay the same as long as its module does not change.
METADATA = {
    *[getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "is_floating_point", "is_complex", "__len__")],
    *[getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda")],
}
DRAWS = "it draws random numbers"
CHANGES = "it calls a cell that changes a buffer or an attribute"
STACK = torch.stack
TRUE = torch.ones((), dtype=torch.bool)


class Called(NamedTuple):
    """A module or marked function that was called, the modules among its arguments, and its cell, if it is one."""

    targets: tuple[Any, ...]  # kept alive, so that nothing else gets their ids
    cell: Cell | None
    key: Hashable


class Recorder:
    """Records one call of a batched function: all its examples into one graph."""

    def __init__(
        self,
        kernels: KernelCache,
        names: Names,
        device: torch.device,
        shared: Sequence[torch.Tensor] = (),
        codes: dict[CodeType, int] | None = None,
    ):
        self.codes = codes  # numbers of the user's functions; None if nobody asks which of them records
        self.kernels = kernels
        self._num_captured = kernels.num_captured
        self.names = names
        self.device = device
        self.types, self.args = Numbers(), Numbers()
        self.add_type, self.add_args = self.types.append, self.args.extend
        self.node_types: list[NodeType] = []
        self.plain: set[int] = set()  # the ids of modules that are no cells
        self.signatures: list[Signature] = []  # of each type
        self.starts: list[int] = []  # the first node of every example
        self.changing: str | None = None  # why this example has to be recorded again, even if its key is known
        self.is_open = True
        self.suspended = False
        self._kinds: dict[Spec, Kind] = {}
        self._outside: list[torch.Tensor] = []
        self._outside_specs: list[Spec] = []
        self._outside_of: dict[int, Lazy] = {}
        self._read: list[torch.Tensor] = []  # shared tensors from which something was computed while recording
        self._by_memory: dict[int, list[int]] = {}  # for each storage, the inputs from outside in it
        self._num_in_python = 0
        self._shared_memories: set[int | None] = set()  # those that nodes of the first `_num_seen` types read
        self._num_seen = 0
        self.made = MadeTensors()
        self.sites, self.spans = Numbers(), Numbers()  # where the user's code recorded the nodes: see `Recording`
        self.shared = SharedTensors(self, shared)
        self._all_entries: list[Entry] = []  # of each type
        self.known_calls = KnownCalls(
            Lazy,
            as_value,
            self._outside_of,
            self.types,
            self.args,
            self.shared.tensors,
            self._all_entries,
        )
        self._called: dict[tuple[int, ...], Called] = {}  # by the ids of a target and its owners
        self._entries_of: dict[Context, dict[Hashable, Entry]] = {}
        self._contexts: dict[Context, Context] = {}  # each once, so that they are compared by identity
        self._turn: int | None = None  # what the next call with side effects reads, to run after the last: `in_order`
        self.lineage = Lineage(self)
        self.given = GivenValues(self)
        self.assuming: str | None = None  # what to say if a condition that is read now turns out to be false
        self.assumed: list[Assumption] = []
        self.copies: list[Lazy] = []  # of results; nobody else holds them
        self.parts: deque[writes.Part] = deque(maxlen=32)  # the last that were taken
        self.known_calls.note_part = self.parts.append
        self.overwritten = writes.Overwritten(self)
        self.known_calls.at_once, self.known_calls.overwritten = {}, self.overwritten.values
        self.sums_grow_in: Context | None  # the present context; None while nothing can be recorded
        self.grad_in_training = True  # whether grad mode would be on here if it were on around the whole call
        self.refresh_context()
        self.outer = self.context

    def begin(self, example: Sequence[Any]) -> list[Any]:
        """Begin the next example; returns its arguments, with lazy values in place of tensors."""
        self.starts.append(len(self.types))
        self.made.clear()
        return [self.outside(x) if isinstance(x, torch.Tensor) else x for x in example]

    def end(self, output: Any) -> Any:
        """End the example; returns its results. Sums among them that are still pending are recorded now."""
        self.parts.clear()
        output = self.overwritten.swapped(output)
        settle(output, self)
        if self.lineage.own_leaves:
            self.refuse_own_leaves(pytree.tree_leaves(output))
        return output

    def refuse_own_leaves(self, values: Sequence[Any]) -> None:
        """Raise if the caller gets values that examples told to require gradients: he could ask for their `.grad`."""
        if any(map(self.lineage.is_own_leaf, values)):
            raise RecordingError(
                "a value that the function made and called requires_grad_() on is returned or kept, but its .grad will "
                "not be there: only tensors given to the batched function have one; give it as an argument, or return "
                "a copy: x.clone()"
            )

    # ---- the state around the recording

    def refresh_context(self) -> None:
        """Called whenever the user's code may have changed grad mode or autocast."""
        self.known_calls.forget()
        context = Context.current()
        self.context = self._contexts.setdefault(context, context)
        self.entries = self._entries_of.setdefault(self.context, {})
        self.suspend(self.suspended)

    def suspend(self, is_suspended: bool) -> None:
        """Called around what runs by itself, such as a cell that is captured: lazy values cannot be used in it."""
        self.suspended = is_suspended
        self.record_in(None if is_suspended else self.context)

    def record_in(self, context: Context | None) -> None:
        """The context that calls are recorded in from now on; None: nothing can be recorded."""
        self.sums_grow_in = context
        # Whether grad modes inside the batched call change nothing. Then 0 + x is x, if a node gives x.
        is_usual = self.grad_in_training and context is not None and (context.grad or len(self._contexts) == 1)
        self.known_calls.within(context, is_usual)

    def kind(self, spec: Spec) -> Kind:
        found = self._kinds.get(spec)
        if found is None:
            found = self._kinds[spec] = Kind(spec, self)
        return found

    def outside(self, tensor: torch.Tensor) -> Lazy:
        """The lazy value of a plain tensor; the same tensor is one value, however often it is used."""
        known = self._outside_of.get(id(tensor))
        if known is None and self.overwritten.values:
            known = self.overwritten.swapped(tensor)
            known = None if known is tensor else known
        if known is None:
            with DisableTorchFunction():  # else our look at its attributes would reach the mode that records
                spec, memory = Spec.of(tensor), memory_of(tensor)
                if (special := own_rules(tensor)) is not None:
                    raise RecordingError(f"a tensor of class {special} {OWN_RULES}")
                if tensor.layout is not torch.strided:
                    raise RecordingError(
                        f"a tensor of layout {tensor.layout} is a value of an example, but values are rows of dense "
                        "memory; give tensor.to_dense(), or what all examples share by keyword"
                    )
            known = self._outside_of[id(tensor)] = lazy(-1 - len(self._outside), self.kind(spec))
            if memory is not None:
                self._by_memory.setdefault(memory, []).append(len(self._outside))
            self._outside.append(tensor)
            self._outside_specs.append(spec)
        return known

    def forget_outside(self, tensor: torch.Tensor) -> None:
        """Let the next use of a tensor be a new value, because the tensor has changed."""
        self._outside_of.pop(id(tensor), None)

    def num_uses(self, tensor: torch.Tensor) -> int:
        return sum(used is tensor for used in self._outside)

    def tensor_of(self, ref: int) -> torch.Tensor:
        """The plain tensor that a negative reference stands for."""
        return self._outside[-1 - ref]

    def _protect(self, written: list[torch.Tensor]) -> None:
        """Called before tensors are written in place: what nodes read from their memory is copied as it is now."""
        used = self._shared_memories
        for node_type in self.node_types[self._num_seen :]:
            used.update(map(memory_of, node_type.shared))
        self._num_seen = len(self.node_types)
        for memory in map(memory_of, written):
            if memory is None:
                continue
            self.shared.forget_results(memory)
            if memory in used:
                raise InPlaceError(
                    "a parameter, a buffer or something computed from these was written in place after it was used in "
                    "the same mini-batch, but all examples share one value of it; write it before or after the call"
                )
            if self.shared.is_given_twice(memory):
                raise InPlaceError(
                    "what was computed of parameters, buffers or keywords alone is written in place, but it is "
                    "computed once for all examples, and others hold it too; make a new value: v = v + 1 instead of "
                    "v += 1, or v = v.clone() first"
                )
            operands = self._by_memory.pop(memory, [])
            if operands:
                self.lineage.look()
            if any(-1 - i in self.lineage.shares for i in operands):
                raise InPlaceError(
                    "a tensor was written in place of which a lazy value is a view, or which a cell returned as it is, "
                    "and which would change too; write before, or take a copy: tensor.clone()"
                )
            for i in operands:
                self._outside_of.pop(id(self._outside[i]), None)
                self._outside[i] = self._outside[i].clone()

    def let_go(self) -> None:
        """Hold no lazy values any more, so that those that are still alive are held by somebody else."""
        self.known_calls.end()  # frames of the user's functions hold their values
        self._outside_of.clear()
        self.overwritten.values.clear()
        self.parts.clear()

    @property
    def has_captured(self) -> bool:
        """Whether a kernel was captured meanwhile: code of others ran, such as imports."""
        return self.kernels.num_captured > self._num_captured

    def copy_outside(self, tensor: torch.Tensor) -> None:
        """Let what was recorded with a tensor read a copy of it, so that it is free."""
        self._outside = [used.clone() if used is tensor else used for used in self._outside]
        self.forget_outside(tensor)

    def close(self) -> None:
        """Let the lazy values be used no more."""
        self.is_open = False
        self.record_in(None)

    def finish(self) -> Recording:
        """Close the recording: its lazy values can be used no more."""
        with DisableTorchFunction():  # else the questions would be recorded
            self._check_written()
        self.close()
        self.known_calls.end()
        return Recording(
            np.frombuffer(memoryview(self.types), np.int64),
            np.frombuffer(memoryview(self.args), np.int64),
            tuple(self.node_types),
            tuple(self._outside),
            tuple(self._outside_specs),
            np.array(self.starts, dtype=np.int64),
            sites=np.frombuffer(memoryview(self.sites), np.int64),
            spans=np.frombuffer(memoryview(self.spans), np.int64).reshape(-1, 3),
            num_recorded=len(self.types),
            num_in_python=self._num_in_python,
        )

    def _check_written(self) -> None:
        """Raise if a cell writes a tensor in place that other nodes read, and nothing says which of them runs first."""
        for t in [t for t in self.node_types if t.kernel.changes]:
            memories = {memory_of(tensor) for tensor in t.kernel.changes}
            ordered = [o for o in self.node_types if isinstance(o.kernel, InOrder)]
            known = ordered if t in ordered else [t]
            others = [tensor for other in self.node_types if other not in known for tensor in other.shared]
            if any(memory_of(tensor) in memories for tensor in (*others, *self._outside, *self._read)):
                raise InPlaceError(
                    f"{t.name} writes a tensor in place that is also read elsewhere in the batched function, and which "
                    "comes first is not decided; read it in the same cell, or write it outside"
                )

    # ---- values

    def resolve(self, value: Lazy) -> Any:
        """The value with a reference: a pending sum is recorded now, a stack of any length gets a fixed length."""
        if value.kind.recorder is not self or not self.is_open:
            if not self.is_open or (tensor := tensor_of(value)) is value:
                raise leaked(value)
            return self.outside(tensor)  # of an earlier call
        if type(value) is PendingSum:
            return sums.record_sum(self, value)
        if type(value) is Ragged:
            return dense(self, value)
        return value

    def read(self, value: Lazy, how: str) -> torch.Tensor:
        """The numbers of a value that somebody wants to read; raises if they are not there yet."""
        if value.kind.recorder is not self or not self.is_open:
            raise leaked(value)
        with DisableTorchFunction():
            tensor: torch.Tensor | None = None if self.suspended else self.given.tensor(value)
        if tensor is None and self.assuming is not None and value.kind.spec == Spec((), torch.bool, value.device):
            self.assumed.append(Assumption(value, self.assuming, len(self.starts) - 1))
            return TRUE
        if tensor is None:
            raise reading(value, how)
        return tensor

    def note_read(self, refs: frozenset[int]) -> None:
        """Called when numbers are read that follow from these inputs from outside."""

    # ---- nodes

    def add(self, entry: Entry, flat: Sequence[int], length: int | None = None) -> Any:
        return entry.outputs(self.add_node(entry, flat), length)

    def add_node(self, entry: Entry, flat: Sequence[int]) -> int:
        if not entry.type.is_marked:
            self.known_calls.enter()
        self._num_in_python += 1
        node = len(self.types)
        try:
            self.add_args(flat)  # all or none
        except OverflowError:
            raise RecordingError(
                f"a number that was given to {entry.type.name} does not fit into 64 bits; give it as a tensor"
            ) from None
        self.add_type(entry.id)
        return node

    def drops_grad(self, value: Lazy) -> bool:
        """Whether 0 + value is not the value itself, because here the result has no gradient."""
        if not self.grad_in_training:
            return True
        if self.context.grad:
            return False
        is_known = len(self._contexts) == 1 and not (type(value) is Lazy and value.ref < 0)
        return not is_known and bool(value.requires_grad)  # type: ignore[attr-defined]

    def write(self, value: Lazy, result: Any) -> Lazy:
        return writes.write(self, value, result)

    def note_part(self, whole: Lazy, index: Sequence[Any], part: Any) -> Any:
        """Remember parts that were taken of values: `x[i] += y` takes one, writes it, and puts it back."""
        self.parts.append((part, whole, whole.ref, index))
        return part

    def entry(self, key: tuple[Hashable, ...], make: Callable[[], NodeType], context: Context | None = None) -> Entry:
        """The entry of a signature in a context (grad mode, autocast); if it is new, `make` gives its type."""
        entries = self.entries if context is None else self._entries_of[context]
        found = entries.get(key)
        if found is None:
            node_type = make()
            context = context or self.context
            self.signatures.append(Signature(key, context, node_type.name))
            name = self.names.give(node_type.name, context, self.outer)
            node_type = node_type if name == node_type.name else replace(node_type, name=name)
            found = Entry(len(self.node_types), node_type, tuple(self.kind(spec) for spec in node_type.kernel.outputs))
            self.node_types.append(node_type)
            self._all_entries.append(found)
            entries[key] = found
        return found

    # ---- cells

    def has_called(self, module: nn.Module) -> bool:
        """Whether a module was called before."""
        return (id(module),) in self._called

    def is_cell(self, module: nn.Module) -> bool:
        """Whether a module was called before and is a cell."""
        called = self._called.get((id(module),))
        return called is not None and called.cell is not None

    def key_of(self, target: Any) -> Hashable:
        """What stands for a target in keys of signatures."""
        called = self._called.get((id(target),))
        return target if called is None else called.key

    def called_modules(self) -> list[nn.Module]:
        """The modules that were called, as cells or not, and those a marked method or function was called on."""
        targets = [target for called in self._called.values() for target in called.targets]
        return [target for target in targets if isinstance(target, nn.Module)]

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a module or a marked function."""
        owners = tuple([a for a in args if isinstance(a, nn.Module)]) if isinstance(target, CellFunction) else ()
        identities = tuple(map(id, (target, *owners)))
        called = self._called.get(identities)
        if called is None:
            key = Same(target) if isinstance(target, nn.Module) else target
            with DisableTorchFunction():
                called = Called((target, *owners), self.kernels.cell(target, owners), key)
            self._called[identities] = called
        cell = called.cell
        if cell is None:
            if any(backward_hooks_in(target)):
                raise RecordingError(
                    f"module {self.kernels.paths.name_of(target)} has backward hooks, which torch calls in a backward "
                    "of its own; put them on a cell, or use register_hook on parameters and results"
                )
            if compiled_call_of(target) is None:
                self.plain.add(id(target))  # from now on called without this detour
            return module_call(target, *args, **kwargs)
        if len(args) == 1 and not kwargs and type(args[0]) is Ragged and is_row_wise(target, args[0].ndim - 1):
            return self.row_wise(target, args, kwargs, cell)
        return self._record(target, args, kwargs, Parts(self, is_cell=True, device=cell.device), cell)

    def row_wise(self, target: Any, args: Any, kwargs: Any, cell: Cell | None = None) -> Any:
        """A call that treats the rows of its `Ragged` arguments alike: recorded as one node, whatever their number."""
        found = None if kwargs else known_rows(self, self.key_of(target), args)
        if found is not None:
            return found
        return self.of_one_row(target, args, kwargs, cell)

    def of_one_row(self, target: Any, args: Any, kwargs: Any, cell: Cell | None = None) -> Any:
        """Like `row_wise`, for a call whose other arguments, such as dimensions, are already those for one row."""
        length = next(a.length for a in args if type(a) is Ragged)
        return self._record(target, args, kwargs, Parts(self, is_row_wise=True), cell, length)

    def _record(
        self, target: Any, args: Any, kwargs: Any, parts: Parts, cell: Cell | None = None, length: int | None = None
    ) -> Any:
        static = cell.static if cell is not None else ()
        args_template, kwargs_template = parts.take_call(self.key_of(target), args, kwargs, static)
        if parts.generators:
            self.changing = DRAWS
        key = tuple(parts.key)
        found = self.entries.get(key)
        if found is None:
            found = self.entry(key, lambda: define(self, target, args_template, kwargs_template, parts, cell))
        if found.is_ordered:
            return self._in_turn(found, parts.flat)
        if not found.is_plain:
            return writes.record(self, found, parts, length)
        return self.add(found, parts.flat, length)

    def _in_turn(self, entry: Entry, flat: Sequence[int]) -> Any:
        """Record a call with side effects. It reads an output of the last such call, so that it runs after that."""
        self.changing = CHANGES
        if self._turn is None:
            self._turn = self.outside(TURN.empty()).ref
        outputs = entry.values(self.add_node(entry, [*flat, self._turn]))
        self._turn = outputs[-1].ref
        return entry.type.kernel.unflatten(outputs)

    # ---- torch functions

    def plus(self, left: Any, right: Any) -> Any:
        """`left + right` of lazy values: a sum that grows as long as it is only added to."""
        total = sums.add(self, left, right) if self.sums_grow_in is not None else None
        return self.torch_function(operator.add, (left, right), {}) if total is None else total

    def getitem(self, value: Lazy, key: Any) -> Any:
        return getitem(self, value, key)

    def record_op(self, func: Callable[..., Any], args: tuple[Any, ...], parts: Parts | None = None) -> Any:
        """Record a call; `parts` says how its arguments are taken apart, if not like those of torch functions."""
        return self._record(func, args, {}, parts or Parts(self))

    def record_cell(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], cell: Cell) -> Any:
        """Record a call of something that is known to be a cell."""
        return self._record(target, args, kwargs, Parts(self, is_cell=True, device=cell.device), cell)

    def torch_function(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a torch function, operator or method while recording."""
        if self.suspended:
            raise RecordingError(
                "a lazy value was used inside a cell without being one of its arguments; pass it as an argument "
                "(inside tuples, lists, dicts or registered pytrees), not by a closure, an attribute or an object of "
                "your own"
            )
        if self.overwritten.values:
            args, kwargs = self.overwritten.swapped((args, kwargs))
            if func is torch.Tensor.__getitem__ and isinstance(args[0], Lazy):
                return self.getitem(*args)
        if kwargs == {"dim": 0} and len(args) == 1 and type(args[0]) is Ragged:
            found = known_rows(self, func, (args[0], 0))
        else:
            found = known(self, func, args, kwargs)
        if found is not None:
            return found
        if func is STACK and self.is_open:
            found = ragged_functions.torch_function(self, func, args, kwargs)
            if found is not NotImplemented:
                return found
        leaves = flatten(args, kwargs)
        if not self.is_open:
            raise leaked(next(v for v in leaves if isinstance(v, Lazy)))
        if not any(isinstance(v, Lazy) for v in leaves):
            return self._without_lazy(func, args, kwargs, leaves)
        if func in ADD and len(args) == 2 and not kwargs and (total := sums.add(self, *args)) is not None:
            return total
        answer = ask(self, func, args, kwargs)
        if answer is not NotImplemented:
            return answer
        result = in_place(self, func, args, kwargs)
        if result is not NotImplemented:
            return result
        refuse(func, args, kwargs)
        if any(type(v) is Ragged for v in leaves):
            result = ragged_functions.torch_function(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        if (result := as_index(func, args, kwargs)) is not NotImplemented:
            return result
        if func is torch.Tensor.__getitem__:
            args = args[0], with_known_masks(self, args[0].shape, args[1])
        like = next(v for v in leaves if isinstance(v, Lazy)).kind.spec if func in ARITHMETIC else None
        if like is not None and like.is_float and like.dtype.itemsize == 2:
            like = None  # torch computes x * 0.1 in float32 here; as data of 16 bits the number would be rounded first
        return self._record(func, args, kwargs, Parts(self, number_like=like))

    def _without_lazy(self, func: Callable[..., Any], args: Any, kwargs: Any, leaves: list[Any]) -> Any:
        tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
        if func is set_grad_enabled:
            result = func(*args, **kwargs)
            self.refresh_context()
            return result
        if any(isinstance(v, torch.Generator) for v in leaves):
            self.changing = DRAWS
        if func is torch.Tensor.register_hook and self.shared.is_derived(args[0]):
            raise RecordingError(
                "a hook was put on something computed of parameters alone, which is computed once for all examples and "
                "has one gradient for all of them; put the hook on the parameter"
            )
        if is_in_place(func) or kwargs.get("out") is not None:
            written = flatten(args[:1], {}) if is_in_place(func) else flatten((kwargs["out"],), {})
            written = [v for v in written if is_tensor(v)]
            if not self.made.are_alone_in(func, written) or any(t in self.shared for t in tensors):
                self.changing = "it writes a tensor in place"
                self.made.clear()  # they may have become the memory of others
            self._protect(written)
            return func(*args, **kwargs)
        if not any(isinstance(t, nn.Parameter) or self.shared.is_differentiable(t) for t in tensors):
            if any(t in self.shared for t in tensors):
                self.reads_shared(tensors, func)
            result = func(*args, **kwargs)
            self.made.note(func, result)
            if func is not STACK and self.is_open:
                self.known_calls.at_once[func] = self.made.table if func in MAKING else None
            return result
        if (result := as_index(func, args, kwargs)) is not NotImplemented:
            return result
        if func is torch.Tensor.__getitem__:
            if is_row_number(args[1]):
                return row_of(self, *args)
            args = args[0], with_known_masks(self, args[0].shape, args[1])
            tensors = [v for v in flatten(args, {}) if isinstance(v, torch.Tensor)]
        if all(t in self.shared for t in tensors):
            self.reads_shared(tensors, func)
            return self.shared.compute(func, args, kwargs)
        return self._record(func, args, kwargs, Parts(self))

    def reads_shared(self, tensors: Sequence[torch.Tensor], func: Callable[..., Any] | None = None) -> None:
        if func not in METADATA:
            self._read += tensors
            self.changing = "it computes with parameters, buffers or keywords alone, outside of a cell"
