"""Captures a function once more, in the surroundings of its first capture: grad mode, autocast, context variables."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from edbatch.cells.capture.capture import Captured, capture
from edbatch.cells.capture.modes import Modes
from edbatch.spec import Spec
from edbatch.torch_insides.modes import set_grad_enabled
from edbatch.torch_state.surroundings import Surroundings, has_grad, inside

T = TypeVar("T")


@dataclass(frozen=True)
class Recapture:
    """Made when the function is captured first; calling this object captures the function again."""

    function: Callable[..., Any]
    rows: tuple[Spec, ...]
    shared: tuple[Spec, ...]
    grad: bool
    modes: Modes
    context: contextvars.Context = field(repr=False)

    @staticmethod
    def of(function: Callable[..., Any], rows: Sequence[Spec], shared: Sequence[Spec]) -> Recapture:
        context = contextvars.copy_context()
        return Recapture(function, tuple(rows), tuple(shared), has_grad(), Modes.current(), context)

    def __call__(self, cuts: Collection[int]) -> Captured:
        return self.around(lambda: capture(self.function, self.rows, self.shared, cuts))

    def around(self, call: Callable[[], T]) -> T:
        """The result of a call in these surroundings."""
        return cast(T, self.context.copy().run(inside, (Surroundings(),), self._around, call))

    def _around(self, call: Callable[[], T]) -> T:
        set_grad_enabled(self.grad)
        return self.modes.around(call)
