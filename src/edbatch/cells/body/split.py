"""Splitting: from a joint body (outputs and gradients of a cell) to the programs that run in a mini-batch.

In: a body and which gradients are wanted. Out: a `Split`: forward (writes outputs, and saves what backward needs),
backward (gradients of operands, and what finish needs) and finish (gradients of shared inputs such as weights, once for
all rows of the mini-batch). Views are never stored: each program makes them again from the viewed value.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from edbatch.cells.body.body import VIEWS, Body, Draft, Val, live_values
from edbatch.cells.body.linear import EMBED, SPARSE, Summing, is_zero, without_tangents
from edbatch.cells.body.program import Place, Program
from edbatch.cells.body.stack_sums import stack_sums
from edbatch.spec import Spec

aten = torch.ops.aten


@dataclass(frozen=True)
class Split:
    """The programs, over `body` (the cell's body and the ops that splitting added), and the specs of the values kept
    between them: `saved` from forward to backward, `deferred` from backward to finish. Inference has only `forward`."""

    body: Body
    forward: Program
    backward: Program | None = None
    finish: Program | None = None
    saved: tuple[Spec, ...] = ()
    deferred: tuple[Spec, ...] = ()


def prologue_values(body: Body) -> tuple[Val, ...]:
    """The shared values that are results, or operands of ops that run per row: computed once per mini-batch."""
    read = {v.index for i, op in enumerate(body.ops) if body.is_row[body.num_inputs + i] for v in op.operands}
    read |= {v.index for v in body.results}
    return tuple(Val(i) for i in sorted(read) if not body.is_row[i])


def prologue(body: Body) -> Program:
    first = len(body.rows)
    inputs = {first + i: Place("given", i) for i in range(len(body.shared))}
    wanted = prologue_values(body)
    ops = tuple(sorted(i for i in live_values(body, wanted) if i >= body.num_inputs))
    return Program("prologue", "given, take", inputs, ops, returns=wanted)


def inference(body: Body) -> Split:
    """The only program of inference, which computes the outputs."""
    places = _Places(body)
    ops, inputs = places.walk(body.outputs, stored=False)
    dests = {Place("outs", k): v for k, v in enumerate(body.outputs)}
    return Split(body, Program("infer", "B, rows, pro, outs, saved", inputs, ops, dests))


def split(
    body: Body,
    need_rows: Sequence[bool],
    need_shared: Sequence[bool],
    need_outs: Sequence[bool],
    sparse: frozenset[int],
    *,
    stack: bool = True,
) -> Split:
    """Splits a joint body for the wanted gradients; `stack`s those of weights that share an operand."""
    draft = Draft.of(body)
    absent = {t.index for t, need in zip(body.tangent_of, need_outs, strict=True) if t is not None and not need}
    now = without_tangents(draft, body, absent)
    row_grads = [now[g.index] if g is not None and n else None for g, n in zip(body.row_grads, need_rows, strict=True)]
    row_grads = [None if g is None or is_zero(draft, g) else g for g in row_grads]  # nothing to add: of ceil, say
    shared_grads = [
        now[g.index] if g is not None and n else None for g, n in zip(body.shared_grads, need_shared, strict=True)
    ]
    summing = Summing(draft, {*range(len(body.rows)), *(v.index for v in body.outputs)})
    for grad in shared_grads:
        if grad is not None:
            summing.collect(grad)
    totals = [None if g is None else summing.summed(g) for g in shared_grads]
    totals = stack_sums(draft, totals) if stack else totals
    totals = [_sparse(draft, t) if t is not None and i in sparse else t for i, t in enumerate(totals)]
    return _programs(draft.body(body), row_grads, totals, summing.sums)


def _programs(body: Body, row_grads: list[Val | None], totals: list[Val | None], sums: list[Val]) -> Split:
    places = _Places(body)
    finish_ops, finish_inputs = places.walk([t for t in totals if t is not None])
    deferred = [Val(i) for i in places.deferred]
    wanted = [*(g for g in row_grads if g is not None), *deferred, *sums]
    backward_ops, backward_inputs = places.walk(wanted, inside=True)
    saved = [Val(i) for i in places.saved]
    forward_ops, forward_inputs = places.walk([*body.outputs, *saved], stored=False)
    outs = {Place("outs", k): v for k, v in enumerate(body.outputs)}
    return Split(
        body,
        Program("forward", "B, rows, pro, outs, saved", forward_inputs, forward_ops,
                outs | {Place("saved", k): v for k, v in enumerate(saved)}),
        Program("backward", "B, rows, outs, saved, pro, out_grads, deferred, sums", backward_inputs, backward_ops,
                {Place("deferred", k): v for k, v in enumerate(deferred)}, tuple(enumerate(sums)), tuple(row_grads)),
        Program("finish", "B, rows, outs, saved, pro, out_grads, deferred, sums", finish_inputs, finish_ops,
                returns=tuple(totals)),
        tuple(body.spec(v) for v in saved),
        tuple(body.spec(v) for v in deferred),
    )  # fmt: skip


class _Places:
    """Where stored values are found. A value that a program reads and that is not stored yet becomes a saved one, if
    forward computes it, else a deferred one."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.forward = live_values(body, body.outputs)
        for i, op in enumerate(body.ops):  # all parts of a tuple that forward makes are forward values
            if op.target is operator.getitem and op.args[0].index in self.forward:
                self.forward.add(body.num_inputs + i)
        self.saved: list[int] = []
        self.deferred: list[int] = []
        self.rows = {i: Place("rows", i) for i in range(len(body.rows))}
        self.shared = {v.index: Place("pro", k) for k, v in enumerate(prologue_values(body.head()))}
        first = len(body.rows) + len(body.shared)
        used = {t.index: k for k, t in enumerate(body.tangent_of) if t is not None}
        self.tangents = {first + i: Place("out_grads", used[first + i]) for i in range(len(body.tangents))}
        self.outs: dict[int, Place] = {}
        for k, value in enumerate(body.outputs):
            if body.is_row[value.index] and value.index >= body.num_inputs:
                self.outs.setdefault(value.index, Place("outs", k))
                while (made := body.op(value)) is not None and made.target is aten.view.default:
                    value = made.args[0]
                if value.index >= body.num_inputs:
                    self.outs.setdefault(value.index, Place("outs", k, body.spec(body.outputs[k]).shape))

    def walk(
        self, wanted: Sequence[Val], stored: bool = True, inside: bool = False
    ) -> tuple[tuple[int, ...], dict[int, Place]]:
        """The ops that compute the wanted values, and where their inputs are found.

        Args:
            stored: whether outputs and forward's values are read from memory instead of computed.
            inside: whether backward's values are computed instead of read as deferred ones.
        """
        inputs: dict[int, Place] = {}
        ops: set[int] = set()
        stack = [v.index for v in wanted]
        while stack:
            index = stack.pop()
            if index in inputs or index in ops:
                continue
            place = self._find(index, stored, inside)
            if place is not None:
                inputs[index] = place
                continue
            op = self.body.op(index)
            assert op is not None, f"value {index} is read where it is not at hand"
            ops.add(index)
            stack.extend(v.index for v in op.operands)
        return tuple(sorted(ops)), dict(sorted(inputs.items()))

    def _find(self, index: int, stored: bool, inside: bool) -> Place | None:
        known: Place | None = self.rows.get(index) or self.shared.get(index) or self.tangents.get(index)
        known = known or (self.outs.get(index) if stored else None)
        op = self.body.op(index)
        if known is not None or not self.body.is_row[index] or not stored or (op is not None and op.target in VIEWS):
            return known
        if index in self.forward:
            return Place("saved", _slot(self.saved, index))
        return None if inside else Place("deferred", _slot(self.deferred, index))


def _slot(slots: list[int], index: int) -> int:
    if index not in slots:
        slots.append(index)
    return slots.index(index)


def _sparse(draft: Draft, total: Val) -> Val:
    """The gradient of a table that was looked up with sparse=True is sparse, as long as nothing else flows into it."""
    op = draft.op(total)
    if op is not None and op.target is EMBED:
        return draft.call(SPARSE, *op.args, spec=op.spec)
    if op is not None and op.target is aten.add.Tensor and all(isinstance(a, Val) for a in op.args):
        made = [_sparse(draft, a) for a in op.args]
        if all((item := draft.op(m)) is not None and item.target is SPARSE for m in made):
            return draft.call(aten.add.Tensor, *made, spec=op.spec)
    return total
