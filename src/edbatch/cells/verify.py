"""A guard against our own mistakes: rehearses freshly emitted programs on tensors without data.

In: the programs of a cell. Out: nothing, or a CaptureError; the cell then runs one by one instead of wrongly. It also
finds ops that nothing can batch, because torch.func.vmap refuses them here. The meta device is used because fake
tensors would take ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from edbatch.errors import CaptureError
from edbatch.spec import Spec

_ROWS = 3


class Verification:
    """Empty values of a cell's inputs, and the checks of its programs."""

    def __init__(self, rows: Sequence[Spec], shared: Sequence[Spec], outputs: Sequence[Spec]) -> None:
        self.specs = (rows, shared, outputs)
        with _rehearsing():
            self.rows, self.outs = _many(rows), _many(outputs)
            self.shared = [_empty(spec) for spec in shared]

    def infer(self, prologue: Any, infer: Any) -> None:
        with _rehearsing():
            self.pro = prologue(self.shared)
            infer(_ROWS, self.rows, self.pro, self.outs)
        _compare("the outputs", self.outs, self.specs[2], _ROWS)

    def training(
        self, forward: Any, backward: Any, finish: Any, saved: Sequence[Spec], deferred: Sequence[Spec]
    ) -> None:
        sums: dict[int, torch.Tensor] = {}
        with _rehearsing():
            kept, late = _many(saved), _many(deferred)
            forward(_ROWS, self.rows, self.pro, self.outs, kept)
            tangents = _many(self.specs[2])
            grads = backward(_ROWS, self.rows, self.outs, kept, self.pro, tangents, late, sums)
            totals = finish(_ROWS, self.rows, self.outs, kept, late, self.pro, sums)
        _compare("the gradients of the rows", grads, self.specs[0], _ROWS)
        _compare("the gradients of shared inputs", totals, self.specs[1])
        for what, values, specs in (("saved values", kept, saved), ("deferred values", late, deferred)):
            _compare(what, values, specs, _ROWS)


def _empty(spec: Spec, *leading: int) -> torch.Tensor:
    return torch.empty((*leading, *spec.shape), dtype=spec.dtype, device="meta")


def _many(specs: Sequence[Spec]) -> list[torch.Tensor]:
    return [_empty(spec, _ROWS) for spec in specs]


def _compare(what: str, values: Sequence[Any], specs: Sequence[Spec], *leading: int) -> None:
    for value, spec in zip(values, specs, strict=True):
        if value is not None and (tuple(value.shape), value.dtype) != ((*leading, *spec.shape), spec.dtype):
            raise CaptureError(f"batched, {what} would be {Spec.of(value)} instead of {(*leading, *spec.shape)}")


@contextmanager
def _rehearsing() -> Iterator[None]:
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        try:
            yield
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(f"an op that cannot be batched ({error})") from error
