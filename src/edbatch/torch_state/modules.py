"""The modules below some modules, and what they hold. By identity: a user's modules may compare equal to others."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from edbatch.torch_insides.modules import buffers_in, children_in, parameters_in


def modules_of(roots: Iterable[nn.Module]) -> list[nn.Module]:
    """All modules below the roots, each once."""
    modules = list({id(root): root for root in roots}.values())
    seen = set(map(id, modules))
    for module in modules:  # it grows
        for child in children_in(module).values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                modules.append(child)
    return modules


def parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [p for module in modules for p in parameters_in(module).values() if p is not None]


def buffers_of(modules: Iterable[nn.Module]) -> list[Tensor]:
    return [b for module in modules for b in buffers_in(module).values() if b is not None]
