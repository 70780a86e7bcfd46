"""Checks `Results`, which say what values a batched call returns, against the `Recording` that computes the values.

In: `Results` and their `Recording`. Out: nothing, or an AssertionError that names the first thing at fault. All that
later stages rely on is worked out again, slowly; tests do so in every batched call.
"""

from __future__ import annotations

import numpy as np

from edbatch.layout.layout import unpack
from edbatch.layout.reads import lengths, parse, require, require_same
from edbatch.recording.results import KEPT, Group, Results, Value
from edbatch.recording.types.checking import check_refs
from edbatch.recording.types.recording import Recording
from edbatch.recording.values.lazy import Lazy


def check_results(results: Results, recording: Recording) -> None:
    """Raise an AssertionError unless results fit their recording; see `Results.check`."""
    num_leaves, num_examples = results.structure.num_leaves, len(recording.starts)
    for what, found in (("leaves", results.leaves), ("names", results.names)):
        if len(found) != num_leaves:
            raise AssertionError(f"a structure of {num_leaves} leaves has {len(found)} {what}")
    for name, values in zip(results.names, results.leaves, strict=True):
        if len(values) != num_examples:
            raise AssertionError(f"{name} has {len(values)} values for {num_examples} examples")
    gathered: list[set[int]] = [set() for _ in results.leaves]
    for group in results.groups:
        if group.leaf == KEPT:
            _check_group(group, recording, "a value that is kept", len(results.kept))
            continue
        if not 0 <= group.leaf < num_leaves:
            raise AssertionError(f"{group} is of a leaf that is not there; there are {num_leaves}")
        _check_group(group, recording, results.names[group.leaf], num_examples)
        twice = gathered[group.leaf].intersection(group.examples)
        if twice:
            raise AssertionError(f"{results.names[group.leaf]} of example {min(twice)} is in two groups")
        gathered[group.leaf].update(group.examples)
    for name, values, known in zip(results.names, results.leaves, gathered, strict=True):
        for i, value in enumerate(values):
            if isinstance(value, Lazy | Value) and i not in known:
                raise AssertionError(f"{name} of example {i} was recorded, but is in no group")


def _check_group(group: Group, recording: Recording, name: str, num_examples: int) -> None:
    examples, refs, rows = np.asarray(group.examples), group.refs, group.lengths
    require(
        (examples >= 0) & (examples < num_examples),
        lambda i: f"{name} is to be gathered for example {examples[i]} of {num_examples}",
    )
    require(np.diff(examples) > 0, lambda i: f"{name}: example {examples[i + 1]} comes after example {examples[i]}")
    if rows is not None:
        if len(rows) != len(examples):
            raise AssertionError(f"{name}: {len(examples)} examples have {len(rows)} lengths")
        require(np.asarray(rows) > 0, lambda i: f"{name} of example {examples[i]} has {rows[i]} rows")
    elif group.is_ragged:
        raise AssertionError(f"{name} is of several rows, but their numbers are missing")
    num_refs = len(examples) if rows is None or group.is_ragged else sum(rows)
    if len(refs) != num_refs:
        raise AssertionError(f"{name}: {len(refs)} references for {num_refs} values")
    are_rows = np.full(len(refs), group.is_ragged)
    check_refs(recording, refs, [group.spec], np.zeros(len(refs), np.int64), are_rows, lambda i: name)
    if group.is_ragged:
        length = lengths(len(recording.types), parse(recording.types, recording.args, recording.table))
        require_same(f"{name}: the rows of examples", rows, length[unpack(refs)[0]])
