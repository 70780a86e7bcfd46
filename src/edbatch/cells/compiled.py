"""A compiled cell: the captured body of a function of one example, as batch-first programs.

In: a function and the specs of one example's arguments. Out: a `CompiledCell`, which computes B rows at once, and for
training a `Training` per set of wanted gradients. All programs are plain Python over torch calls
(`print(cell.source)`); they expect tensors that need no gradient and give back such tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from edbatch.cells.body.body import Body
from edbatch.cells.body.program import Emitted, Program
from edbatch.cells.body.simplify import simplify
from edbatch.cells.body.split import Split, infer, prologue, split
from edbatch.cells.capture.capture import Captured, capture
from edbatch.cells.capture.cut_points import Piece, hoist
from edbatch.cells.capture.recapture import Recapture
from edbatch.cells.kernel import Kernel, Mask, Reads, Take
from edbatch.cells.torch_ops.emit import emit
from edbatch.cells.torch_ops.verify import Verification
from edbatch.errors import CaptureError
from edbatch.spec import Spec
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction

if TYPE_CHECKING:
    from edbatch.cells.fused.cell import FusedCell


@dataclass(frozen=True)
class Training:
    """The programs that train a cell, for one choice of wanted gradients.

    `saved` and `deferred` are the specs of the per-row buffers to provide. A mask says which rows or outputs a
    program reads; the others may be None. Gradients that `backward` returns may share memory with each other and with
    its arguments.
    """

    saved: tuple[Spec, ...]
    deferred: tuple[Spec, ...]
    backward_rows: Mask
    backward_outs: Mask
    backward_grads: Mask
    finish_rows: Mask
    finish_outs: Mask
    plan: Split
    programs: tuple[Emitted, Emitted, Emitted]
    forward: Callable[..., None]
    backward: Callable[..., tuple[torch.Tensor | None, ...]]
    finish: Callable[..., tuple[torch.Tensor | None, ...]]

    @property
    def source(self) -> str:
        return "\n".join(program.source for program in self.programs)


@dataclass(frozen=True)
class CompiledCell:
    """A cell ready to run on B rows at once.

    Args:
        rows, shared: the specs of the explicit arguments. `bound`: real tensors found in the body; they follow the
        explicit shared ones wherever shared values are given.
        outputs: the specs of the tensor leaves of the result. `unflatten` puts values in their place.
        prologue(shared_and_bound): the shared values of a mini-batch, to be handed to every program as `pro`.
        infer(B, rows, pro, outs): writes the outputs of B rows.
    """

    name: str
    rows: tuple[Spec, ...]
    shared: tuple[Spec, ...]
    bound: tuple[torch.Tensor, ...]
    outputs: tuple[Spec, ...]
    leaves: tuple[tuple[Any] | None, ...]
    tree: pytree.TreeSpec
    body: Body
    sparse: frozenset[int]
    programs: tuple[Emitted, Emitted]
    infer: Callable[..., None]
    verification: Verification = field(repr=False, compare=False)
    changes: tuple[torch.Tensor, ...] = field(default=(), init=False)
    writes: tuple[int, ...] = ()  # rows that it writes in place: their new values are the last outputs
    same: tuple[int | None, ...] = ()  # of each result that is one of these rows itself, which
    views: tuple[frozenset[int], ...] = ()  # of each output the rows whose memory it shares; -1 for anything else
    bound_as: tuple[Any, ...] = field(default=(), repr=False)  # what the bound tensors were like at capture
    constant: tuple[int, ...] = ()  # arguments (rows, then shared) for which it has no gradient
    wanting: Callable[[Mask], Kernel] | None = field(default=None, repr=False, compare=False)  # see `wanted_gradients`
    again: Recapture | None = field(default=None, repr=False, compare=False)
    _hoisted: dict[Mask, Hoisted | None] = field(default_factory=dict, repr=False, compare=False)
    _differentiable: dict[tuple[Mask, Mask], Mask] = field(default_factory=dict, repr=False, compare=False)
    _trainings: dict[tuple[Mask, Mask, Mask], Training] = field(default_factory=dict, repr=False, compare=False)
    _fused: dict[tuple[Reads, bool], FusedCell | None] = field(default_factory=dict, repr=False, compare=False)

    def fused(self, reads: Reads, exact_math: bool) -> FusedCell | None:
        """The cell as launches of fused kernels, for the CPU; see `FusedCell`. None if that was given up."""
        if (reads, exact_math) not in self._fused:
            from edbatch.cells.fused.cell import FusedCell  # at first use: it imports numba

            self._fused.setdefault((reads, exact_math), FusedCell(self, reads, exact_math))
        return self._fused[reads, exact_math]

    def give_up(self, fused: FusedCell) -> None:
        """A fused form cannot be made: it is not tried again."""
        self._fused[fused.reads, fused.exact_math] = None

    @property
    def is_current(self) -> bool:
        """Whether the tensors found in the body are still like those that it was captured with."""
        with DisableTorchFunction():
            return all(map(operator.eq, map(_likeness, self.bound), self.bound_as))

    def prologue(self, shared_and_bound: Sequence[torch.Tensor], take: Take = Spec.empty) -> tuple[torch.Tensor, ...]:
        values: tuple[torch.Tensor, ...] = self.programs[0].function([t.detach() for t in shared_and_bound], take)
        return values

    def unflatten(self, values: Sequence[Any]) -> Any:
        """The function's own result tree with `values` for its tensors; constants as they were at capture."""
        given = iter(values)
        return pytree.tree_unflatten([next(given) if leaf is None else leaf[0] for leaf in self.leaves], self.tree)

    @property
    def can_train(self) -> Mask:
        """Per shared input (explicit, then bound): can a gradient flow to it?"""
        return tuple(g is not None for g in self.body.shared_grads)

    def rehearse(self) -> None:
        """Make the programs of training with all gradients, to find out now whether they can be made.

        Raises:
            CaptureError: an op of the backward cannot be batched.
        """
        if self.body.tangents:
            row_grads = tuple(g is not None for g in self.body.row_grads)
            self.training(row_grads, self.can_train, tuple(t is not None for t in self.body.tangent_of))

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

    def training(self, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> Training:
        """The training programs for the wanted gradients; made once per choice.

        Args:
            need_rows, need_shared: which inputs want a gradient. need_outs: which outputs receive one.
        """
        key = (tuple(need_rows), tuple(need_shared), tuple(need_outs))
        if key not in self._trainings:
            self._trainings[key] = _training(self, *key)
        return self._trainings[key]

    def hoisted(self, recurrent: Mask) -> Hoisted | None:
        """The cell in two parts, of which one reads no recurrent row and runs ahead; made once per choice.

        None when that does not pay or cannot be done. A cell with arguments that have no gradient stays whole.
        """
        if recurrent not in self._hoisted:
            found = None
            if self.again is not None and not self.constant:
                with suppress(CaptureError):
                    pieces = hoist(self.body, self.again, recurrent)
                    found = pieces and Hoisted(*(_part(self.name, piece) for piece in pieces))
            is_same = found is not None and found.main.kernel.outputs == self.outputs
            self._hoisted[recurrent] = found if is_same else None
        return self._hoisted[recurrent]

    @property
    def source(self) -> str:
        """The code of inference: what runs fused, as far as it was asked for, and what runs elsewhere."""
        fused = [text for cell in self._fused.values() if cell for text in cell.sources]
        return "\n".join([*fused, *(program.source for program in self.programs)])


@dataclass(frozen=True)
class Part:
    """A part of a hoisted cell, and which of the cell's rows and explicit shared inputs it reads, in its order."""

    kernel: CompiledCell
    rows: tuple[int, ...]
    shared: tuple[int, ...]


@dataclass(frozen=True)
class Hoisted:
    """A cell in two parts: the results of `ahead` are the last rows of `main`."""

    ahead: Part
    main: Part


def compile_cell(
    function: Callable[..., Any], rows: Sequence[Spec], shared: Sequence[Spec] = (), *, name: str
) -> CompiledCell:
    """Captures `function(*rows, *shared)` for one example and compiles it for batches.

    Grad mode and autocast are those of the caller. Errors of the function itself pass through.

    Raises:
        CaptureError: the body is no fixed functional graph, or an op in it cannot be batched.
    """
    cell = _compile(capture(function, rows, shared), tuple(shared), name)
    return replace(cell, again=Recapture.of(function, rows, shared))


def _compile(captured: Captured, shared: tuple[Spec, ...], name: str) -> CompiledCell:
    body = simplify(captured.body)
    programs = (emit(body, prologue(body)), emit(body, infer(body)))
    outputs = tuple(body.spec(v) for v in body.outputs)
    verification = Verification(body, outputs, programs[0])
    verification.infer(programs[1])
    return CompiledCell(
        name, body.rows, shared, captured.bound, outputs, captured.leaves, captured.tree, body,
        captured.sparse, programs, programs[1].function, verification, captured.writes, captured.same, captured.views,
        tuple(map(_likeness, captured.bound)),
    )  # fmt: skip


def _likeness(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _part(name: str, piece: Piece) -> Part:
    num_shared = len(piece.shared)
    kernel = _compile(piece.captured, piece.captured.body.shared[:num_shared], name)
    kernel.rehearse()
    return Part(kernel, piece.rows, piece.shared)


def _training(cell: CompiledCell, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> Training:
    plan = split(cell.body, need_rows, need_shared, need_outs, cell.sparse)
    programs = emit(plan.body, plan.forward), emit(plan.body, plan.backward), emit(plan.body, plan.finish)
    num_rows, num_outs = len(cell.rows), len(cell.outputs)
    cell.verification.training(programs, plan.saved, plan.deferred)
    return Training(
        plan.saved, plan.deferred,
        _reads(plan.backward, "rows", num_rows), _reads(plan.backward, "outs", num_outs),
        _reads(plan.backward, "out_grads", num_outs), _reads(plan.finish, "rows", num_rows),
        _reads(plan.finish, "outs", num_outs),
        plan, programs, *(program.function for program in programs),
    )  # fmt: skip


def _reads(program: Program, name: str, count: int) -> Mask:
    read = {(place.group, place.number) for place in program.inputs.values()}
    return tuple((name, i) in read for i in range(count))
