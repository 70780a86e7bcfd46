"""All modules below given ones, and their parameters and buffers.

Modules are told apart by identity, because a user's class may define `__eq__`.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from edbatch.torch_insides.modules import buffers_in, children_in, parameters_in


def modules_of(roots: Iterable[nn.Module]) -> list[nn.Module]:
    """The roots and all modules below them, each once."""
    modules = list({id(root): root for root in roots}.values())
    seen = set(map(id, modules))
    for module in modules:  # the list grows meanwhile
        for child in children_in(module).values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                modules.append(child)
    return modules


def parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [p for module in modules for p in parameters_in(module).values() if p is not None]


def buffers_of(modules: Iterable[nn.Module]) -> list[Tensor]:
    return [b for module in modules for b in buffers_in(module).values() if b is not None]
