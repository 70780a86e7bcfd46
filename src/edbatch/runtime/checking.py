"""Checks for tests: what `Plan`, `Needs` and `Compiled` promise is computed again, slowly, in plain Python and numpy.

In: one of these, and what it was made of. Out: nothing, or an error that names the first fault.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edbatch.layout.layout import unpack
from edbatch.layout.reads import Reads, parse, require_same
from edbatch.recording.results import Results
from edbatch.recording.types.recording import Recording
from edbatch.runtime.compilation import Compiled
from edbatch.runtime.needs import Needs
from edbatch.runtime.plan import Plan

Bools = NDArray[np.bool_]


def check_plan(plan: Plan) -> None:
    """Raise an error unless all parts of a plan are right and belong to one mini-batch; see `Plan.check`."""
    recording, graph, schedule = plan.recording, plan.graph, plan.schedule
    recording.check()
    graph.check()
    if graph.type_names != tuple(t.name for t in recording.node_types):
        raise AssertionError("the graph has other types than the recording")
    require_same("types of the graph", graph.types, recording.types)
    node, _, _, value = parse(recording.types, recording.args, recording.table).refs()
    is_inside = value >= 0
    require_same("inputs of the graph", graph.inputs, unpack(value[is_inside])[0])
    num_inputs = np.bincount(node[is_inside], minlength=len(recording.types))
    require_same("inputs of each node of the graph", np.diff(graph.offsets), num_inputs)
    schedule.check(graph)
    plan.layout.check(graph, recording.args, recording.table, schedule, *recording.outside_rows)


def check_needs(needs: Needs, recording: Recording, results: Results) -> None:
    """Raise an AssertionError unless these are the needs of the recording and its results; see `Needs.check`."""
    types, table = recording.node_types, recording.table
    for name, masks, counts in (
        ("rows", needs.rows, [len(t.slots) for t in types]),
        ("shared", needs.shared, [len(t.shared) for t in types]),
        ("outs", needs.outs, [len(t.kernel.outputs) for t in types]),
    ):
        require_same(f"length of {name}, by type", [len(mask) for mask in masks], counts)
    for node_type, mask in zip(types, needs.shared, strict=True):
        if mask != tuple(t.requires_grad for t in node_type.shared):
            raise AssertionError(f"shared tensors of {node_type} take part that need no gradient, or the other way")
    reads = parse(recording.types, recording.args, table).refs()
    by_output, by_outside = _feeds(recording, reads)
    require_same("by_output", needs.by_output, by_output)
    slots = by_outside | (by_output & needs.differentiable).any(axis=1)
    require_same("rows, by slot", [need for mask in needs.rows for need in mask], slots)
    asked = zip(types, needs.rows, needs.shared, strict=True)
    outputs = [need for t, rows, shared in asked for need in t.kernel.differentiable(rows, shared)]
    require_same("differentiable, by output", needs.differentiable, outputs)
    reached = _reached(recording, needs, by_output, slots, results)
    require_same("outs, by output", [need for mask in needs.outs for need in mask], reached)
    for group in results.groups:
        flat, from_outside = recording.outputs_of(group.refs), group.refs[group.refs < 0].tolist()
        expected = needs.differentiable[flat].any() or any(
            recording.outside[-1 - r].requires_grad for r in from_outside
        )
        if group.needs_grad != expected:
            raise AssertionError(f"{group} says {group.needs_grad} of its gradient")


def check_compiled(compiled: Compiled, plan: Plan, needs: Needs | None) -> None:
    """Raise an AssertionError unless these are the programs of a plan's types; see `Compiled.check`."""
    types = plan.recording.node_types
    require_same("number of forms and of programs", [len(compiled.forms), len(compiled.programs)], [len(types)] * 2)
    trains = [needs is not None and any(needs.outs[t]) for t in range(len(types))]
    require_same("whether there is a backward, by type", [p.backward is not None for p in compiled.programs], trains)
    for t, (node_type, programs) in enumerate(zip(types, compiled.programs, strict=True)):
        if programs.backward is None and (programs.saved or programs.deferred):
            raise AssertionError(f"{node_type} keeps values for a backward that it does not have")
        slots = {*programs.finish_rows, *programs.scatters}
        if not slots <= set(range(len(node_type.slots))):
            raise AssertionError(f"the programs of {node_type} read operands {sorted(slots)}")
        wanted = needs.rows[t] if needs is not None else ()
        if not all(slot < len(wanted) and wanted[slot] for slot in programs.scatters):
            raise AssertionError(f"{node_type} writes gradients of operands {programs.scatters} that need none")


def _feeds(recording: Recording, reads: Reads) -> tuple[Bools, Bools]:
    """Which outputs each slot reads, and which slots read a tensor of an example that needs a gradient."""
    table, value = recording.table, reads.value
    outside = np.array([t.requires_grad for t in recording.outside], dtype=np.bool_)
    by_output = np.zeros((len(table.kinds), len(table.output_arenas)), dtype=np.bool_)
    by_outside = np.zeros(len(table.kinds), dtype=np.bool_)
    is_inside = value >= 0
    by_output[reads.slot[is_inside], recording.outputs_of(value)] = True
    by_outside[reads.slot[~is_inside][outside[-1 - value[~is_inside]]]] = True
    return by_output, by_outside


def _reached(recording: Recording, needs: Needs, by_output: Bools, slots: Bools, results: Results) -> Bools:
    """The outputs that gradients of results reach, step by step, through the slots of their types."""
    table = recording.table
    found = np.zeros(len(needs.differentiable), dtype=np.bool_)
    for group in results.groups:
        found[recording.outputs_of(group.refs)] = True
    todo = np.flatnonzero(found & needs.differentiable).tolist()
    seen = set(todo)
    while todo:
        t = int(np.searchsorted(table.output_starts, todo.pop(), side="right")) - 1
        for slot in range(table.starts[t], table.starts[t + 1]):
            if slots[slot]:
                new = set(np.flatnonzero(by_output[slot] & needs.differentiable).tolist()) - seen
                seen |= new
                todo += new
    return np.isin(np.arange(len(found)), list(seen))
