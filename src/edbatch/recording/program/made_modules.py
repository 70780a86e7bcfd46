"""Modules that are made while a function is recorded, such as `nn.Sigmoid()(x)` in a forward.

Such a module is another object in every call, and as a cell of its own it would be captured again each time. One of
torch's own modules without parameters and buffers computes by its class and settings alone. So calls of it are taken as
calls of a stand-in: a copy of the first module of these settings, which is kept from call to call.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable

from torch import nn

from edbatch.recording.program.attributes import describe
from edbatch.recording.program.marking import is_leaf
from edbatch.recording.program.paths import Paths
from edbatch.torch_insides.modules import INTERNAL, buffers_in, children_in, hooks_in, hooks_of_all, parameters_in

MAX_STAND_INS = 1000


class MadeModules:
    """The stand-ins of one batched function."""

    def __init__(self, paths: Paths):
        self._paths = paths
        self._stand_ins: dict[Hashable, nn.Module] = {}

    def stand_in(self, module: nn.Module) -> nn.Module:
        """A module that computes the same, and is the same one in further calls; or the module itself.

        A module to which a variable of the program leads has a name by that, and stands for itself.
        """
        settings = None if self._paths.known(module) is not None or hooks_of_all() else _settings(module)
        if settings is None:
            return module
        found = self._stand_ins.get(settings)
        if found is None:
            if len(self._stand_ins) >= MAX_STAND_INS:
                self._stand_ins.clear()
            found = self._stand_ins[settings] = copy.deepcopy(module)  # nobody else changes it
        return found


def _settings(module: nn.Module) -> Hashable | None:
    """Class, mode and settings of a module; None if that is not all it computes by."""
    if not is_leaf(module) or any(parameters_in(module)) or any(buffers_in(module)) or any(hooks_in(module)):
        return None
    children = [(name, None if child is None else _settings(child)) for name, child in children_in(module).items()]
    held = [(name, describe(value)) for name, value in module.__dict__.items() if name not in INTERNAL]
    if any(says is None for _, says in (*children, *held)):
        return None
    return type(module), module.training, tuple(children), tuple(held)
