"""What needs a gradient: which operands, shared tensors and outputs of every type of node take part in backward.

In: a `Recording` and its results. Out: `Needs`, or None if nothing needs a gradient. It is found as a fixpoint over
types: whether a value needs a gradient depends on the values that it is computed from, perhaps of the same type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edbatch.cells.kernel import Mask
from edbatch.layout.layout import SlotTable
from edbatch.recording.results import Group, Results
from edbatch.recording.types.recording import Recording
from edbatch.recording.types.type_set import NodeType

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Needs:
    """For every type: which slots (places of operands), shared tensors and outputs take part in backward.

    differentiable: for every output of every type, in one array, whether it depends on something that needs a gradient.
    by_output: for every slot of every type, in one array, which outputs it reads.
    """

    rows: tuple[Mask, ...]
    shared: tuple[Mask, ...]
    outs: tuple[Mask, ...]
    differentiable: Bools
    by_output: Bools

    def reached(self, types: Sequence[NodeType], table: SlotTable, results: Bools) -> list[Mask]:
        """The outputs of each type that gradients of some of the results reach."""
        passes, found = self._passing(types, table), self.differentiable & results
        while True:
            is_read = (passes & found).any(axis=1)
            before, found = found, self.differentiable & (results | self.by_output[is_read].any(axis=0))
            if np.array_equal(before, found):
                return [tuple(found[a:b].tolist()) for a, b in pairwise(table.output_starts.tolist())]

    def _passing(self, types: Sequence[NodeType], table: SlotTable) -> Bools:
        """For each slot that wants a gradient, the outputs of its type whose gradients flow to it."""
        found = np.zeros((len(self.by_output), len(self.differentiable)), np.bool_)
        for t, (node_type, rows) in enumerate(zip(types, self.rows, strict=True)):
            outputs = slice(table.output_starts[t], table.output_starts[t + 1])
            for slot in (slot for slot, need in enumerate(rows) if need):
                alone = tuple(other == slot for other in range(len(rows)))
                found[table.starts[t] + slot, outputs] = differentiable(
                    node_type, alone, (False,) * len(node_type.shared)
                )
        return found

    def reached_outside(self, recording: Recording, reached: Sequence[Mask], groups: Iterable[Group]) -> list[Tensor]:
        """The tensors of examples that gradients flow to: operands that outputs which are reached depend on, or results
        themselves."""
        from edbatch.layout.layout_loops import read_from_outside

        if not any(t.requires_grad for t in recording.outside):
            return []
        table = recording.table
        passes = self._passing(recording.node_types, table)
        asked = (passes & np.array([is_on for outs in reached for is_on in outs], np.bool_)).any(axis=1)
        is_read = read_from_outside(
            recording.types,
            recording.args,
            table.starts,
            table.kinds,
            asked,
            len(recording.outside),
        )
        for group in groups:
            is_read[-1 - group.refs[group.refs < 0]] = True
        return [t for t, read in zip(recording.outside, is_read.tolist(), strict=True) if read and t.requires_grad]

    def check(self, recording: Recording, results: Results) -> None:
        """Raise an AssertionError that names the first fault, if there is one.

        A slot takes part if a value that it reads does; an output if its kernel says so; and both only if they reach a
        result that needs a gradient. This is found again from the references of nodes.
        """
        from edbatch.runtime.checking import check_needs

        check_needs(self, recording, results)

    def __repr__(self) -> str:
        outputs = sum(map(sum, self.outs))
        return f"Needs({outputs} outputs of {sum(map(any, self.outs))} types take part in backward)"


def differentiable(node_type: NodeType, rows: Mask, shared: Mask) -> Mask:
    """The outputs of a type whose gradients flow to some of these operands or shared tensors."""
    return node_type.kernel.differentiable(rows, shared)


def needs_of_results(recording: Recording, results: Results) -> tuple[Needs | None, Results]:
    """What takes part in backward, None when nothing does; and the results, with `needs_grad` set."""
    from_inside = not recording.outside or all((group.refs >= 0).all() for group in results.groups)
    if from_inside and not recording.type_set.can_differentiate:
        return None, results  # everything was recorded under no_grad
    if not any(t.requires_grad for node_type in recording.node_types for t in node_type.shared) and not any(
        t.requires_grad for t in recording.outside
    ):
        return None, results
    outputs = [recording.outputs_of(group.refs) for group in results.groups]
    is_result = np.zeros(len(recording.table.output_arenas), dtype=np.bool_)
    for flat in outputs:
        is_result[flat] = True
    needs, groups = find_needs(recording, is_result), []
    for group, flat in zip(results.groups, outputs, strict=True):
        from_outside = any(recording.outside[-1 - ref].requires_grad for ref in group.refs[group.refs < 0])
        groups.append(replace(group, needs_grad=from_outside or bool(needs.differentiable[flat].any())))
    if not any(group.needs_grad for group in groups):
        return None, results
    return needs, replace(results, groups=tuple(groups))


def find_needs(recording: Recording, results: Bools) -> Needs:
    """Which slots, shared tensors and outputs need gradients, given which outputs (of all types) are results."""
    from edbatch.layout.layout_loops import feeds

    table, types = recording.table, recording.node_types
    outside = np.array([t.requires_grad for t in recording.outside], dtype=np.bool_)
    by_output, by_outside = feeds(
        recording.types, recording.args, table.starts, table.kinds, table.output_starts, outside
    )
    shared = tuple([tuple([t.requires_grad for t in node_type.shared]) for node_type in types])
    key = shared, by_output.tobytes(), by_outside.tobytes(), results.tobytes()
    return recording.type_set.keep(key, lambda: _fixpoint(types, table, shared, by_output, by_outside, results))


def reached_outputs(table: SlotTable, by_output: Bools, differentiable: Bools, slots: Bools, results: Bools) -> Bools:
    """The outputs (of all types) that gradients of results reach, through types that pass them on to `slots`."""
    type_of_slot = np.repeat(np.arange(len(table.starts) - 1), np.diff(table.starts))
    type_of_output = np.repeat(np.arange(len(table.starts) - 1), np.diff(table.output_starts))
    found = differentiable & results
    while True:
        is_reached = np.zeros(len(table.starts) - 1, dtype=np.bool_)
        is_reached[type_of_output[found]] = True
        before, found = found, differentiable & (results | by_output[slots & is_reached[type_of_slot]].any(axis=0))
        if np.array_equal(before, found):
            return found


def _fixpoint(
    types: Sequence[NodeType],
    table: SlotTable,
    shared: tuple[Mask, ...],
    by_output: Bools,
    by_outside: Bools,
    results: Bools,
) -> Needs:
    differentiable = np.zeros(len(table.output_arenas), dtype=np.bool_)
    while True:
        slots = by_outside | (by_output & differentiable).any(axis=1)
        rows = tuple(tuple(slots[table.starts[t] : table.starts[t + 1]].tolist()) for t in range(len(types)))
        now = [
            need for t, node_type in enumerate(types) for need in node_type.kernel.differentiable(rows[t], shared[t])
        ]
        before, differentiable = differentiable, np.array(now, dtype=np.bool_)
        if np.array_equal(before, differentiable):
            break
    wanted = reached_outputs(table, by_output, differentiable, slots, results)
    outs = tuple(tuple(wanted[table.output_starts[t] : table.output_starts[t + 1]].tolist()) for t in range(len(types)))
    return Needs(rows, shared, outs, differentiable, by_output)


def with_wanted_gradients(recording: Recording) -> Recording:
    """The recording with kernels for just the wanted gradients, where a cell cannot have all gradients at once."""
    while any(node_type.kernel.wanting is not None for node_type in recording.node_types):
        needs = find_needs(recording, np.zeros(len(recording.table.output_arenas), dtype=np.bool_))
        types = tuple(map(_wanting, recording.node_types, needs.rows, needs.shared))
        if types == recording.node_types:
            break
        recording = replace(recording, node_types=types)
    return recording


def _wanting(node_type: NodeType, rows: Mask, shared: Mask) -> NodeType:
    kernel = node_type.kernel
    given = len(shared) - len(kernel.enclosed)
    now = kernel if kernel.wanting is None else kernel.wanting((*rows, *shared[:given]))
    if now is kernel:
        return node_type
    return replace(node_type, kernel=now, shared=(*node_type.shared[:given], *now.enclosed))
