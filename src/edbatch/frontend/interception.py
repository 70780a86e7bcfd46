"""While a thread records, calls of modules and torch functions reach its recorder.

All hooks are taken away when the last recording ends: `nn.Module.__call__` (module calls), `autograd.Function.apply`, a
TorchFunctionMode (torch functions), `torch.stack` and `torch.cat`, and the entry and exit of autocast and of grad
modes, which change what calls compute. Child modules also stand in their parent's `__dict__` meanwhile: `self.child`
then costs 0.03 µs, not 1 µs.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from edbatch.frontend.entries import module_call
from edbatch.frontend.known_calls import ModuleCall, replace_method, signature_of
from edbatch.frontend.known_functions import known
from edbatch.frontend.lazy import Lazy
from edbatch.frontend.marking import active, is_leaf, numbers_to_tensors, plain_loop
from edbatch.frontend.recorder import Recorder
from edbatch.frontend.rows import stack_alike

_active = active.get
FIRST_DIM: tuple[dict[str, int], ...] = ({}, {"dim": 0})


class RecordingMode(TorchFunctionMode):
    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.recorder.suspended:
            return func(*args, **(kwargs or {}))
        return self.recorder.torch_function(func, args, kwargs or {})


def call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`nn.Module.__call__` while somebody records, but for calls that the recording knows (`known_calls.py`)."""
    recorder = _active()
    if recorder is None:
        return _call_plain(module, args, kwargs)
    if module in recorder.plain:  # no cell: torch's own call, with no more frames of recursion than it takes alone
        recorder.known_calls.pass_by(module)
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
    if not kwargs and recorder.is_cell(module):
        key, flat = signature_of(recorder, module, args)
        entry = recorder.entries.get(key)
        if entry is not None:
            recorder.known_calls.learn(key, entry, entry.id, entry.kinds if entry.simple else None)
            return recorder.add(entry, flat)
    return recorder.call(module, args, kwargs)


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


def _recording_stack(original: Any) -> Any:
    """`torch.stack` looks at every element for its torch function, 0.3 µs each: lists of lazy values go another way."""

    @functools.wraps(original)
    def stack(*args: Any, **kwargs: Any) -> Any:
        recorder = _active()
        if recorder is not None and len(args) == 1 and kwargs in FIRST_DIM and type(args[0]) in (list, tuple):
            rows = stack_alike(recorder, args[0])
            if rows is not None:
                return rows
        return original(*args, **kwargs)

    return stack


def _recording_cat(original: Any) -> Any:
    """`torch.cat` of kinds that were seen before takes a short way, too. Modes of the user's own do not see it."""

    @functools.wraps(original)
    def cat(*args: Any, **kwargs: Any) -> Any:
        recorder = _active()
        found = None if recorder is None else known(recorder, original, args, kwargs)
        return original(*args, **kwargs) if found is None else found

    return cat


class _Patches:
    """Replaces methods and functions of torch while at least one recording is under way.

    Each is made from the one it replaces, and kept for the next time.
    """

    def __init__(self, makers: list[tuple[Any, str, Callable[[Any], Any]]]):
        self._makers = makers
        self._originals: list[Any] = []
        self._made: list[Any] = []
        self._lock = threading.Lock()
        self._users = 0

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                originals = [cls.__dict__[name] for cls, name, _ in self._makers]
                if originals != self._originals:
                    self._made = [make(o) for (_, _, make), o in zip(self._makers, originals, strict=True)]
                    self._originals = originals
                try:
                    self._put(self._made)
                except BaseException:  # Ctrl-C
                    self._put(self._originals)
                    self._users -= 1
                    raise

    def __exit__(self, *exception: Any) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._put(self._originals)

    def _put(self, methods: list[Any]) -> None:
        for (cls, name, _), method in zip(self._makers, methods, strict=True):
            (replace_method if cls is nn.Module else setattr)(cls, name, method)


_GRAD_MODES: dict[type, Callable[[Any], bool]] = {
    torch.no_grad: lambda mode: False,
    torch.enable_grad: lambda mode: True,
    torch.set_grad_enabled: lambda mode: mode.mode,
    torch.inference_mode: lambda mode: not mode.mode,
}
_RECORDING = _Patches(
    [
        (nn.Module, "__call__", lambda original: ModuleCall(active, call_module)),
        (torch.autograd.Function, "apply", _recording_apply),
        (torch, "stack", _recording_stack),
        (torch, "cat", _recording_cat),
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
    token, collecting = active.set(recorder), gc.isenabled()
    try:
        gc.disable()  # thousands of live lazy values make the collector run often, and in vain: a tenth of the time
        with _RECORDING, RecordingMode(recorder):
            shortcuts.place()
            yield
    finally:
        recorder.known_calls.forget()  # it holds the recorder
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
