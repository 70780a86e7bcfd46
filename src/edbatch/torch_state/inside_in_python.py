"""`_inside.c` in Python, for installations without a C compiler. `surroundings.py` says what it is for.

Here Ctrl-C at a bad moment may leave a change behind.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")


def inside(contexts: tuple[Any, ...], function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        return function(*args, **kwargs)


class Made:
    def __init__(self, make: Callable[..., Any], *args: Any):
        self._make, self._args = make, args

    def __enter__(self) -> None:
        (made := self._make(*self._args)).__enter__()
        self._made = made

    def __exit__(self, *error: Any) -> None:
        self._made.__exit__(None, None, None)


class Scope(Generic[T]):
    def __init__(self, variable: ContextVar[Any], begin: Callable[[], Any], given: T):
        self._variable, self._begin, self._given = variable, begin, given

    def __enter__(self) -> T:
        self._value = self._begin()
        self._token = self._variable.set(self._value)
        return self._given

    def __exit__(self, *error: Any) -> None:
        self._variable.reset(self._token)
        if not error or error[0] is None:
            self._value.end()


class Stay:
    _lock: ClassVar = threading.RLock()
    _in_place: ClassVar[tuple[tuple[Any, str, Any, Any], ...]] = ()
    _num_stays: ClassVar[int] = 0
    _num_pauses: ClassVar[int] = 0
    _was_collecting: ClassVar[bool] = False

    def __init__(self, places: tuple[Any, ...], shortcuts: tuple[Any, ...] | None = None):
        self._places, self._shortcuts = places, shortcuts
        self._placed: list[Any] = []
        self._is_begun = False

    def __enter__(self) -> None:
        with Stay._lock:
            places = self._places
            self._is_begun = True
            Stay._num_stays += 1
            if Stay._num_stays == 1:
                Stay._in_place = places
                for holder, name, _, ours in places:
                    setattr(holder, name, ours)
            if self._shortcuts is not None:
                Stay._num_pauses += 1
                if Stay._num_pauses == 1:
                    Stay._was_collecting = gc.isenabled()
                    gc.disable()
                self._placed = [entry for entry in self._shortcuts if entry[1] not in entry[0]]
                for held, key, value in self._placed:
                    held[key] = value

    def __exit__(self, *error: Any) -> None:
        with Stay._lock:
            if not self._is_begun:
                return
            self._is_begun = False
            for held, key, value in self._placed:
                if held.get(key) is value:
                    del held[key]
            Stay._num_stays -= 1
            for holder, name, original, ours in Stay._in_place if Stay._num_stays == 0 else ():
                if vars(holder)[name] is ours:
                    setattr(holder, name, original)
            if self._shortcuts is not None:
                Stay._num_pauses -= 1
                if Stay._num_pauses == 0 and Stay._was_collecting:
                    gc.enable()

    def __del__(self) -> None:
        if vars(self).get("_is_begun"):
            self.__exit__()
