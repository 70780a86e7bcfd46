"""Attributes of modules as they were before a trial run, so that they can be put back after it.

A cell may run once only so that the shapes of its results become known. `Belongings` remembers what its modules held:
attributes, the lists, dicts and sets in them, parameters and buffers. `put_back` takes back what the run changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from edbatch.torch_insides.modules import INTERNAL, buffers_in, parameters_in

CONSTANTS = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
MAX_PARTS = 300  # entries in the collections of one attribute; what is larger is data and not looked at
_INTERNAL = INTERNAL - {"training"}


class Belongings:
    """The attributes, parameters and buffers of modules."""

    def __init__(self, modules: Iterable[nn.Module]):
        self._tables: list[tuple[Any, Any]] = []
        self._collections: list[tuple[str, Any, Any]] = []
        for module in modules:
            for table in (module.__dict__, parameters_in(module), buffers_in(module)):
                self._tables.append((table, {k: v for k, v in list(table.items()) if _is_own(k, v)}))
            own = self._tables[-3][1]
            self._collections += [(k, c, c.copy()) for k, v in own.items() for c in _collections(v, [MAX_PARTS])]

    def put_back(self) -> list[str]:
        """Put everything back; returns the names of the attributes that had changed."""
        changed = []
        for table, before in self._tables:
            now = {k: v for k, v in list(table.items()) if _is_own(k, v)}
            added = [k for k in now if k not in before]
            other = [k for k, v in before.items() if k not in now or not _is_same(now[k], v)]
            for k in added:
                table.pop(k, None)
            table.update({k: before[k] for k in other})  # the order of keys stays as it is
            changed += [*added, *other]
        for name, collection, before in self._collections:
            if not _holds_same(collection, before):
                collection.clear()
                getattr(collection, "extend" if isinstance(collection, list) else "update")(before)
                changed.append(name)
        return changed


def _is_own(name: str, value: Any) -> bool:
    """Whether an attribute is put back. Not children: another thread that records may place some in `__dict__`."""
    return name not in _INTERNAL and not isinstance(value, nn.Module)


def _collections(value: Any, room: list[int]) -> Iterator[Any]:
    """The collections that a value is or holds, nested ones too, as long as there is room for their entries."""
    if not isinstance(value, list | dict | set):
        return
    room[0] -= len(value)
    if room[0] < 0:
        return
    yield value
    for part in list(value.values() if isinstance(value, dict) else value):
        yield from _collections(part, room)


def _is_same(now: Any, before: Any) -> bool:
    if now is before:
        return True
    if type(now) is not type(before):
        return False
    if isinstance(now, tuple):
        return len(now) == len(before) and all(map(_is_same, now, before))
    return isinstance(now, CONSTANTS) and bool(now == before)


def _holds_same(now: Any, before: Any) -> bool:
    if len(now) != len(before):
        return False
    if isinstance(now, set):
        return bool(now == before)
    pairs = zip(now, before, strict=True)
    if isinstance(now, dict):
        return all(map(_is_same, now.values(), before.values())) and all(a is b or a == b for a, b in pairs)
    return all(_is_same(a, b) for a, b in pairs)
