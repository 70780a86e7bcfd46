"""Tries new programs out, as a guard against our own mistakes: do they run, and are results of the right shapes?

In: the programs of a cell. Out: nothing, or a CaptureError; the cell then runs one by one instead of wrongly. This also
finds ops that cannot be batched, since torch.func.vmap refuses them here. Programs for the CPU run there, on zeros.
Others, and those that fail on zeros, run on the meta device, where tensors have no data. torch's kernels for meta
import the compiler, which takes longer than all the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from edbatch.cells.body.body import Body
from edbatch.cells.body.program import Emitted
from edbatch.cells.capture.fake import LARGE, LONG, scratch
from edbatch.cells.torch_ops.work_space import Prologue, WorkSpace
from edbatch.errors import CaptureError
from edbatch.spec import Spec
from edbatch.torch_insides.modes import InferenceMode, without_dispatch_modes
from edbatch.torch_state.surroundings import Made, Surroundings, inside

_ROWS = 3


class Verification:
    """The checks of a cell's programs."""

    def __init__(self, body: Body, prologue: Emitted) -> None:
        self.body, self.rows, self.shared = body, body.rows, body.shared
        self.outputs = tuple(map(body.spec, body.outputs))
        self.prologue = prologue

    def _is_cheap(self) -> bool:
        """Whether the programs may really run: on the CPU, quickly, and without drawing random numbers."""
        specs = [(spec, is_row) for spec, is_row in zip(self.body.specs, self.body.is_row, strict=True)
                 if isinstance(spec, Spec)]  # fmt: skip
        return not any(op.is_random for op in self.body.ops) and all(
            spec.device.type == "cpu" and math.prod(spec.shape) < (LONG // _ROWS if is_row else LARGE)
            for spec, is_row in specs
        )

    def infer(self, infer: Emitted) -> None:
        self._rehearse(lambda scene: self._infer(scene, infer))

    def training(
        self, programs: tuple[Emitted, Emitted, Emitted], saved: Sequence[Spec], deferred: Sequence[Spec]
    ) -> None:
        self._rehearse(lambda scene: self._train(scene, programs, saved, deferred))

    def _rehearse(self, play: Callable[[Scene], None]) -> None:
        if self._is_cheap():
            is_sure = any(0 in spec.shape for spec in self.rows)  # without elements, zeros are as good as any values
            with nullcontext() if is_sure else suppress(CaptureError):
                return _rehearsed(play, Scene("cpu"))
        return _rehearsed(play, Scene("meta"))

    def _infer(self, scene: Scene, infer: Emitted) -> None:
        outs = scene.many(self.outputs)
        pro = scene.run(self.prologue, [scene.empty(spec) for spec in self.shared], scene.empty)
        scene.run(infer, _ROWS, scene.many(self.rows), pro, outs, [], *scene.work(infer, pro))
        _compare("the outputs", outs, self.outputs, _ROWS)

    def _train(
        self, scene: Scene, programs: tuple[Emitted, Emitted, Emitted], saved: Sequence[Spec], deferred: Sequence[Spec]
    ) -> None:
        forward, backward, finish = programs
        rows, outs, tangents = (scene.many(specs) for specs in (self.rows, self.outputs, self.outputs))
        kept, late = scene.many(saved), scene.many(deferred)
        sums: dict[int, torch.Tensor] = {}
        pro = scene.run(self.prologue, [scene.empty(spec) for spec in self.shared], scene.empty)
        scene.run(forward, _ROWS, rows, pro, outs, kept, *scene.work(forward, pro))
        grads = scene.run(backward, _ROWS, rows, outs, kept, pro, tangents, late, sums, *scene.work(backward, pro))
        totals = scene.run(finish, _ROWS, rows, outs, kept, pro, tangents, late, sums)
        _compare("the gradients of the rows", grads, self.rows, _ROWS)
        _compare("the gradients of shared inputs", totals, self.shared)
        for what, values, specs in (("saved values", kept, saved), ("deferred values", late, deferred)):
            _compare(what, values, specs, _ROWS)


@dataclass(frozen=True)
class Scene:
    """The device on which programs are tried out: "cpu" or "meta"."""

    device: str

    def run(self, program: Emitted, *args: Any) -> Any:
        return (program.function if self.device == "cpu" else program.rehearsal)(*args)

    def work(self, program: Emitted, pro: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The last arguments of a program that has a work space."""
        if program.work is None:
            return ()
        views = WorkSpace(program.work, _ROWS, torch.device(self.device))(_ROWS)
        return views, Prologue.of(pro).stacked(program.work.stacks)

    def empty(self, spec: Spec, *leading: int) -> torch.Tensor:
        tensor = torch.empty((*leading, *spec.shape), dtype=spec.dtype, device="meta")
        return scratch(tensor) if self.device == "cpu" else tensor

    def many(self, specs: Sequence[Spec]) -> list[torch.Tensor]:
        return [self.empty(spec, _ROWS) for spec in specs]


def _compare(what: str, values: Sequence[Any], specs: Sequence[Spec], *leading: int) -> None:
    for value, spec in zip(values, specs, strict=True):
        if value is not None and (tuple(value.shape), value.dtype) != ((*leading, *spec.shape), spec.dtype):
            raise CaptureError(f"batched, {what} would be {Spec.of(value)} instead of {(*leading, *spec.shape)}")


def _rehearsed(play: Callable[[Scene], None], scene: Scene) -> None:
    try:
        inside((Surroundings(), Made(InferenceMode, False)), _without_modes, play, scene)
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(f"an op that cannot be batched ({error})") from error


def _without_modes(play: Callable[[Scene], None], scene: Scene) -> None:
    with without_dispatch_modes(), torch.no_grad():
        play(scene)
