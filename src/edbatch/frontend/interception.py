"""While a thread records, calls of modules and torch functions reach its recorder.

All hooks are taken away when the last recording ends: `nn.Module.__call__` (module calls), `autograd.Function.apply`, a
TorchFunctionMode (torch functions), and the entry and exit of autocast and of grad modes, which change what calls
compute. Child modules also stand in their parent's `__dict__` meanwhile: `self.child` then costs 0.03 µs, not 1 µs.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from edbatch.frontend.lazy import Lazy, PendingSum
from edbatch.frontend.marking import active, is_leaf, numbers_to_tensors, plain_loop
from edbatch.frontend.recorder import Recorder, module_call
from edbatch.planning.layout import REF

_active = active.get


class RecordingMode(TorchFunctionMode):
    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.recorder.suspended:
            return func(*args, **(kwargs or {}))
        return self.recorder.torch_function(func, args, kwargs or {})


def call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`nn.Module.__call__` while somebody records: the hot path of recording, so written for speed.

    The key must be the one that `signature.Parts` builds; a call without a known key goes to `Recorder.call`.
    """
    recorder = _active()
    if recorder is None:
        return _call_plain(module, args, kwargs)
    if kwargs:
        if module in recorder.plain:  # no cell: torch's own call, with no more frames of recursion than it takes alone
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        return recorder.call(module, args, kwargs)
    key: Any = None
    flat: Any = None
    count = len(args)
    if count == 1:  # the commonest signatures, written out
        (a,) = args
        if type(a) is Lazy:
            key, flat = (module, a.kind), (a.ref,)
        elif type(a) is int:
            key, flat = (module, int), args
    elif count == 2:
        a, b = args
        if type(a) is Lazy and type(b) is Lazy:
            key, flat = (module, a.kind, b.kind), (a.ref, b.ref)
        elif type(a) is Lazy and type(b) is int:
            key, flat = (module, a.kind, int), (a.ref, b)
    elif count == 4:
        a, b, c, d = args
        if type(a) is Lazy and type(b) is Lazy and type(c) is Lazy and type(d) is Lazy:
            key, flat = (module, a.kind, b.kind, c.kind, d.kind), (a.ref, b.ref, c.ref, d.ref)
    if key is None:
        key, flat = _signature(recorder, module, args)
    entry = recorder.entries.get(key)
    if entry is None:
        if module in recorder.plain:
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        return recorder.call(module, args, kwargs)
    node = len(recorder.types)
    recorder.add_type(entry.id)
    recorder.add_args(flat)
    if entry.simple == 2:
        first, second = Lazy(), Lazy()
        first.ref, second.ref = node, node + REF
        first.kind, second.kind = entry.kinds
        return first, second
    if entry.simple == 1:
        first = Lazy()
        first.ref = node
        first.kind = entry.kinds[0]
        return first
    return entry.outputs(node)


def _signature(
    recorder: Recorder, module: nn.Module, args: tuple[Any, ...]
) -> tuple[tuple[Any, ...] | None, list[int]]:
    """Key and data of a call whose arguments are values, tensors, ints and tuples of values; else no key."""
    key: list[Any] = [module]
    flat: list[int] = []
    is_cell = recorder.is_cell(module)  # else a tensor is no operand yet, and a sum may grow on
    for a in args:
        kind = type(a)
        if kind is int:
            key.append(int)
            flat.append(a)
            continue
        if kind is tuple:
            key += (tuple, len(a))
        for b in a if kind is tuple else (a,):
            if type(b) is not Lazy:
                b = _value(recorder, b) if is_cell else None
                if b is None:
                    return None, flat
            key.append(b.kind)
            flat.append(b.ref)
    return tuple(key), flat


def _value(recorder: Recorder, value: Any) -> Lazy | None:
    """A sum that is pending, or a plain tensor such as a learned initial state, as a lazy value; None for all else."""
    if type(value) is PendingSum:
        return recorder.resolve(value)  # type: ignore[no-any-return]
    return recorder.outside(value) if isinstance(value, torch.Tensor) else None


def _call_plain(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A module call of a thread that does not record.

    In a plain loop torch's leaf modules take numbers as when batched.
    """
    if plain_loop.get() and is_leaf(module):
        args, kwargs = numbers_to_tensors(module, args, kwargs)
    return module_call(module, *args, **kwargs)


def _refreshing(original: Any) -> Any:
    def method(self: Any, *args: Any) -> Any:
        result = original(self, *args)
        recorder = active.get()
        if recorder is not None:
            recorder.refresh_context()
        return result

    return method


def _entering(original: Any) -> Any:
    """The entry of a grad mode: under a `no_grad` around the whole call torch's own state does not tell of it."""

    def method(self: Any, *args: Any) -> Any:
        recorder = active.get()
        if recorder is None:
            return original(self, *args)
        before = recorder.grad_in_training
        result = original(self, *args)  # of no_grad: makes a set_grad_enabled, which comes here too
        vars(self).setdefault("_edbatch_before", before)  # a set_grad_enabled is entered twice: made, and entered
        recorder.grad_in_training = _GRAD_MODES[type(self)](self)
        recorder.refresh_context()
        return result

    return method


def _leaving(original: Any) -> Any:
    def method(self: Any, *args: Any) -> Any:
        result = original(self, *args)
        recorder = active.get()
        before = vars(self).pop("_edbatch_before", None)
        if recorder is not None:
            recorder.grad_in_training = recorder.grad_in_training if before is None else before
            recorder.refresh_context()
        return result

    return method


def _recording_apply(original: Any) -> Any:
    """`autograd.Function.apply` does not ask for torch functions: on lazy values the call is recorded here."""

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = active.get()
        function = original.__get__(None, cls)
        if recorder is not None and any(isinstance(a, Lazy) for a in args):
            return recorder.record_op(function, args)
        return function(*args, **kwargs)

    return classmethod(apply)


class _Patches:
    """Replaces methods of torch classes while at least one recording is under way.

    Each is made from the one it replaces.
    """

    def __init__(self, makers: list[tuple[type, str, Callable[[Any], Any]]]):
        self._makers = makers
        self._originals: list[Any] = []
        self._lock = threading.Lock()
        self._users = 0

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._originals = [cls.__dict__[name] for cls, name, _ in self._makers]
                for (cls, name, make), original in zip(self._makers, self._originals, strict=True):
                    setattr(cls, name, make(original))

    def __exit__(self, *exception: Any) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for (cls, name, _), original in zip(self._makers, self._originals, strict=True):
                    setattr(cls, name, original)


_GRAD_MODES: dict[type, Callable[[Any], bool]] = {
    torch.no_grad: lambda mode: False,
    torch.enable_grad: lambda mode: True,
    torch.set_grad_enabled: lambda mode: mode.mode,
    torch.inference_mode: lambda mode: not mode.mode,
}
_RECORDING = _Patches(
    [
        (nn.Module, "__call__", lambda original: call_module),
        (torch.autograd.Function, "apply", _recording_apply),
        *[(torch.autocast, name, _refreshing) for name in ("__enter__", "__exit__")],
        *[(cls, "__enter__", _entering) for cls in _GRAD_MODES],
        *[(cls, "__exit__", _leaving) for cls in _GRAD_MODES],
        (torch.set_grad_enabled, "__init__", _entering),
    ]
)


class Shortcuts:
    """Child modules placed in their parents' `__dict__`, where Python finds them first. Purely a matter of speed."""

    def __init__(self, root: nn.Module | None):
        self._root = root
        self._children: list[tuple[nn.Module, str, nn.Module]] = []

    def place(self) -> None:
        if self._root is None:
            return
        if not self._children or any(parent._modules.get(name) is not child for parent, name, child in self._children):
            self._children = [
                (parent, name, child) for parent in self._root.modules() for name, child in parent.named_children()
            ]
        for parent, name, child in self._children:
            parent.__dict__[name] = child

    def remove(self) -> None:
        for parent, name, _ in self._children:
            parent.__dict__.pop(name, None)


@contextmanager
def recording(recorder: Recorder, shortcuts: Shortcuts) -> Iterator[None]:
    """Everything this thread calls inside is recorded."""
    token = active.set(recorder)
    collecting = gc.isenabled()
    gc.disable()  # thousands of live lazy values make Python's collector run often, and in vain: a tenth of the time
    with _RECORDING, RecordingMode(recorder):
        shortcuts.place()
        try:
            yield
        finally:
            shortcuts.remove()
            active.reset(token)
            if collecting:
                gc.enable()


@contextmanager
def one_by_one() -> Iterator[None]:
    """A plain loop over examples: nothing is recorded."""
    tokens = active.set(None), plain_loop.set(True)
    try:
        with _RECORDING:
            yield
    finally:
        active.reset(tokens[0])
        plain_loop.reset(tokens[1])
