"""The programs (forward, backward, …) of cells whose function is called as it was written: for each row, or once on all
rows of a batch.

In: an `EagerKernel`. Out: `Programs`. For training one autograd graph is kept per call; backward goes through them in
reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from edbatch.cells.kernel import Launch, Mask, Programs
from edbatch.cells.touched import Touched
from edbatch.errors import GradientError, RecordingError

if TYPE_CHECKING:
    from edbatch.cells.eager import EagerKernel
    from edbatch.runtime.binding import Binding


@dataclass
class Calls:
    """The shared tensors of all calls in one mini-batch, and for each batch, by number, the autograd graphs of its
    calls: operands and results."""

    shared: Sequence[Tensor]
    graphs: dict[int, list[tuple[list[Tensor], list[Tensor]]]] = field(default_factory=dict)


def as_given(tensor: Tensor, needs_grad: bool) -> Tensor:
    """The tensor as an argument that a cell may write in place: no leaf, if it requires a gradient."""
    if not needs_grad or not tensor.is_floating_point():
        return tensor
    with torch.enable_grad():
        return tensor.requires_grad_().clone()


@dataclass(frozen=True)
class EagerInference:
    kernel: EagerKernel

    def bind(self, x: Binding) -> Launch:
        kernel, shared = self.kernel, x.pro.shared

        def launch(b: int) -> None:
            rows, outs = x.operands(b), x.outs(b)
            for place in kernel.places(x.sizes[b]):
                kernel.call([row[place].clone() for row in rows], shared, outs, place)  # the function may keep them

        return launch


@dataclass(frozen=True)
class EagerTraining:
    """Keeps one autograd graph per call, and differentiates them in reverse."""

    kernel: EagerKernel
    need_rows: Mask
    need_shared: Mask

    def programs(self) -> Programs:
        return Programs(EagerForward(self), EagerBackward(self), self.finish)

    def forward(self, calls: Calls, B: int, rows: Any, outs: Any) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Writes the results of B rows. Returns the graphs of the calls."""
        graphs = []
        allowed = {id(t) for t in calls.shared}
        for place in self.kernel.places(B):
            operands = [
                row[place].clone().requires_grad_(need) for row, need in zip(rows, self.need_rows, strict=True)
            ]  # copies, since memory of rows is written again later
            allowed.update(map(id, operands))
            given = [as_given(t, t.requires_grad) for t in operands]
            with torch.set_grad_enabled(self.kernel.grad), Touched() as touched:
                values = self.kernel.call(given, calls.shared, outs, place)
            if any(key not in allowed for key in touched.tensors):
                raise RecordingError(
                    "a cell that runs one by one used a parameter that it had not used before and that is not "
                    "registered in it; make the cell an nn.Module that owns its parameters"
                )
            graphs.append((operands, values))
        return graphs

    def backward(
        self, calls: Calls, graphs: list[tuple[list[Tensor], list[Tensor]]], out_grads: Any, sums: dict[Any, Any]
    ) -> list[Tensor | None]:
        """The gradients of the operands of a batch's calls; gradients of shared tensors are added to `sums`."""
        places = self.kernel.places(len(graphs))
        need = [i for i, needed in enumerate(self.need_rows) if needed]
        shared = [t for t, needed in zip(calls.shared, self.need_shared, strict=True) if needed]
        total: list[list[Tensor]] = [[] for _ in self.need_rows]
        for place, (operands, values) in zip(places, graphs, strict=True):
            pairs = [(v, g[place]) for v, g in zip(values, out_grads, strict=True) if g is not None and v.requires_grad]
            inputs = [*[operands[i] for i in need], *shared]
            grads: Sequence[Tensor | None] = [None] * len(inputs)
            if pairs and inputs:
                grads = self._differentiate(pairs, inputs)
            for i, g in zip(need, grads, strict=False):
                total[i].append(torch.zeros_like(operands[i]) if g is None else g)
            for tensor, g in zip(shared, grads[len(need) :], strict=True):
                if g is not None:
                    known = sums.get(id(tensor))
                    sums[id(tensor)] = g if known is None else known + g
        join = torch.stack if self.kernel.reason is not None else lambda grads: grads[0]
        return [join(grads) if grads else None for grads in total]

    def _differentiate(self, pairs: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor]) -> Any:
        values, grads = zip(*pairs, strict=True)
        try:
            return torch.autograd.grad(values, inputs, grads, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if not any(bool(g.any()) for g in grads):  # only other calls of the type have a gradient
                return [None] * len(inputs)
            raise GradientError(
                f"{self.kernel.name}: torch cannot differentiate it ({error}), and some of the calls that are batched "
                "have arguments that require a gradient; detach() the arguments"
            ) from error

    def finish(
        self, N: int, rows: Any, outs: Any, saved: Any, pro: Calls, out_grads: Any, deferred: Any, sums: Any
    ) -> list[Tensor | None]:
        return [sums.get(id(t)) if need else None for t, need in zip(pro.shared, self.need_shared, strict=True)]


@dataclass(frozen=True)
class EagerForward:
    training: EagerTraining

    def bind(self, x: Binding) -> Launch:
        forward, calls = self.training.forward, x.pro

        def launch(b: int) -> None:
            calls.graphs[b] = forward(calls, x.sizes[b], x.operands(b), x.outs(b))

        return launch


@dataclass(frozen=True)
class EagerBackward:
    training: EagerTraining

    def bind(self, x: Binding) -> Launch:
        backward, calls = self.training.backward, x.pro

        def launch(b: int) -> None:
            for slot, gradient in enumerate(backward(calls, calls.graphs[b], x.out_grads(b), x.sums)):
                if gradient is not None:
                    x.add_gradient(b, slot, gradient)

        return launch
