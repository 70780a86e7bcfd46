"""Checks a `Recording`: the calls of a mini-batch as flat arrays.

In: a `Recording`. Out: nothing, or an AssertionError that names the first thing at fault. All that later stages rely on
is worked out again in plain Python and numpy; tests do so in every batched call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from edbatch.layout.layout import Ints, Slot, unpack
from edbatch.layout.reads import OF_ROWS, lengths, parse, require, require_same
from edbatch.recording.types.recording import Recording
from edbatch.recording.types.type_set import NodeType
from edbatch.spec import Spec
from edbatch.torch_insides.modes import DisableTorchFunction

Bools = NDArray[np.bool_]


def check_recording(recording: Recording) -> None:
    """Raise an AssertionError unless all of a recording fits together; see `Recording.check`."""
    types, num_types = recording.types, len(recording.node_types)
    require(
        (types >= 0) & (types < num_types), lambda i: f"node {i} has type {types[i]}, but there are {num_types} types"
    )
    for node_type in recording.node_types:
        _check_type(node_type)
    _check_table(recording)
    _check_starts(recording.starts, len(types))
    _check_outside(recording)
    _check_reads(recording)


def check_refs(
    recording: Recording,
    refs: Ints,
    specs: Sequence[Spec | None],
    which: Ints,
    are_rows: Bools,
    what: Callable[[int], str],
) -> None:
    """Raise an AssertionError unless every reference leads to a value of the expected spec, of one row or of several.

    Args:
        which: for each reference the number of its spec in `specs`.
        are_rows: for each reference whether its value has several rows.
        what: the name of the reader, by the number of the reference.
    """
    types, num_nodes, num_outside = recording.node_types, len(recording.types), len(recording.outside)
    is_inside, (nodes, outputs) = refs >= 0, unpack(refs)
    require(
        is_inside | (refs >= -num_outside),
        lambda i: f"{what(i)} reads input {-1 - refs[i]} from outside, but there are {num_outside}",
    )
    require(~is_inside | (nodes < num_nodes), lambda i: f"{what(i)} reads node {nodes[i]}, but there are {num_nodes}")
    type_of = np.full(len(refs), -1)
    type_of[is_inside] = recording.types[nodes[is_inside]]
    counts = np.array([*[len(t.kernel.outputs) for t in types], 0], np.int64)
    require(
        ~is_inside | (outputs < counts[type_of]),
        lambda i: f"{what(i)} reads output {outputs[i]} of {types[type_of[i]]}, which has {counts[type_of[i]]}",
    )
    values = [(spec, per_row) for t in types for spec, per_row in zip(t.kernel.outputs, t.per_row, strict=True)]
    values += [(spec, False) for spec in recording.outside_specs]
    place = len(values) - num_outside - 1 - refs  # of inputs from outside, behind all outputs
    place[is_inside] = (np.cumsum(counts) - counts)[type_of[is_inside]] + outputs[is_inside]
    number = {spec: i for i, spec in enumerate({*specs, *[spec for spec, _ in values]})}
    found = np.array([number[spec] for spec, _ in values], np.int64)[place]
    require(
        found == np.array([number[spec] for spec in specs], np.int64)[which],
        lambda i: f"{what(i)} reads a value {values[place[i]][0]} as {specs[which[i]]}",
    )
    words = "one value", "rows"
    require(
        np.array([per_row for _, per_row in values], np.bool_)[place] == are_rows,
        lambda i: f"{what(i)} reads {words[not are_rows[i]]} as {words[bool(are_rows[i])]}",
    )


def _check_type(node_type: NodeType) -> None:
    slots, specs, kernel = node_type.slots, node_type.slot_specs, node_type.kernel
    if len(slots) != len(specs):
        raise AssertionError(f"{node_type} has {len(slots)} slots, but {len(specs)} specs of slots")
    if len(node_type.per_row) != len(kernel.outputs):
        raise AssertionError(f"{node_type} has {len(kernel.outputs)} outputs, but {len(node_type.per_row)} in per_row")
    for slot, spec in zip(slots, specs, strict=True):
        if (spec is None) != (slot == Slot.OFFSETS):
            raise AssertionError(f"{node_type} reads {slot.name} with the spec {spec}")
        if slot == Slot.DATA and spec is not None and spec.shape:
            raise AssertionError(f"{node_type} reads numbers with the spec {spec}")
    enclosed = node_type.shared[len(node_type.shared) - len(kernel.enclosed) :]
    if len(enclosed) != len(kernel.enclosed) or any(a is not b for a, b in zip(enclosed, kernel.enclosed, strict=True)):
        raise AssertionError(f"the last shared tensors of {node_type} are not those of its kernel")


def _check_table(recording: Recording) -> None:
    """The tables for all types together agree with each type by itself."""
    types, known, table = recording.node_types, recording.type_set, recording.table
    names, outputs = [t.name for t in types], [spec for t in types for spec in t.kernel.outputs]
    if len(set(names)) != len(names):
        raise AssertionError(f"two types have one name: {max(names, key=names.count)}")
    if known.names != tuple(names) or known.kernels != tuple(t.kernel for t in types):
        raise AssertionError("the set of types is of other types")
    require_same("starts of slots", table.starts, [*accumulate([len(t.slots) for t in types], initial=0)])
    require_same("kinds of slots", table.kinds, [slot for t in types for slot in t.slots])
    require_same("starts of outputs", table.output_starts, [*accumulate([len(t.per_row) for t in types], initial=0)])
    require_same("per_row", table.output_per_row, [per_row for t in types for per_row in t.per_row])
    for output, (arena, spec) in enumerate(zip(table.output_arenas.tolist(), outputs, strict=True)):
        if recording.arenas[arena] != spec:
            raise AssertionError(f"output {output} is {spec}, but its arena is of {recording.arenas[arena]}")


def _check_starts(starts: Ints, num_nodes: int) -> None:
    bounds = [*starts.tolist(), num_nodes]
    if bounds[0] != 0:
        raise AssertionError(f"the first example begins with node {bounds[0]}")
    require(np.diff(bounds) >= 0, lambda i: f"example {i} begins with node {bounds[i]}, the next with {bounds[i + 1]}")


def _check_outside(recording: Recording) -> None:
    """Tensors from outside have the specs that were noted, and a row of memory each."""
    with DisableTorchFunction():  # else a mode of the user's would be asked
        found = [Spec.of(tensor) for tensor in recording.outside]
    if len(found) != len(recording.outside_specs):
        raise AssertionError(f"{len(found)} inputs from outside have {len(recording.outside_specs)} specs")
    for i, (spec, known) in enumerate(zip(found, recording.outside_specs, strict=True)):
        if spec != known:
            raise AssertionError(f"input {i} from outside is {spec}, but was noted as {known}")
    counts, rows = recording.outside_rows
    number: Counter[Spec] = Counter()
    for i, (spec, row) in enumerate(zip(found, rows.tolist(), strict=True)):
        if row != number[spec]:
            raise AssertionError(f"input {i} from outside has row {row}, but is number {number[spec]} of {spec}")
        number[spec] += 1
    require_same("outside rows, by arena", counts, [number[spec] for spec in recording.arenas])


def _check_reads(recording: Recording) -> None:
    """Every slot reads what its type says: outputs of earlier nodes, or inputs from outside."""
    reads = parse(recording.types, recording.args, recording.table)
    node, slot, kind, value = reads.refs()
    producer = unpack(value)[0]
    require(
        (value < 0) | (producer < node), lambda i: f"node {node[i]} reads node {producer[i]}, which is no earlier one"
    )
    specs = [spec for t in recording.node_types for spec in t.slot_specs]
    check_refs(recording, value, specs, slot, np.isin(kind, OF_ROWS), lambda i: f"node {node[i]}")
    lengths(len(recording.types), reads)
