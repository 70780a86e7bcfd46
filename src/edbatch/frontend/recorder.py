"""The recorder: every call of a cell or torch function on lazy values becomes one node. The only code that runs per
node.

A call's type is found by one dictionary look-up of its signature (`entries`); a signature that is new to the
recording is *defined*: its kernel comes from the cache of earlier calls, or is captured now, so that shape errors
appear at the user's line.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edbatch.cells.in_place import is_in_place
from edbatch.cells.kernel import Kernel
from edbatch.errors import InPlaceError, LeakedValueError, RecordingError
from edbatch.frontend import rows as rows_of_values
from edbatch.frontend.in_place import refuse_in_place
from edbatch.frontend.indexing import getitem, is_row_number, row_of
from edbatch.frontend.kernels import Cell, Context, KernelCache
from edbatch.frontend.known_calls import KnownCalls, Numbers, as_value
from edbatch.frontend.lazy import Kind, Lazy, PendingSum, Rows, lazy, rows_of
from edbatch.frontend.marking import CellFunction, active, is_row_wise, plain_loop
from edbatch.frontend.names import Names
from edbatch.frontend.recording import Recording
from edbatch.frontend.results import settle
from edbatch.frontend.shared import SharedTensors, flatten
from edbatch.frontend.signature import Parts, calling
from edbatch.frontend.type_set import NodeType
from edbatch.planning.layout import REF, Slot
from edbatch.spec import Spec, float_bits

ADD = {operator.add, torch.add, torch.Tensor.add, torch.Tensor.__add__}
ARITHMETIC = ADD | {
    operator.sub, operator.mul, operator.truediv, torch.sub, torch.mul, torch.div, torch.Tensor.sub, torch.Tensor.mul,
    torch.Tensor.div, torch.Tensor.__sub__, torch.Tensor.__mul__, torch.Tensor.__truediv__, torch.Tensor.__radd__,
    torch.Tensor.__rmul__, torch.Tensor.__rsub__,
}  # fmt: skip
# What these give of a parameter does not change as long as its module is the same.
METADATA = {
    *[getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "is_floating_point", "is_complex", "__len__")],
    *[getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda")],
}
DRAWS = "it draws random numbers"
STACK = torch.stack
module_call = nn.Module.__call__


class Entry:
    """A node type inside a recording, as the hot path needs it."""

    __slots__ = ("id", "kinds", "simple", "type")

    def __init__(self, identity: int, node_type: NodeType, kinds: tuple[Kind, ...]):
        self.id = identity
        self.type = node_type
        self.kinds = kinds
        marks = tuple([object() for _ in kinds])
        shape = node_type.kernel.unflatten(list(marks))
        is_tuple = type(shape) is tuple and shape == marks and len(marks) > 1
        # how many outputs, if they are one value or a plain tuple of values, and none of them is rows
        self.simple = 0 if any(node_type.per_row) else 1 if (shape,) == marks else len(marks) if is_tuple else 0

    def outputs(self, node: int, length: int | None = None) -> Any:
        """What the call of a node returns; `length` is the number of its rows, if it has any."""
        if self.simple == 1:
            return lazy(node, self.kinds[0])
        if self.simple:
            return tuple([lazy(node + i * REF, kind) for i, kind in enumerate(self.kinds)])
        values = [
            lazy(node + i * REF, kind) if not per_row else rows_of(node + i * REF, kind, length or 0)
            for i, (kind, per_row) in enumerate(zip(self.kinds, self.type.per_row, strict=True))
        ]
        return self.type.kernel.unflatten(values)


class Signature(NamedTuple):
    """What tells a type from the others of its recording, and its name before it was made unique."""

    key: tuple[Hashable, ...]
    context: Context
    name: str


class Recorder:
    """Records one call of a batched function: all its examples into one graph."""

    def __init__(self, kernels: KernelCache, names: Names, device: torch.device, shared: Sequence[torch.Tensor] = ()):
        self.kernels = kernels
        self.names = names
        self.device = device
        self.types, self.args = Numbers(), Numbers()
        self.add_type, self.add_args = self.types.append, self.args.extend
        self.node_types: list[NodeType] = []
        self.plain: set[nn.Module] = set()  # modules that are no cells
        self.signatures: list[Signature] = []  # of each type
        self.starts: list[int] = []  # the first node of every example
        self.changing: str | None = None  # why the present example cannot be known by its key
        self.is_open = True
        self.suspended = False
        self._kinds: dict[Spec, Kind] = {}
        self._outside: list[torch.Tensor] = []
        self._outside_specs: list[Spec] = []
        self._outside_of: dict[int, Lazy] = {}
        self._by_memory: dict[int, list[int]] = {}  # the numbers of the inputs from outside that lie in a storage
        self.known_calls = KnownCalls(Lazy, as_value, self._outside_of, self.types, self.args)
        self.shared = SharedTensors(self, shared)
        self._cells: dict[tuple[Any, tuple[nn.Module, ...]], Cell | None] = {}
        self._entries_of: dict[Context, dict[Hashable, Entry]] = {}
        self.sums_grow_in: Context | None  # the context; None while nothing can be recorded
        self.grad_in_training = True  # whether grad mode would be on here if it were on around the whole call
        self.refresh_context()
        self.outer = self.context

    def begin(self, example: Sequence[Any]) -> list[Any]:
        """The next example begins: its arguments, tensors among them as lazy values."""
        self.starts.append(len(self.types))
        return [self.outside(x) if isinstance(x, torch.Tensor) else x for x in example]

    def end(self, output: Any) -> None:
        """The example ends: sums that are pending among its results are recorded."""
        settle(output, self)

    # ---- the state around the recording

    def refresh_context(self) -> None:
        """Called whenever the user's code may have changed grad mode or autocast."""
        self.known_calls.forget()
        self.context = self.sums_grow_in = Context.current()
        self.entries = self._entries_of.setdefault(self.context, {})

    def kind(self, spec: Spec) -> Kind:
        found = self._kinds.get(spec)
        if found is None:
            found = self._kinds[spec] = Kind(spec, self)
        return found

    def outside(self, tensor: torch.Tensor) -> Lazy:
        """A plain tensor as an operand; the same tensor is one value however often it is used."""
        known = self._outside_of.get(id(tensor))
        if known is None:
            with torch._C.DisableTorchFunction():  # else every attribute of a tensor would pass through the mode
                spec, memory = Spec.of(tensor), tensor.untyped_storage()._cdata
            known = self._outside_of[id(tensor)] = lazy(-1 - len(self._outside), self.kind(spec))
            self._by_memory.setdefault(memory, []).append(len(self._outside))
            self._outside.append(tensor)
            self._outside_specs.append(spec)
        return known

    def _protect(self, tensors: list[torch.Tensor]) -> None:
        """Before one of these is written in place: operands that lie in their memory are copied as they are now."""
        self.changing = "it writes a tensor in place"
        if any(tensor in self.shared for tensor in tensors):
            self.shared.forget_results()
        for tensor in tensors:
            if tensor in self.shared and any(tensor is used for t in self.node_types for used in t.shared):
                raise InPlaceError(
                    "a parameter or buffer was written in place after it was used in the same mini-batch, but all "
                    "examples share one value of it; write it before or after the batched call"
                )
            for i in self._by_memory.pop(tensor.untyped_storage()._cdata, ()):
                self._outside_of.pop(id(self._outside[i]), None)
                self._outside[i] = self._outside[i].clone()

    def finish(self) -> Recording:
        """Close the recording: its lazy values can be used no more."""
        self.is_open, self.sums_grow_in = False, None
        return Recording(
            np.frombuffer(memoryview(self.types), np.int64),
            np.frombuffer(memoryview(self.args), np.int64),
            tuple(self.node_types),
            tuple(self._outside),
            tuple(self._outside_specs),
            np.array(self.starts, dtype=np.int64),
        )

    # ---- values

    def resolve(self, value: Lazy) -> Any:
        """A value with a reference: pending sums are recorded now, rows become a value of fixed length."""
        if value.kind.recorder is not self or not self.is_open:
            raise leaked(value)
        if type(value) is PendingSum:
            return rows_of_values.record_sum(self, value)
        if type(value) is Rows:
            return rows_of_values.dense(self, value)
        return value

    # ---- nodes

    def add(self, entry: Entry, flat: Sequence[int], length: int | None = None) -> Any:
        node = len(self.types)
        try:
            self.add_args(flat)  # all or none
        except OverflowError:
            raise RecordingError(
                f"a number that was given to {entry.type.name} does not fit into 64 bits; give it as a tensor"
            ) from None
        self.add_type(entry.id)
        return entry.outputs(node, length)

    def entry(self, key: tuple[Hashable, ...], make: Callable[[], NodeType], context: Context | None = None) -> Entry:
        """The entry of a signature in a context; `make` gives its type when it is new to this recording."""
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
            entries[key] = found
        return found

    # ---- cells

    def is_cell(self, module: nn.Module) -> bool:
        """Whether a module was called before and is a cell."""
        return self._cells.get((module, ())) is not None

    def called_modules(self) -> list[nn.Module]:
        """The modules that were called, as cells or not, and those a marked method or function was called on."""
        called = [module for target, owners in self._cells for module in (target, *owners)]
        return [module for module in called if isinstance(module, nn.Module)]

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a module or a marked function."""
        owners = tuple([a for a in args if isinstance(a, nn.Module)]) if isinstance(target, CellFunction) else ()
        try:
            cell = self._cells[target, owners]
        except KeyError:
            with torch._C.DisableTorchFunction():
                cell = self._cells[target, owners] = self.kernels.cell(target, owners)
        if cell is None:
            if target._backward_hooks or target._backward_pre_hooks:
                raise RecordingError(
                    f"module {self.kernels.paths.name_of(target)} has backward hooks, which torch calls in a backward "
                    f"of its own; put "
                    "them on a cell, or use register_hook on parameters and results"
                )
            if target._compiled_call_impl is None:
                self.plain.add(target)  # from now on called without this detour
            return module_call(target, *args, **kwargs)
        if len(args) == 1 and not kwargs and type(args[0]) is Rows and is_row_wise(target, args[0].ndim - 1):
            return self.row_wise(target, args, kwargs, cell)
        return self._record(target, args, kwargs, Parts(self, is_cell=True, device=cell.device), cell)

    def row_wise(self, target: Any, args: Any, kwargs: Any, cell: Cell | None = None) -> Any:
        """A call that treats the rows of its `Rows` arguments alike: recorded as one node, whatever their number."""
        found = None if kwargs else self._known_rows(target, args)
        if found is not None:
            return found
        length = next(a.length for a in args if type(a) is Rows)
        return self._record(target, args, kwargs, Parts(self, is_row_wise=True), cell, length)

    def _record(
        self, target: Any, args: Any, kwargs: Any, parts: Parts, cell: Cell | None = None, length: int | None = None
    ) -> Any:
        parts.key.append(target)
        static = cell.static if cell is not None else frozenset()
        args_template = tuple([parts.take(a, static=i in static) for i, a in enumerate(args)])
        if kwargs:
            parts.key.append(("keywords", *kwargs))
        kwargs_template = {k: parts.take(a, static=k in static) for k, a in kwargs.items()}
        if parts.generators:
            self.changing = DRAWS
        key = tuple(parts.key)
        found = self.entries.get(key)
        if found is None:
            found = self.entry(key, lambda: self._define(target, args_template, kwargs_template, parts, cell))
        return self.add(found, parts.flat, length)

    def _define(self, target: Any, args: Any, kwargs: Any, parts: Parts, cell: Cell | None) -> NodeType:
        """The type of a new signature: a cell's own has been found in earlier calls, while its modules are the same."""
        lasts = cell is not None and not parts.shared and not parts.generators and not self.names.has_keywords
        if cell is None or not lasts:
            return self._new_type(target, args, kwargs, parts, cell)
        key = (self.context, *[k.spec if isinstance(k, Kind) else k for k in parts.key])
        if key not in cell.node_types:
            cell.node_types[key] = self._new_type(target, args, kwargs, parts, cell)
        return cell.node_types[key]

    def _new_type(self, target: Any, args: Any, kwargs: Any, parts: Parts, cell: Cell | None) -> NodeType:
        rows = tuple(o.spec if isinstance(o, Kind) else o for o in parts.operands)
        run = module_call.__get__(target) if isinstance(target, nn.Module) else getattr(target, "function", target)
        kernel = self.compile(calling(run, args, kwargs, len(rows)), parts, rows, target, cell)
        name = self.names.call(target, args, kwargs, parts)
        per_row = (parts.is_row_wise,) * len(kernel.outputs)
        return NodeType(name, kernel, tuple(parts.slots), rows, (*parts.shared, *kernel.bound), per_row)

    def compile(
        self, function: Callable[..., Any], parts: Parts, rows: tuple[Spec, ...], target: Any, cell: Cell | None
    ) -> Kernel:
        """The kernel of a signature, from the cache of earlier calls or captured now."""
        places = {id(t): i for i, t in enumerate(parts.shared)}
        lasting = tuple(k.spec if isinstance(k, Kind) else places.get(k, k) if type(k) is int else k for k in parts.key)
        shared = tuple(Spec.of(t) for t in parts.shared)
        alone = "it draws from a generator of its own, row by row" if parts.generators else None
        tokens = active.set(None), plain_loop.set(True)  # a batched function in a cell is a plain loop
        self.suspended, self.sums_grow_in = True, None
        states = [generator.get_state() for generator in parts.generators]
        try:
            return self.kernels.kernel(
                function, rows, shared, (lasting, rows, shared, self.context), target, cell, alone
            )
        finally:
            active.reset(tokens[0])
            plain_loop.reset(tokens[1])
            self.suspended, self.sums_grow_in = False, self.context
            for generator, state in zip(parts.generators, states, strict=True):
                generator.set_state(state)

    # ---- torch functions

    def plus(self, left: Any, right: Any) -> Any:
        """`left + right` of lazy values: a sum that grows as long as it is only added to."""
        total = rows_of_values.add(self, left, right) if self.sums_grow_in is not None else None
        return self.torch_function(operator.add, (left, right), {}) if total is None else total

    def getitem(self, value: Lazy, key: Any) -> Any:
        return getitem(self, value, key)

    def record_op(self, func: Callable[..., Any], args: tuple[Any, ...], parts: Parts | None = None) -> Any:
        """A call of an op on these arguments; `parts` says how they are taken apart, if not as of torch's functions."""
        return self._record(func, args, {}, parts or Parts(self))

    def torch_function(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a torch function, operator or method while recording."""
        if self.suspended:
            raise RecordingError(
                "a lazy value was used inside a cell without being one of its arguments; pass it as an argument "
                "(inside "
                "tuples, lists, dicts or registered pytrees), not by a closure, an attribute or an object of your own"
            )
        if kwargs == {"dim": 0} and len(args) == 1 and type(args[0]) is Rows:
            found = self._known_rows(func, (args[0], 0))
        else:
            found = self.known(func, args, kwargs)
        if found is not None:
            return found
        if func is STACK and self.is_open:
            found = rows_of_values.torch_function(self, func, args, kwargs)
            if found is not NotImplemented:
                return found
        leaves = flatten(args, kwargs)
        if not self.is_open:
            raise leaked(next(v for v in leaves if isinstance(v, Lazy)))
        if not any(isinstance(v, Lazy) for v in leaves):
            return self._without_lazy(func, args, kwargs, leaves)
        if func in ADD and len(args) == 2 and not kwargs and (total := rows_of_values.add(self, *args)) is not None:
            return total
        refuse_in_place(func, kwargs)
        if kwargs.get("inplace"):  # the user's variable is rebound to the result, as with +=
            kwargs = {**kwargs, "inplace": False}
        if any(type(v) is Rows for v in leaves):
            result = rows_of_values.torch_function(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        like = next(v for v in leaves if isinstance(v, Lazy)).kind.spec if func in ARITHMETIC else None
        if like is not None and like.is_float and like.dtype.itemsize == 2:
            like = None  # torch computes x * 0.1 in float32 here; a column of 16 bits would round the number first
        return self._record(func, args, kwargs, Parts(self, number_like=like))

    def known(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a signature that this recording has seen, by a short cut.

        The key must be the one that `Parts` builds.
        """
        key: list[Any] = [func]
        flat: list[int] = []
        for a in args:
            if type(a) is Lazy:
                key.append(a.kind)
                flat.append(a.ref)
            elif type(a) is Rows:
                return None if kwargs else self._known_rows(func, args)
            elif not self._take_known(func, a, key, flat):
                return None
        if kwargs:
            key.append(("keywords", *kwargs))
            if not all(self._take_known(func, a, key, flat) for a in kwargs.values()):
                return None
        entry = self.entries.get(tuple(key))
        return None if entry is None or not self.is_open else self.add(entry, flat)

    def _take_known(self, func: Callable[..., Any], value: Any, key: list[Any], flat: list[int]) -> bool:
        """Take an argument as `Parts.take` would; False for one that needs a closer look."""
        kind = type(value)
        if kind is Lazy:
            key.append(value.kind)
            flat.append(value.ref)
        elif kind is nn.Parameter:
            key.append(id(value))
        elif kind is tuple or kind is list:
            key += (kind, len(value))
            return all(self._take_known(func, a, key, flat) for a in value)
        elif kind is bool or value is None:
            key.append(value)
        elif kind is not int and kind is not float:
            return False
        elif func in ARITHMETIC:
            key.append(kind)
            flat.append(value if kind is int else float_bits(value))
        else:
            key.append((kind, value if kind is int else float_bits(value)))
        return True

    def _known_rows(self, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """The same for a reduction over rows, and for a function that treats rows alike and was seen before."""
        if not self.is_open:
            return None
        reduction = rows_of_values.NAME_OF_REDUCTION.get(func)
        if reduction is not None:
            if type(args[0]) is not Rows or not rows_of_values.is_over_rows(reduction, *args):
                return None
            found = rows_of_values.reduce(self, reduction, args[0])
            return None if found is NotImplemented else found
        key: list[Any] = [torch.matmul if func is operator.matmul else func]
        flat = []
        length = None
        for a in args:
            if type(a) is Rows and a.ref is not None and length in (None, a.length):
                key += (a.kind, Slot.ROWS)
                length = a.length
            elif type(a) is Lazy:
                key += (a.kind, Slot.REPEAT)
            else:
                return None
            flat.append(a.ref)
        entry = self.entries.get(tuple(key))
        return None if entry is None else self.add(entry, flat, length)

    def _without_lazy(self, func: Callable[..., Any], args: Any, kwargs: Any, leaves: list[Any]) -> Any:
        tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
        if func is torch._C._set_grad_enabled:
            result = func(*args, **kwargs)
            self.refresh_context()
            return result
        if any(isinstance(v, torch.Generator) for v in leaves):
            self.changing = DRAWS
        if is_in_place(func) or kwargs.get("out") is not None:
            self._protect(tensors)
            return func(*args, **kwargs)
        if not any(isinstance(t, nn.Parameter) or self.shared.is_differentiable(t) for t in tensors):
            if any(t in self.shared for t in tensors):
                self._reads_shared(func)
            return func(*args, **kwargs)
        if func is torch.Tensor.__getitem__ and is_row_number(args[1]):
            return row_of(self, *args)
        if all(t in self.shared for t in tensors):
            self._reads_shared(func)
            return self.shared.compute(func, args, kwargs)
        return self._record(func, args, kwargs, Parts(self))

    def _reads_shared(self, func: Callable[..., Any]) -> None:
        if func not in METADATA:
            self.changing = "it computes with parameters, buffers or keywords alone, outside of a cell"


def leaked(value: Lazy) -> LeakedValueError:
    return LeakedValueError(
        f"a lazy value {value.kind.spec} was used outside the call of the batched function that made it. Lazy "
        f"values live only "
        "inside that call: return them from the function, and do not keep them on self, in globals or in the examples"
    )
