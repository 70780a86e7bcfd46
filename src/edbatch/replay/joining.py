"""Joins *pieces* (what was recorded of one example each) into a mini-batch, whenever they were recorded.

In: a bank of pieces, the numbers of those that are wanted, and the examples with their tensors. Out: the `Recording`
and the `Results` that recording these examples one after the other would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from edbatch.layout.layout import Ints
from edbatch.recording.calls.names import UniqueNames
from edbatch.recording.results import Group, Results, Value, check_structure, groups
from edbatch.recording.types.kernel_cache import Context
from edbatch.recording.types.recording import Recording
from edbatch.recording.types.type_set import NodeType, TypeSets
from edbatch.replay.piece_bank import PieceBank, PieceType, ResultStructure
from edbatch.spec import Spec

JoinedTypes = dict[tuple[PieceType, ...], tuple[NodeType, ...]]
NO_INPUTS: Ints = np.empty(0, np.int64)
MAX_JOINED = 32  # mini-batches whose joined types are kept


def join(
    bank: PieceBank, numbers: Ints, examples: Sequence[Sequence[Any]], type_sets: TypeSets, joined: JoinedTypes
) -> tuple[Recording, Results]:
    """The mini-batch of the pieces with these numbers, with the tensors that the examples have in their columns.

    Args:
        joined: types that were joined before; the world of the pieces (see `known_examples`) keeps them.
    """
    from edbatch.replay import loops

    rows = bank.rows
    starts, input_starts, num_args, structure = loops.measure(rows, numbers)
    is_alike = structure >= 0
    first = bank.structures.items[structure] if is_alike else bank.structure(int(numbers[0]))
    inputs = _Inputs()
    input_numbers = _number_inputs(bank, numbers, input_starts[-1], examples, inputs)
    types, args, refs, used = loops.join(
        rows, bank.flat, bank.is_ref, numbers, len(bank.types.items), starts, input_starts, input_numbers, num_args,
        len(first.specs) if is_alike else 0,
    )  # fmt: skip
    shift = _Shift(starts, input_starts, input_numbers)
    results = _join_results(bank, numbers, first, refs if is_alike else None, inputs, shift)
    node_types = _join_types(tuple([bank.types.items[t] for t in used.tolist()]), joined)
    recording = Recording(types, args, node_types, tuple(inputs.tensors), tuple(inputs.specs), starts[:-1], type_sets)
    return recording, results


@dataclass(frozen=True, slots=True)
class _Shift:
    """Changes references (numbers of values) inside pieces to references in the mini-batch.

    nodes, inputs: where each piece's nodes and inputs from outside begin. numbers: for each of those inputs, piece
    after piece, its number in the mini-batch, which has every tensor once.
    """

    nodes: Ints
    inputs: Ints
    numbers: Ints

    def __call__(self, group: Group) -> Ints:
        """The references of a group of results, changed to those in the mini-batch."""
        from edbatch.replay import loops

        listed = group.lengths is not None and not group.is_ragged
        owners = np.repeat(group.examples, group.lengths) if listed else np.array(group.examples)  # type: ignore[arg-type]
        refs = group.refs.copy()
        loops.shift(refs, owners, self.nodes, self.inputs, self.numbers)
        return refs


class _Inputs:
    """The inputs from outside of a mini-batch: each tensor once."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.specs: list[Spec] = []
        self._number_of: dict[int, int] = {}

    def number(self, tensor: Tensor, spec: Spec) -> int:
        number = self._number_of.setdefault(id(tensor), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(tensor)
            self.specs.append(spec)
        return number


def _number_inputs(
    bank: PieceBank, numbers: Ints, num_inputs: int, examples: Sequence[Sequence[Any]], inputs: _Inputs
) -> Ints:
    """The numbers in the mini-batch of all pieces' inputs from outside, piece after piece; fills `inputs`."""
    if num_inputs == 0:
        return NO_INPUTS
    found = []
    for number, example in zip(numbers.tolist(), examples, strict=True):
        others = bank.others.get(number)
        if others is not None:
            for tensor, spec in zip(others.outside, others.outside_specs, strict=True):
                found.append(inputs.number(example[tensor] if isinstance(tensor, int) else tensor, spec))
    return np.array(found, dtype=np.int64)


def _join_types(types: tuple[PieceType, ...], joined: JoinedTypes) -> tuple[NodeType, ...]:
    """The types of a mini-batch, with unique names."""
    known = joined.get(types)
    if known is not None:
        return known
    names, outer = UniqueNames(), Context.current()
    node_types = []
    for piece_type in types:
        node_type = piece_type.node_type
        name = names.give(node_type.name, piece_type.context, outer)
        node_types.append(node_type if name == node_type.name else replace(node_type, name=name))
    if len(joined) >= MAX_JOINED:
        joined.clear()
    found = joined[types] = tuple(node_types)
    return found


def _join_results(
    bank: PieceBank, numbers: Ints, first: ResultStructure, refs: Ints | None, inputs: _Inputs, shift: _Shift
) -> Results:
    """The results of the mini-batch.

    Args:
        first: the structure of the first piece's result. refs: for each leaf the references of all pieces; None if
            their results have several structures.
    """
    if refs is None:
        for i, row in enumerate(numbers.tolist()):
            check_structure(bank.structure(row).tree, first.tree, i)
    is_usual = refs is not None and None not in first.specs
    pieces = [] if is_usual else [bank.leaves(number) for number in numbers.tolist()]
    everyone = tuple(range(len(numbers)))
    gathered: list[Group] = []
    joined: list[Sequence[Any]] = []
    for j, spec in enumerate(first.specs):
        if refs is not None and spec is not None:
            gathered.append(Group(j, spec, everyone, refs[j]))
            joined.append((None,) * len(numbers))  # to be gathered
        else:
            values, of_leaf = _join_leaf(j, [leaves[j] for leaves in pieces], inputs, shift)
            joined.append(values)
            gathered += of_leaf
    return Results(first.tree, tuple(joined), first.names, tuple(gathered))


def _join_leaf(leaf: int, values: list[Any], inputs: _Inputs, shift: _Shift) -> tuple[list[Any], list[Group]]:
    """One leaf of all results, whatever it is in each of them, and the groups of values in it to be gathered."""
    if not any(type(v) is Value for v in values):  # cloned, so that no result is the memory of a piece
        return [v.clone() if isinstance(v, Tensor) else v for v in values], []
    number_of = {i: inputs.number(v, Spec.of(v)) for i, v in enumerate(values) if isinstance(v, Tensor)}
    gathered = []
    for group in groups(leaf, [Value(Spec.of(v), "one", (0,)) if i in number_of else v for i, v in enumerate(values)]):
        refs = shift(group)
        for k, i in enumerate(group.examples):
            if i in number_of:  # a plain tensor, not a recorded value
                refs[k] = -1 - number_of[i]
        gathered.append(replace(group, refs=refs))
    return values, gathered
