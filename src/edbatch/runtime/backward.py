"""Gradients of a mini-batch: its batches in reverse, then the gradients of shared tensors over all rows at once.

One autograd.Function per call is wrapped around the forward that has already run.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edbatch.cells.kernel import Mask
from edbatch.errors import GradientError
from edbatch.recording.calls.shared import memory_of
from edbatch.recording.results import Group
from edbatch.runtime.arena import Lease
from edbatch.runtime.binding import Binding
from edbatch.runtime.execution import Execution
from edbatch.runtime.needs import differentiable
from edbatch.torch_insides.modes import DisableAutocast, keeps_graph
from edbatch.torch_insides.tensors import hooks_of
from edbatch.torch_state.outside_compile import outside_compile
from edbatch.torch_state.surroundings import Made, inside

LARGE = 1 << 21  # bytes of an arena; to find out what needs no zeros takes as long as to write some


class BatchedFunction(torch.autograd.Function):
    """Connects the results of a mini-batch to the tensors they depend on."""

    @staticmethod
    def forward(
        ctx: Any, execution: Execution, groups: Sequence[Group], results: list[Tensor], stopwatch: Any, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.execution, ctx.groups, ctx.stopwatch, ctx.inputs = execution, groups, stopwatch, inputs
        # Torch then checks that nobody changed them in between, but for what cells themselves write.
        written = {memory_of(t) for node_type in execution.types for t in node_type.kernel.changes}
        ctx.save_for_backward(*[t for t in inputs if not written or memory_of(t) not in written])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[r for r, group in zip(results, groups, strict=True) if not group.needs_grad])
        return tuple(results)

    @staticmethod
    @outside_compile
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise GradientError(
                "a batched call was differentiated with create_graph=True, but its backward can be differentiated no "
                "further. For a gradient penalty or another second-order gradient use batched.one_by_one(...) for that "
                "part of the loss"
            )
        ctx.saved_tensors  # noqa: B018  (raises if one was changed)
        execution: Execution = ctx.execution
        execution.check_memory()
        with ctx.stopwatch("backward"):
            total = inside((Made(DisableAutocast),), backward, execution, ctx.groups, grads)
        gradients = [total.get(id(tensor)) for tensor in ctx.inputs]
        for i, tensor in enumerate(ctx.inputs):
            if gradients[i] is None and (hooks_of(tensor) or is_distributed()):  # hooks expect a tensor
                gradients[i] = torch.zeros_like(tensor)
        if not keeps_graph():
            execution.lease.release()
        return None, None, None, None, *gradients


def backward(execution: Execution, groups: Sequence[Group], grads: Sequence[Tensor | None]) -> dict[int, Tensor]:
    """The gradients of all that needs one and is reached, by identity, given those of the results."""
    lease = Lease(execution.lease.pool, "gradients")
    arenas, ways = gradient_arenas(execution, lease, groups)
    for group, gradient in zip(groups, grads, strict=True):
        if gradient is not None and group.needs_grad:
            arena = arenas[execution.plan.recording.arena_of[group.spec]]
            assert arena is not None
            arena.index_add_(0, torch.from_numpy(execution.plan.group_rows(group)).to(arena.device), gradient)
    reached = _reached(execution, groups, grads)
    deferred: list[list[Tensor]] = [
        [lease.take(spec, size) for spec in programs.deferred]
        for programs, size in zip(execution.programs, execution.type_sizes, strict=True)
    ]
    sums: list[dict[Any, Any]] = [{} for _ in execution.types]
    launch = [
        programs.backward.bind(Binding(execution, t, lease).with_gradients(arenas, ways, deferred[t], sums[t]))
        if any(reached[t]) and programs.backward is not None
        else None
        for t, programs in enumerate(execution.programs)
    ]
    batch_types = execution.operands.batch_types
    for batch in range(len(batch_types) - 1, -1, -1):
        run = launch[batch_types[batch]]
        if run is not None:
            run(batch)
    total = _finish(execution, arenas, deferred, sums, reached)
    given = [group for group, gradient in zip(groups, grads, strict=True) if gradient is not None]
    _outside_gradients(execution, arenas, total, reached, given)
    lease.release()
    return total


def is_distributed() -> bool:
    """Whether every rank must give every parameter a gradient, whatever its graphs are."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _reached(execution: Execution, groups: Sequence[Group], grads: Sequence[Tensor | None]) -> list[Mask]:
    """Of each type the outputs that a gradient reaches: all that want one, if every result has one."""
    assert execution.needs is not None
    pairs = [(g, gradient) for g, gradient in zip(groups, grads, strict=True) if g.needs_grad]
    if all(gradient is not None for _, gradient in pairs):
        return list(execution.needs.outs)
    recording = execution.plan.recording
    is_result = np.zeros(len(recording.table.output_arenas), dtype=np.bool_)
    for group, gradient in pairs:
        if gradient is not None:
            is_result[recording.outputs_of(group.refs)] = True
    return execution.needs.reached(execution.types, recording.table, is_result)


def gradient_arenas(
    execution: Execution, lease: Lease, groups: Sequence[Group]
) -> tuple[list[Tensor | None], np.ndarray]:
    """Memory beside every arena in which some value needs a gradient: zeros, but for rows that are written once.

    Returns also whether the gradients of a batch's operand are added or stored; see `layout/gradient_rows`.
    """
    plan = execution.plan
    assert execution.needs is not None
    needed = set(plan.recording.table.output_arenas[execution.needs.differentiable].tolist())
    needed |= {
        plan.recording.arena_of[spec]
        for t, spec in zip(plan.recording.outside, plan.recording.outside_specs, strict=True)
        if t.requires_grad
    }
    arenas = [
        lease.take(spec, arena.shape[0]) if i in needed else None
        for i, (spec, arena) in enumerate(zip(plan.recording.arenas, execution.arenas, strict=True))
    ]
    large = [i for i, arena in enumerate(arenas) if arena is not None and arena.nbytes >= LARGE]
    ways, adds = _written_once(execution, groups, large)
    for i, arena in enumerate(arenas):
        if arena is not None and i in adds and 2 * len(adds[i]) < len(arena):
            arena.index_fill_(0, torch.from_numpy(adds[i]), 0)
        elif arena is not None:
            arena.zero_()
    return arenas, ways


def _written_once(
    execution: Execution, groups: Sequence[Group], large: list[int]
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Of each batch and slot, whether its gradients are added or stored; of large arenas the rows that need zeros."""
    from edbatch.layout.gradient_rows import ADD, stored_rows

    layout, width = execution.plan.layout, execution.plan.layout.slot_begin.shape[1]
    scatters = [programs.scatters for programs in execution.programs]
    if not large or not any(scatters):
        return np.full(layout.slot_begin.shape, ADD), {}
    rows: list[int] = layout.arena_rows.tolist()
    starts = dict(zip(large, accumulate((rows[i] for i in large), initial=0), strict=False))
    can_store = [[slot in found for slot in range(width)] for found in scatters]
    first_rows = [
        [starts.get(arena, -1) for arena in arenas] + [-1] * (width - len(arenas))
        for arenas in execution.operands.arena_of
    ]
    results = [np.empty(0, np.int64)]
    for group in groups:
        arena = execution.plan.recording.arena_of[group.spec]
        if arena in starts:
            results.append(starts[arena] + execution.plan.group_rows(group))
    ways, adds = stored_rows(
        layout.index, layout.slot_begin, layout.slot_size, execution.plan.schedule.batch_types,
        np.array(first_rows), np.array(can_store), np.concatenate(results), sum(rows[i] for i in large),
    )  # fmt: skip
    return ways, {i: np.flatnonzero(adds[start : start + rows[i]]) for i, start in starts.items()}


def _finish(
    execution: Execution,
    arenas: list[Tensor | None],
    deferred: list[list[Tensor]],
    sums: list[dict[Any, Any]],
    reached: list[Mask],
) -> dict[int, Tensor]:
    """The gradients of shared tensors, by identity: one product per weight and type over all rows of the mini-batch."""
    batches: dict[int, list[int]] = {}
    for batch, t in enumerate(execution.operands.batch_types):
        batches.setdefault(t, []).append(batch)
    total: dict[int, Tensor] = {}
    for t, node_type in enumerate(execution.types):
        programs = execution.programs[t]
        if programs.backward is None or not node_type.shared or not any(reached[t]):
            continue
        rows = [
            None
            if s not in programs.finish_rows
            else execution.kept[t][s]
            if s in execution.kept[t]
            else execution.operands.read_all(execution.arenas, batches[t], s)
            for s in range(len(node_type.slots))
        ]
        size = execution.type_sizes[t]
        outs, grads = execution.all_rows(execution.arenas, t), execution.all_rows(arenas, t)
        gradients = programs.finish(
            size, rows, outs, execution.saved[t], execution.prologues[t], grads, deferred[t], sums[t]
        )
        for k, (tensor, gradient) in enumerate(zip(node_type.shared, gradients, strict=True)):
            if gradient is not None and _reaches(execution, t, k, reached[t]):
                known = total.get(id(tensor))
                total[id(tensor)] = gradient if known is None else known + gradient
    return total


def _reaches(execution: Execution, t: int, shared: int, reached: Mask) -> bool:
    """Whether a gradient of these outputs of a type flows to a shared tensor: else it has none, instead of zeros."""
    assert execution.needs is not None
    if reached == execution.needs.outs[t]:
        return True
    node_type = execution.types[t]
    alone = tuple([other == shared for other in range(len(node_type.shared))])
    outputs = differentiable(node_type, (False,) * len(node_type.slots), alone)
    return any(map(operator.and_, outputs, reached))


def _outside_gradients(
    execution: Execution,
    arenas: list[Tensor | None],
    total: dict[int, Tensor],
    reached_outs: list[Mask],
    groups: Sequence[Group],
) -> None:
    """The gradients of tensors from outside, by identity; none where nothing that is reached reads one."""
    recording, needs = execution.plan.recording, execution.needs
    assert needs is not None
    reached = set(map(id, needs.reached_outside(recording, reached_outs, groups)))
    rows = recording.outside_rows[1].tolist()
    for tensor, spec, row in zip(recording.outside, recording.outside_specs, rows, strict=True):
        arena = arenas[recording.arena_of[spec]] if id(tensor) in reached else None
        if arena is not None:
            known = total.get(id(tensor))
            total[id(tensor)] = arena[row].clone() if known is None else known + arena[row]
