"""Methods of torch that are ours while somebody records or captures, in any thread, and torch's own again afterwards.

Each replacement asks what the present thread does, and does what it replaces where that is nothing. `hooked()` is the
context in which they are in place: the first to enter puts them there, the last to leave puts back what was there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from edbatch.torch_state.surroundings import Stay, inside

Place = tuple[Any, str, Any, Any]  # class or module, name, original, ours
Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

# What this thread does with calls of `autograd.Function.apply`, which modes of torch do not see.
applying: ContextVar[Handler | None] = ContextVar("edbatch.applying", default=None)
_makers: list[tuple[Any, str, Callable[[Any], Any]]] = []
_places: tuple[Place, ...] = ()
_lock = threading.RLock()


def replaces(holder: Any, name: str, make: Callable[[Any], Any]) -> None:
    """From now on `make(original)` takes the place of a method or function while hooks are in place."""
    _makers.append((holder, name, make))


def hooked(shortcuts: tuple[tuple[dict[str, Any], str, Any], ...] | None = None) -> Stay:
    """The context; with shortcuts, entries of dicts that are there meanwhile, the collector of garbage pauses."""
    places = inside((_lock,), _look)
    return Stay(places) if shortcuts is None else Stay(places, shortcuts)


def _look() -> tuple[Place, ...]:
    """What would be replaced now; what is known already is not made again."""
    global _places
    known = {(id(holder), name): (original, ours) for holder, name, original, ours in _places}
    found = []
    for holder, name, make in _makers:
        original, ours = known.get((id(holder), name), (None, None))
        now = vars(holder)[name]
        if now is not original and now is not ours:
            original, ours = now, make(now)
        found.append((holder, name, original, ours))
    _places = tuple(found)
    return _places


def _applied(original: Any) -> Any:
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        function, handle = original.__get__(None, cls), applying.get()
        return function(*args, **kwargs) if handle is None else handle(function, args, kwargs)

    return classmethod(apply)


replaces(torch.autograd.Function, "apply", _applied)
