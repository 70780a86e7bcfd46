"""`edbatch.frozen`: a scope in which weights do not change, so that what is computed from them is computed once.

In: a model. Out: a context manager. Matrix products of a cell that share an operand run as one, with stacked weights.
Else weights are stacked in every call, because nothing reliably shows whether they have changed: fused optimizers and
edits of `.data` raise no version counter. While a model serves, nothing changes; the user says so by this scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from edbatch.cells.kernel import Form
from edbatch.errors import FrozenError
from edbatch.runtime.arena import Lease
from edbatch.torch_insides.tensors import version_of
from edbatch.torch_state.modules import buffers_of, modules_of, parameters_of
from edbatch.torch_state.surroundings import Scope


@dataclass(frozen=True)
class _FrozenScope:
    """The frozen tensors by identity, and what was computed from them: (form, its shared tensors) -> (form, result)."""

    members: dict[int, Tensor]
    versions: list[int]
    outer: _FrozenScope | None  # the scope around this one
    made: dict[tuple[int, ...], tuple[Form, Any]] = field(default_factory=dict)

    @staticmethod
    def of(model: nn.Module) -> _FrozenScope:
        modules = modules_of([model])
        tensors = {id(t): t for t in (*parameters_of(modules), *buffers_of(modules))}
        return _FrozenScope(tensors, [version_of(t) for t in tensors.values()], _scope.get())

    def end(self) -> None:
        if [version_of(t) for t in self.members.values()] != self.versions:
            raise FrozenError(
                "parameters or buffers changed inside edbatch.frozen(model), and results may have come from their old "
                "values; end the scope before training or loading, and begin a new one afterwards"
            )


_scope: ContextVar[_FrozenScope | None] = ContextVar("edbatch.frozen", default=None)


def frozen(model: nn.Module) -> AbstractContextManager[nn.Module, None]:
    """While this scope lasts the model's parameters and buffers must not change, and batched calls stack no weights.

    Raises:
        FrozenError: at the end of the scope, if a version counter shows a change. Edits of `.data` and fused optimizers
            raise none: they would be ignored.

    >>> import torch, edbatch
    >>> model = edbatch.batch(torch.nn.Linear(2, 3))
    >>> with edbatch.frozen(model), torch.no_grad():
    ...     model(torch.ones(4, 2)).shape
    torch.Size([4, 3])
    """
    return Scope(_scope, partial(_FrozenScope.of, model), model)


def prologue(form: Form, shared: Sequence[Tensor], lease: Lease, *, trains: bool) -> Any:
    """What a form (a kernel as it runs here) computes from its shared tensors, such as stacked weights; computed once
    in a scope in which all of them are frozen.

    Outside a scope it lies in memory of the mini-batch, since fresh memory costs more than stacking.
    """
    scope = _scope.get() if form.is_pure else None
    while scope is not None and not all(id(t) in scope.members for t in shared):
        scope = scope.outer
    if scope is None:
        return form.prologue(shared, lease.take_one) if trains else form.prologue_of_inference(shared, lease)
    key = (id(form), *map(id, shared))
    if key not in scope.made:
        scope.made[key] = form, form.prologue(shared)
    return scope.made[key][1]
