"""A compiled cell: the captured body of a function of one example, and the forms in which it runs on batches.

In: a function and the specs of one example's arguments. Out: a `CompiledCell`. It runs as fused kernels on the CPU, as
torch ops elsewhere, see `form`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from edbatch.cells.body.body import VIEWS, Body
from edbatch.cells.body.simplify import simplify
from edbatch.cells.capture.capture import Captured, capture
from edbatch.cells.capture.cut_points import CapturedPart, hoist
from edbatch.cells.capture.recapture import Recapture
from edbatch.cells.kernel import Form, Kernel, Mask, Read
from edbatch.cells.torch_ops.cell import TorchCell
from edbatch.errors import CaptureError
from edbatch.spec import Spec
from edbatch.switches import ALL_ON, Switches
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction

if TYPE_CHECKING:
    from edbatch.cells.fused.cell import FusedCell


OF_TORCH_OPS = ("stack_weights", "batch_inside", "plan_memory")  # switches that change a cell's torch ops


@dataclass(frozen=True)
class CompiledCell:
    """A cell ready to run on B rows at once.

    Args:
        rows, shared: the specs of the explicit arguments. `enclosed`: real tensors found in the body; they follow the
        explicit shared ones wherever shared values are given.
        outputs: the specs of the tensor leaves of the result. `unflatten` puts values in their place.
    """

    name: str
    rows: tuple[Spec, ...]
    shared: tuple[Spec, ...]
    enclosed: tuple[torch.Tensor, ...]
    outputs: tuple[Spec, ...]
    leaves: tuple[tuple[Any] | None, ...]
    tree: pytree.TreeSpec
    body: Body
    sparse: frozenset[int]
    torch_ops: TorchCell = field(repr=False, compare=False)
    changes: tuple[torch.Tensor, ...] = field(default=(), init=False)
    writes: tuple[int, ...] = ()  # rows that it writes in place: their new values are the last outputs
    same: tuple[int | None, ...] = ()  # of each result that is one of these rows itself, which
    views: tuple[frozenset[int], ...] = ()  # of each output the rows whose memory it shares; -1 for anything else
    enclosed_as: tuple[Any, ...] = field(default=(), repr=False)  # what the enclosed tensors were like at capture
    constant: tuple[int, ...] = ()  # arguments (rows, then shared) for which it has no gradient
    wanting: Callable[[Mask], Kernel] | None = field(default=None, repr=False, compare=False)  # see `Kernel`
    again: Recapture | None = field(default=None, repr=False, compare=False)
    _hoisted: dict[Mask, Hoisted | None] = field(default_factory=dict, repr=False, compare=False)
    _differentiable: dict[tuple[Mask, Mask], Mask] = field(default_factory=dict, repr=False, compare=False)
    _others: dict[Switches, TorchCell] = field(default_factory=dict, repr=False, compare=False)
    fused: dict[tuple[tuple[Read, ...], bool, bool], FusedCell] = field(default_factory=dict, repr=False, compare=False)

    def form(self, reads: tuple[Read, ...], switches: Switches) -> Form:
        """As fused kernels on the CPU, unless that was given up; else as torch ops."""
        torch_ops = self._as_torch_ops(switches)
        if not switches.compile or self._why_unfused is not None:
            return torch_ops
        key = reads, switches.exact_math, switches.stack_weights
        if key not in self.fused:
            from edbatch.cells.fused.cell import FusedCell  # at first use: it imports numba

            self.fused.setdefault(key, FusedCell(self.name, self.body, self.sparse, *key, torch_ops))
        found = self.fused[key]
        return torch_ops if found.is_given_up else found

    @cached_property
    def _why_unfused(self) -> str | None:
        """Why there can be no fused kernels of it."""
        devices = {spec.device.type for spec in (*self.rows, *self.outputs)} - {"cpu"}
        if devices:
            return f"it runs on {', '.join(sorted(devices))}"
        made = [spec for op in self.body.ops if isinstance(spec := op.spec, Spec) and spec.is_float]
        dtypes = {spec.dtype for spec in made}
        if dtypes and dtypes.isdisjoint((torch.float32, torch.float64)):
            return f"it computes in {', '.join(sorted(map(str, dtypes)))}"
        return None

    def form_in_words(self, switches: Switches) -> str:
        """How it runs, and why."""
        how = "torch ops, alike ones as one call" if self._as_torch_ops(switches).is_batched else "torch ops one by one"
        if not switches.compile:
            return f"{how}, because of compile=False"
        if self._why_unfused is not None:
            return f"{how}, because {self._why_unfused}"
        if any(cell.is_given_up for cell in self.fused.values()):
            return f"{how}, because fused kernels of it could not be made"
        return "fused kernels"

    def _as_torch_ops(self, switches: Switches) -> TorchCell:
        relevant = replace(ALL_ON, **{name: getattr(switches, name) for name in OF_TORCH_OPS})
        if relevant == ALL_ON:
            return self.torch_ops
        if relevant not in self._others:
            self._others[relevant] = TorchCell(self.body, self.sparse, relevant)
        return self._others[relevant]

    @property
    def is_current(self) -> bool:
        """Whether the tensors found in the body are still like those that it was captured with."""
        with DisableTorchFunction():
            return all(map(operator.eq, map(_likeness, self.enclosed), self.enclosed_as))

    @cached_property
    def likeness(self) -> int:
        """A number that cells share which differ in their shared tensors alone."""
        return hash(str(self.body.head()))

    def unflatten(self, values: Sequence[Any]) -> Any:
        """The function's own result tree with `values` for its tensors; constants as they were at capture."""
        given = iter(values)
        return pytree.tree_unflatten([next(given) if leaf is None else leaf[0] for leaf in self.leaves], self.tree)

    @cached_property
    def num_ops(self) -> int:
        return sum(op.target not in VIEWS for op in self.body.head().ops)

    @property
    def reason(self) -> str | None:
        """Why it would run one by one: a compiled cell never does."""
        return None

    def differentiable(self, need_rows: Mask, need_shared: Mask) -> Mask:
        """Per output: does its gradient flow to something that wants one?"""
        known = self._differentiable.get((need_rows, need_shared))
        if known is not None:
            return known
        needed = {i for i, need in enumerate((*need_rows, *need_shared)) if need}
        found = tuple(not needed.isdisjoint(reached) for reached in self.body.reach)
        return self._differentiable.setdefault((need_rows, need_shared), found)

    def hoisted(self, recurrent: Mask) -> Hoisted | None:
        """The cell in two parts, of which one reads no recurrent row and runs ahead; made once per choice.

        None when that does not pay or cannot be done. A cell with arguments that have no gradient stays whole.
        """
        if recurrent not in self._hoisted:
            found = None
            if self.again is not None and not self.constant:
                with suppress(CaptureError):
                    parts = hoist(self.body, self.again, recurrent)
                    found = parts and Hoisted(*(_part(self.name, part) for part in parts))
            is_same = found is not None and found.main.kernel.outputs == self.outputs
            self._hoisted[recurrent] = found if is_same else None
        return self._hoisted[recurrent]

    @property
    def source(self) -> str:
        """The code of all programs so far, for people: what runs fused, and what runs as torch ops. Of a cell that has
        not run yet: inference as torch ops.
        """
        fused = [text for cell in self.fused.values() for text in cell.sources]
        if not fused and not self.torch_ops.sources:
            _ = self.torch_ops.infer
        return "\n".join([*fused, *self.torch_ops.sources])


@dataclass(frozen=True)
class HoistedPart:
    """A part of a hoisted cell, and which of the cell's rows and explicit shared inputs it reads, in its order."""

    kernel: CompiledCell
    rows: tuple[int, ...]
    shared: tuple[int, ...]


@dataclass(frozen=True)
class Hoisted:
    """A cell in two parts: the results of `ahead` are the last rows of `main`."""

    ahead: HoistedPart
    main: HoistedPart


def compile_cell(
    function: Callable[..., Any], rows: Sequence[Spec], shared: Sequence[Spec] = (), *, name: str
) -> CompiledCell:
    """Captures `function(*rows, *shared)` for one example and compiles it for batches.

    Grad mode and autocast are those of the caller. Errors of the function itself pass through.

    Raises:
        CaptureError: the body is no fixed functional graph, or an op in it cannot be batched.
    """
    again = Recapture.of(function, rows, shared)
    return replace(_compile(capture(function, rows, shared), tuple(shared), name), again=again)


def _compile(captured: Captured, shared: tuple[Spec, ...], name: str) -> CompiledCell:
    body = simplify(captured.body)
    outputs = tuple(body.spec(v) for v in body.outputs)
    torch_ops = TorchCell(body, captured.sparse)
    torch_ops.rehearse()
    return CompiledCell(
        name, body.rows, shared, captured.enclosed, outputs, captured.leaves, captured.tree, body,
        captured.sparse, torch_ops, captured.writes, captured.same, captured.views,
        tuple(map(_likeness, captured.enclosed)),
    )  # fmt: skip


def _likeness(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _part(name: str, part: CapturedPart) -> HoistedPart:
    num_shared = len(part.shared)
    kernel = _compile(part.captured, part.captured.body.shared[:num_shared], name)
    return HoistedPart(kernel, part.rows, part.shared)
