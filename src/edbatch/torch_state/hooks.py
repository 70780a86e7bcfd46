"""Methods and settings of torch that are changed for a while. All threads share them, so no other file changes any.

Methods: while any thread records a function or captures a cell, some methods of torch are replaced by ours. `replaces`
registers a replacement, and `hooked()` is the context in which all are in place. A replacement asks whether the present
thread records or captures; if not, it does what the original does. Settings: a `Setting` has our value while any thread
is in a context that asks for it (`Settled`). For both, the first to enter makes the change and the last to leave takes
it back, in whatever order threads come and go.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import handle_torch_function

from edbatch.torch_insides.modes import BACKWARD, num_function_modes
from edbatch.torch_state.surroundings import Stay, inside

Place = tuple[Any, str, Any, Any]  # class or module, name, original, ours
Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

# What handles this thread's calls of `autograd.Function.apply`, which modes of torch do not see; None: nothing does.
applying: ContextVar[Handler | None] = ContextVar("edbatch.applying", default=None)
_makers: list[tuple[Any, str, Callable[[Any], Any]]] = []
_places: tuple[Place, ...] = ()
_looked_at: tuple[tuple[Any, str, Any, Any], ...] = ()  # of each place what it is in, its name, original and ours
_lock = threading.RLock()


def replaces(holder: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Register a replacement: inside `hooked()`, `make(original)` takes the place of a method or function."""
    _makers.append((holder, name, make))


def hooked(shortcuts: tuple[tuple[dict[str, Any], str, Any], ...] | None = None) -> Stay:
    """The context in which all replacements are in place.

    Args:
        shortcuts: entries (dict, key, value) to add meanwhile. If given, the garbage collector pauses, too.
    """
    places = inside((_lock,), _look)
    return Stay(places) if shortcuts is None else Stay(places, shortcuts)


def _look() -> tuple[Place, ...]:
    """What is to be replaced, and by what. A replacement that was made before for the same original is used again."""
    global _places, _looked_at
    for entries, name, original, ours in _looked_at:
        now = entries[name]
        if now is not original and now is not ours:
            break
    else:
        if len(_looked_at) == len(_makers):
            return _places
    known = {(id(holder), name): (original, ours) for holder, name, original, ours in _places}
    found = []
    for holder, name, make in _makers:
        original, ours = known.get((id(holder), name), (None, None))
        now = vars(holder)[name]
        if now is not original and now is not ours:
            original, ours = now, make(now)
        found.append((holder, name, original, ours))
    _places = tuple(found)
    _looked_at = tuple([(vars(holder), *rest) for holder, *rest in found])
    return _places


class Setting:
    """A global setting of torch that has our value while it has users."""

    def __init__(self, look: Callable[[], Any], change: Callable[[], Any], put_back: Callable[[Any], Any]):
        self._look, self._change, self._put_back = look, change, put_back
        self._users: set[int] = set()
        self._before: Any = None  # the value before the first user

    def begin(self, user: object) -> None:
        inside((_lock,), self._begin, id(user))

    def _begin(self, user: int) -> None:
        if not self._users:
            self._before = self._look()
        self._users.add(user)
        self._change()

    def end(self, user: object) -> None:
        """Does nothing if this user has not begun, or has ended already."""
        inside((_lock,), self._end, id(user))

    def _end(self, user: int) -> None:
        if self._users == {user}:
            self._put_back(self._before)
        self._users.discard(user)


class Settled:
    """A context in which settings have our values, once its `begin` was called."""

    def __init__(self, *settings: Setting):
        self._settings = settings

    def __enter__(self) -> None:
        """Changes nothing: if an entry is interrupted, `__exit__` is not called. `begin` makes the changes."""

    def begin(self) -> None:
        for setting in self._settings:
            setting.begin(self)

    def __exit__(self, *error: Any) -> None:
        for setting in self._settings:
            setting.end(self)


def _applied(original: Any) -> Any:
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        function, handle = original.__get__(None, cls), applying.get()
        return function(*args, **kwargs) if handle is None else handle(function, args, kwargs)

    return classmethod(apply)


def _seen(original: Any) -> Any:
    """What torch.autograd.backward calls at last: modes see the one for the other."""

    @functools.wraps(original)
    def run(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("accumulate_grad") or num_function_modes() == 0:
            return original(tensors, *args, **kwargs)
        gradients, keep, create, inputs = args
        return handle_torch_function(
            torch.autograd.backward, tensors, tensors, gradients, keep, create, inputs=inputs or None
        )

    return run


replaces(torch.autograd.Function, "apply", _applied)
for _holder, _name in BACKWARD:
    replaces(_holder, _name, _seen)
