"""Notices whether modules or tensors changed between calls: if not, what was captured from them can be used again.

What counts of a module is its `state_of`: its mode, hooks, attributes (see `attributes`), parameters and buffers; of a
tensor its dtype, shape, device, and whether it requires gradients. To take a state costs 25 µs a module. So a `Watch`
first compares, object by object, what modules hold with what they held, and takes states only if objects differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn

from edbatch.recording.program.attributes import SCALARS, can_change, describe, mark, settings_of
from edbatch.recording.program.marking import numbers_to_tensors
from edbatch.torch_insides.modules import TABLES, buffers_in, hooks_in, hooks_of_all, parameters_in
from edbatch.torch_state.modules import buffers_of, modules_of, parameters_of

try:
    from edbatch.recording._calls import same_items as same_items
except ImportError:

    def same_items(dicts: Any, items: Any) -> bool:  # type: ignore[misc]
        """Whether dicts hold the very objects that they held, given as tuples of keys and values in turn."""
        held = [tuple(chain.from_iterable(d.items())) for d in dicts]
        return list(map(len, held)) == list(map(len, items)) and all(map(is_, chain(*held), chain(*items)))


class Watch:
    """Modules and the state they were in. All they hold is kept alive, so that an id means one object only."""

    _modules: list[nn.Module]
    _classes: list[type]
    _global_hooks: list[Any]
    _tables: list[dict[Any, Any]]
    _items: list[tuple[Any, ...]]
    _tensors: list[tuple[torch.Tensor, torch.dtype, torch.Size, torch.device, bool]]
    _settings: list[tuple[Any, Hashable]]
    _state: Hashable

    def __init__(self, roots: Iterable[nn.Module], tensors: Iterable[torch.Tensor] = ()):
        self._roots = list(roots)
        self._loose = {id(t): t for t in tensors}  # tensors of none of the modules
        self._look()

    def __len__(self) -> int:
        return len(self._modules)

    def _look(self) -> None:
        modules = modules_of(self._roots)
        tables = [module.__dict__ for module in modules]
        tables += [module.__dict__[name] for module in modules for name in TABLES]
        settings = [(value, describe(value)) for module in modules for _, value in settings_of(module)]
        tensors = [*parameters_of(modules), *buffers_of(modules), *self._loose.values()]
        self.__dict__.update(  # in one step: an interrupt sees all of the old look or of the new
            _modules=modules,
            _classes=list(map(type, modules)),
            _global_hooks=hooks_of_all(),
            _tables=tables,
            _items=[tuple(chain.from_iterable(table.items())) for table in tables],
            _tensors=[(t, t.dtype, t.shape, t.device, t.requires_grad) for t in tensors],
            _settings=[(value, says) for value, says in settings if says is not None and can_change(value)],
            _state=self._take_state(),
        )

    def _take_state(self) -> Hashable:
        loose = [(number, t.dtype, t.shape, t.device, t.requires_grad) for number, t in self._loose.items()]
        return tuple([state_of(module) for module in modules_of(self._roots)]), tuple(loose)

    def add(self, modules: Iterable[nn.Module], tensors: Iterable[torch.Tensor]) -> None:
        """Watch further modules and tensors from now on."""
        known_modules, known = set(map(id, self._modules)), {id(t) for t, *_ in self._tensors}
        others = [module for module in modules if id(module) not in known_modules]
        loose = {id(t): t for t in tensors if id(t) not in known}
        if others or loose:
            self._roots, self._loose = [*self._roots, *others], self._loose | loose
            self._look()

    def is_unchanged(self) -> bool:
        """Whether all modules are in the state they were in."""
        if self._is_same():
            return True
        if self._take_state() != self._state:
            return False
        self._look()  # equal, but other objects: remembered, so that the next comparison is quick again
        return True

    def _is_same(self) -> bool:
        if list(map(type, self._modules)) != self._classes or hooks_of_all() != self._global_hooks:
            return False
        if not same_items(self._tables, self._items):
            return False
        for tensor, dtype, shape, device, requires_grad in self._tensors:
            if tensor.dtype is not dtype or tensor.shape != shape or tensor.device != device:
                return False
            if tensor.requires_grad != requires_grad:
                return False
        return all(describe(value) == said for value, said in self._settings)


def hooks_of(module: nn.Module) -> list[Any]:
    """The user's own hooks of a module, and those of all modules."""
    hooks = [hook for table in hooks_in(module) for hook in table.values() if hook is not numbers_to_tensors]
    return hooks + hooks_of_all()


def state_of(module: nn.Module) -> Hashable:
    """What captured code may read of a module: mode, hooks, attributes, and which parameters and buffers it has."""
    held = list(module.__dict__.items())  # a copy: another thread that records may place children there
    scalars = tuple((k, mark(v)) for k, v in held if isinstance(v, SCALARS))
    tensors = (*parameters_in(module).items(), *buffers_in(module).items())
    owned = tuple((k, id(t), t.dtype, t.shape, t.device, t.requires_grad) for k, t in tensors if t is not None)
    settings = tuple((k, says) for k, v in settings_of(module) if (says := describe(v)) is not None)
    return id(module), type(module), scalars, settings, tuple(map(id, hooks_of(module))), owned
