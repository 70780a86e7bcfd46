"""While a thread records, calls of modules and torch functions reach its recorder.

In: a `Recorder` and a function. Out: what the function returns (`recording`). A TorchFunctionMode sees its calls of
torch functions. To see the rest, methods of torch are replaced while anybody records (see `torch_state/hooks.py`):
calls of modules and of `autograd.Function.apply`, and the entry and exit of autocast and of grad modes, which change
what calls compute. For speed, torch functions that models call often are replaced, too (`named_functions.py`), and
child modules are put into their parent's `__dict__`: `self.child` then costs 0.03 µs, not 1 µs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from edbatch.errors import RecordingError
from edbatch.recording import foreign
from edbatch.recording.calls.fast_cells import OWN, ModuleCall, signature_of
from edbatch.recording.calls.named_functions import named_functions
from edbatch.recording.program.marking import active, is_leaf, numbers_to_tensors, plain_loop, unhooked
from edbatch.recording.program.module_watch import same_items
from edbatch.recording.recorder import Recorder
from edbatch.recording.values.lazy import Lazy, original
from edbatch.recording.values.refusals import TRANSFORMS
from edbatch.torch_insides.modes import num_function_modes
from edbatch.torch_insides.modules import CALL, buffers_in, children_in
from edbatch.torch_insides.transforms import UNCHECKED
from edbatch.torch_state.hooks import applying, hooked, replaces
from edbatch.torch_state.modules import modules_of
from edbatch.torch_state.surroundings import Surroundings, inside

T = TypeVar("T")
_active = active.get
assert foreign  # its import registers further replacements


class RecordingMode(TorchFunctionMode):
    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder
        self._record = recorder.known_calls.record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.recorder.suspended:
            return func(*args, **(kwargs or {}))
        return self._record(original(func), args, kwargs, self.recorder.torch_function)


def _recording_call(original: Callable[..., Any]) -> Any:
    """`nn.Module.__call__` while somebody records."""

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        recorder = _active()
        if recorder is not None:
            return call_module(recorder, module, args, kwargs)
        if plain_loop.get() and is_leaf(module):  # numbers become tensors, as in a batched call
            args, kwargs = numbers_to_tensors(module, args, kwargs)
        return module.forward(*args, **kwargs) if unhooked.get() else original(module, *args, **kwargs)

    return ModuleCall(active, call)


def call_module(recorder: Recorder, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a module while this thread records. Calls like earlier ones do not come here: see `fast_cells.py`."""
    if id(module) in recorder.plain:  # no cell: torch's own call, with no further frames on the stack
        recorder.known_calls.pass_by(module)
        return getattr(module, CALL)(*args, **kwargs)
    if not recorder.has_called(module):
        stand_in = recorder.kernels.made.stand_in(module)
        if stand_in is not module:
            return stand_in(*args, **kwargs)
    if not kwargs and recorder.is_cell(module):
        key, flat = signature_of(recorder, module, args)
        entry = recorder.entries.get(key)
        if entry is not None and entry.is_plain:
            kinds = entry.kinds if entry.simple else None
            recorder.known_calls.learn((module, *key[1:]), entry, entry.id, kinds, entry.type.is_marked)
            return recorder.add(entry, flat)
    return recorder.call(module, args, kwargs)


def _refreshing(original: Any) -> Any:
    def method(self: Any, *args: Any) -> Any:
        result = original(self, *args)
        recorder = active.get()
        if recorder is not None:
            recorder.refresh_context()
        return result

    return method


def _entering(original: Any) -> Any:
    """The entry of a grad mode. It is noted, because torch's state does not show it if `no_grad` is around the whole
    batched call."""

    def method(self: Any, *args: Any) -> Any:
        recorder = active.get()
        if recorder is None:
            return original(self, *args)
        before = recorder.grad_in_training
        result = original(self, *args)  # no_grad makes a set_grad_enabled, which comes here, too
        vars(self).setdefault("_edbatch_before", before)  # set_grad_enabled acts when made, and when entered
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


def _record_applied(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record `autograd.Function.apply` on lazy values: torch does not offer this call to modes."""
    recorder = active.get()
    if recorder is None:
        return function(*args, **kwargs)
    if any(isinstance(a, Lazy) for a in args):
        return recorder.record_op(function, args)
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    is_shared = tensors and all(t in recorder.shared for t in tensors)

    def call(*args: Any, **kwargs: Any) -> Any:  # torch functions that it calls inside are not recorded
        recorder.suspend(True)
        try:
            return function(*args, **kwargs)
        finally:
            recorder.suspend(False)

    return recorder.shared.compute(function, args, kwargs, call) if is_shared else call(*args, **kwargs)


_GRAD_MODES: dict[type, Callable[[Any], bool]] = {
    torch.no_grad: lambda mode: False,
    torch.enable_grad: lambda mode: True,
    torch.set_grad_enabled: lambda mode: mode.mode,
    torch.inference_mode: lambda mode: not mode.mode,
}


def _refusing(original: Any) -> Any:
    """Refuses lazy values for a C function of torch.func that only asks `isinstance` and would read their memory."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(a, Lazy) for a in args):
            raise RecordingError(TRANSFORMS)
        return original(*args, **kwargs)

    return function


for _holder, _name, _make in (
    *[(module, name, _refusing) for module, name in UNCHECKED],
    (nn.Module, "__call__", _recording_call),
    *named_functions(),
    *[(torch.autocast, name, _refreshing) for name in ("__enter__", "__exit__")],
    *[(cls, "__enter__", _entering) for cls in _GRAD_MODES],
    *[(cls, "__exit__", _leaving) for cls in _GRAD_MODES],
    (torch.set_grad_enabled, "__init__", _entering),
):
    replaces(_holder, _name, _make)


class Shortcuts:
    """Child modules as entries of their parents' `__dict__`, where Python finds them first. Only for speed."""

    buffers: list[dict[str, Any]]  # of every module the table of its buffers
    _children: list[dict[str, Any]]  # of every module the table of its children
    _items: list[tuple[Any, ...]]  # what the tables of children held at the last look: keys and values in turn
    _entries: tuple[tuple[dict[str, Any], str, nn.Module], ...]

    def __init__(self, root: nn.Module | None):
        self._roots = [] if root is None else [root]
        self._look()

    def _look(self) -> None:
        modules = modules_of(self._roots)
        children = [children_in(module) for module in modules]
        entries = [
            (parent.__dict__, name, child)
            for parent in modules
            for name, child in children_in(parent).items()
            if child is not None
        ]
        self.__dict__.update(  # in one step: another thread, or an interrupt, sees all of the old look or of the new
            buffers=[buffers_in(module) for module in modules],
            _children=children,
            _items=[tuple(chain.from_iterable(table.items())) for table in children],
            _entries=tuple(entries),
        )

    def entries(self) -> tuple[tuple[dict[str, Any], str, nn.Module], ...]:
        if not same_items(self._children, self._items):
            self._look()
        return self._entries


def recording(recorder: Recorder, shortcuts: Shortcuts, function: Callable[..., T], *args: Any) -> T:
    """Run a function, and record everything that this thread calls inside.

    The garbage collector pauses meanwhile: thousands of live lazy values would make it run often, and in vain.
    """
    contexts = _Clean(recorder, shortcuts), Surroundings(active, applying), hooked(shortcuts.entries())
    return cast(T, inside(contexts, _record, recorder, function, *args))


def _record(recorder: Recorder, function: Callable[..., T], *args: Any) -> T:
    active.set(recorder)
    applying.set(_record_applied)
    recorder.known_calls.num_modes = num_function_modes() + 1
    if recorder.codes is not None:
        recorder.known_calls.begin(recorder.codes, OWN, recorder.sites, recorder.spans)
    with RecordingMode(recorder):
        return function(*args)


class _Clean:
    """A context after which nothing keeps lazy values alive: known calls are forgotten, and buffers are put back."""

    def __init__(self, recorder: Recorder, shortcuts: Shortcuts):
        self._recorder, self._shortcuts = recorder, shortcuts

    def __enter__(self) -> None:
        self._buffers = [(table, dict(table)) for table in self._shortcuts.buffers]

    def __exit__(self, *error: Any) -> None:
        self._recorder.known_calls.close()
        self._recorder.known_calls.end()
        assigned = []
        for table, before in self._buffers:
            for name in [name for name, value in table.items() if isinstance(value, Lazy)]:
                del table[name]
                table.update({name: before[name]} if name in before else {})
                assigned.append(name)
        if assigned:
            raise RecordingError(
                f"a lazy value was assigned to the buffer {assigned[0]!r} of a module, where it would outlive its "
                "call; return it, and assign what the batched function returns"
            )


def one_by_one(function: Callable[..., T], *args: Any) -> T:
    """Run a function that is a plain loop over examples: nothing is recorded."""
    return cast(T, inside((Surroundings(active, applying, plain_loop), hooked()), _plain, function, *args))


def _plain(function: Callable[..., T], *args: Any) -> T:
    active.set(None)
    applying.set(None)
    plain_loop.set(True)
    return function(*args)
