"""Pieces: what was recorded of one example, apart from the mini-batch, and pieces put together to a mini-batch.

`PieceRecorder` records examples so that they can be cut apart. `cut` makes a `Piece` of each; `join` makes the
`Recording` and the `Results` of a mini-batch from pieces, whenever they were recorded: exactly those of recording the
examples one after the other.
"""

from __future__ import annotations

import random
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from edbatch.frontend.kernels import Context
from edbatch.frontend.lazy import Kind, Lazy
from edbatch.frontend.names import UniqueNames
from edbatch.frontend.recorder import DRAWS, Recorder
from edbatch.frontend.recording import Recording
from edbatch.frontend.results import Group, Results, Value, check_structure, groups, structure_of
from edbatch.frontend.type_set import NodeType, TypeSets
from edbatch.frontend.watch import SCALARS
from edbatch.planning.layout import REF, Ints
from edbatch.spec import Spec


@dataclass(frozen=True, eq=False)
class PieceType:
    """A type of node in pieces of several recordings: its name is not made unique yet."""

    node_type: NodeType
    context: Context


@dataclass(frozen=True, eq=False)
class Structure:
    """The structure of an example's result, the names of its leaves, and the specs of those that are one value."""

    tree: pytree.TreeSpec
    names: list[str]
    specs: tuple[Spec | None, ...]


@dataclass(frozen=True, eq=False)
class Piece:
    """One example as recorded: as in a `Recording`, but with nodes, inputs from outside and types numbered from 0.

    outside: the inputs from outside; a number is the column whose tensor of the day it is. leaves: of the result:
    recorded values, tensors and plain constants.
    """

    types: Ints
    args: Ints
    node_types: tuple[PieceType, ...]
    outside: tuple[Tensor | int, ...]
    outside_specs: tuple[Spec, ...]
    structure: Structure
    leaves: tuple[Any, ...]


Types = MutableMapping[Any, PieceType]
JoinedTypes = dict[tuple[tuple[PieceType, ...], ...], tuple[tuple[NodeType, ...], Ints]]
MAX_JOINED = 32  # mini-batches whose types are kept as they were joined
MAX_STRUCTURES = 20  # of results; one is usual
DERIVED = "it uses a tensor that was computed from parameters"


class PieceRecorder(Recorder):
    """Records some examples of a mini-batch, each with inputs from outside of its own."""

    def __init__(self, *args: Any, structures: list[Structure], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._structures = structures
        self.outside_starts: list[int] = []
        self.columns: list[list[int]] = []  # of each example, those that are tensors
        self.results: list[tuple[Structure, list[Any]]] = []
        self.changes: list[str | None] = []  # of each example, why it cannot be known by its key
        self._random = random_state()

    def begin(self, example: Sequence[Any]) -> list[Any]:
        self.starts.append(len(self.types))
        self.outside_starts.append(len(self._outside))
        self.columns.append([j for j, x in enumerate(example) if isinstance(x, Tensor)])
        self.changing = None
        values = list(example)
        for j in self.columns[-1]:
            values[j] = self.outside(example[j])
            self._outside_of = {}  # the same tensor elsewhere is not the column's
        self._outside_of = {}
        return values

    def end(self, output: Any) -> None:
        super().end(output)
        leaves, tree = pytree.tree_flatten(output)
        values = [Value.of(v, self) if isinstance(v, Lazy) else v for v in leaves]
        self.results.append((self._structure(output, tree, values), values))
        drawn, self._random = self._random, random_state()
        self.changes.append(DRAWS if drawn != self._random else self.changing or self._unlasting(leaves))

    def _structure(self, output: Any, tree: pytree.TreeSpec, values: list[Any]) -> Structure:
        specs = tuple([v.spec if type(v) is Value and v.how == "one" else None for v in values])
        for known in self._structures:
            if known.specs == specs and known.tree == tree:
                return known
        structure = Structure(*structure_of(output), specs)
        self._structures.insert(0, structure)
        del self._structures[MAX_STRUCTURES:]
        return structure

    def _unlasting(self, leaves: list[Any]) -> str | None:
        """Why what the example holds does not last."""
        other = next((v for v in leaves if not isinstance(v, (Lazy, Tensor, *SCALARS))), None)
        if other is not None:
            return f"it returns something of type {type(other).__name__}, neither a tensor nor a plain constant"
        with torch._C.DisableTorchFunction():
            own = self._outside[self.outside_starts[-1] + len(self.columns[-1]) :]
            if any(
                t.grad_fn is not None or self.shared.is_derived(t) for t in (*own, *leaves) if isinstance(t, Tensor)
            ):
                return DERIVED
        return None


def cut(recorder: PieceRecorder, examples: Sequence[Sequence[Any]], known: Types) -> list[Piece] | None:
    """The pieces of all recorded examples, or None when one uses values of another.

    Examples that do not last get their reason in `recorder.changes`; the types of the others are put into `known`.
    """
    from edbatch.planning import piece_kernels

    recording = recorder.finish()
    types, args, table = recording.types, recording.args, recording.table
    starts = np.append(recording.starts, len(types))
    outside_starts = np.array([*recorder.outside_starts, len(recording.outside)])
    arg_starts, used, used_starts, is_foreign = piece_kernels.cut(
        types, args, starts, outside_starts, table.starts, table.kinds
    )
    type_of = _TypesOfPieces(recorder, recording, known)
    pieces = []
    for e, example in enumerate(examples):
        nodes, inputs = (slice(int(bounds[e]), int(bounds[e + 1])) for bounds in (starts, outside_starts))
        structure, leaves = recorder.results[e]
        if is_foreign[e] or any(type(v) is Value and _is_foreign(v, nodes.start, inputs.start) for v in leaves):
            return None
        outside: list[Tensor | int] = list(recording.outside[inputs])
        for k, j in enumerate(recorder.columns[e]):
            if outside[k] is example[j]:
                outside[k] = j
            else:
                recorder.changes[e] = "another example writes one of its tensors in place"
        numbers = used[used_starts[e] : used_starts[e + 1]].tolist()
        if any(type_of.is_derived[t] for t in numbers):
            recorder.changes[e] = DERIVED
        pieces.append(
            Piece(
                types=types[nodes].copy(),
                args=args[arg_starts[e] : arg_starts[e + 1]].copy(),
                node_types=tuple([type_of(t, recorder.changes[e] is None) for t in numbers]),
                outside=tuple(outside),
                outside_specs=recording.outside_specs[inputs],
                structure=structure,
                leaves=tuple([_local(v, nodes.start, inputs.start) if type(v) is Value else v for v in leaves]),
            )
        )
    return pieces


class _TypesOfPieces:
    """The types of a recording as types of pieces: known ones where there are such."""

    def __init__(self, recorder: PieceRecorder, recording: Recording, known: Types):
        self._recorder, self._recording, self._known = recorder, recording, known
        self._own: dict[int, PieceType] = {}
        self.is_derived = [any(map(recorder.shared.is_derived, t.shared)) for t in recording.node_types]

    def __call__(self, number: int, lasts: bool) -> PieceType:
        key, context, name = self._recorder.signatures[number]
        lasting = context, tuple([k.spec if isinstance(k, Kind) else k for k in key])
        found = self._own.get(number) or self._known.get(lasting)
        if found is None:
            found = PieceType(replace(self._recording.node_types[number], name=name), context)
        self._own[number] = found
        return self._known.setdefault(lasting, found) if lasts else found


def _is_foreign(value: Value, first_node: int, first_input: int) -> bool:
    return any(ref % REF < first_node if ref >= 0 else -1 - ref < first_input for ref in value.refs)


def _local(value: Value, first_node: int, first_input: int) -> Value:
    return value._replace(refs=tuple([ref - first_node if ref >= 0 else ref + first_input for ref in value.refs]))


def join(
    pieces: Sequence[Piece], examples: Sequence[Sequence[Any]], type_sets: TypeSets, joined: JoinedTypes
) -> tuple[Recording, Results]:
    """The mini-batch of these pieces, with the tensors that the examples have in their columns.

    Args:
        joined: of the world that the pieces were recorded in.
    """
    from edbatch.planning import piece_kernels

    row_of: dict[tuple[PieceType, ...], int] = {}
    type_row = np.array([row_of.setdefault(piece.node_types, len(row_of)) for piece in pieces])
    node_types, type_table = _join_types(tuple(row_of), joined)
    inputs = _Inputs()
    numbers = [
        inputs.number(example[t] if isinstance(t, int) else t, spec)
        for piece, example in zip(pieces, examples, strict=True)
        if piece.outside
        for t, spec in zip(piece.outside, piece.outside_specs, strict=True)
    ]
    shift = _Shift(
        _starts([len(piece.types) for piece in pieces]),
        _starts([len(piece.outside) for piece in pieces]),
        np.array(numbers, dtype=np.int64),
    )
    results = _join_results(pieces, inputs, shift)
    recording = Recording(
        np.concatenate([piece.types for piece in pieces]),
        np.concatenate([piece.args for piece in pieces]),
        node_types,
        tuple(inputs.tensors),
        tuple(inputs.specs),
        shift.nodes[:-1],
        type_sets,
    )
    table = recording.table
    piece_kernels.join(
        recording.types, recording.args, shift.nodes, type_row, type_table, shift.inputs, shift.numbers,
        table.starts, table.kinds,
    )  # fmt: skip
    return recording, results


@dataclass(frozen=True, slots=True)
class _Shift:
    """From the references of pieces to those of the mini-batch.

    nodes, inputs: where each piece's nodes and inputs from outside begin. numbers: of those inputs, in the mini-batch.
    """

    nodes: Ints
    inputs: Ints
    numbers: Ints

    def __call__(self, group: Group) -> None:
        """Number the values of a group through the mini-batch."""
        from edbatch.planning import piece_kernels

        listed = group.lengths is not None and not group.is_ragged
        owners = np.repeat(group.examples, group.lengths) if listed else np.array(group.examples)  # type: ignore[arg-type]
        piece_kernels.shift(group.refs, owners, self.nodes, self.inputs, self.numbers)


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


def _starts(lengths: list[int]) -> Ints:
    return np.fromiter(accumulate(lengths, initial=0), np.int64, len(lengths) + 1)


def _join_types(rows: tuple[tuple[PieceType, ...], ...], joined: JoinedTypes) -> tuple[tuple[NodeType, ...], Ints]:
    """All types in order of first use, and a table with a row that maps each of these tuples of types to them."""
    known = joined.get(rows)
    if known is not None:
        return known
    number_of: dict[PieceType, int] = {}
    for types in rows:
        for piece_type in types:
            number_of.setdefault(piece_type, len(number_of))
    table = np.zeros((len(rows), len(number_of)), np.int64)
    for row, types in zip(table, rows, strict=True):
        row[: len(types)] = [number_of[t] for t in types]
    names, outer = UniqueNames(), Context.current()
    node_types = []
    for piece_type in number_of:
        node_type = piece_type.node_type
        name = names.give(node_type.name, piece_type.context, outer)
        node_types.append(node_type if name == node_type.name else replace(node_type, name=name))
    if len(joined) >= MAX_JOINED:
        joined.clear()
    found = joined[rows] = tuple(node_types), table
    return found


def _join_results(pieces: Sequence[Piece], inputs: _Inputs, shift: _Shift) -> Results:
    first = pieces[0].structure
    is_same = [piece.structure is first for piece in pieces]
    if not all(is_same):
        for i, piece in enumerate(pieces):
            check_structure(piece.structure.tree, first.tree, i)
    leaves = [list(values) for values in zip(*[piece.leaves for piece in pieces], strict=True)]
    results = Results(first.tree, leaves, first.names, [])
    for j, values in enumerate(leaves):
        spec = first.specs[j]
        if all(is_same) and spec is not None:  # the usual case, written out
            refs = np.array([value.refs[0] for value in values], dtype=np.int64)
            results.groups.append(Group(j, spec, list(range(len(pieces))), refs))
            shift(results.groups[-1])
            continue
        if not any(type(v) is Value for v in values):  # nobody's result is the memory of a piece
            leaves[j] = [v.clone() if isinstance(v, Tensor) else v for v in values]
            continue
        number_of = {i: inputs.number(v, Spec.of(v)) for i, v in enumerate(values) if isinstance(v, Tensor)}
        found = groups(j, [Value(Spec.of(v), "one", (0,)) if i in number_of else v for i, v in enumerate(values)])
        for group in found:
            shift(group)
            for k, i in enumerate(group.examples):
                if i in number_of:  # a tensor that is no value of its piece
                    group.refs[k] = -1 - number_of[i]
        results.groups += found
    return results


def random_state() -> Any:
    """What the global generators of torch, Python and numpy stand at."""
    with torch._C.DisableTorchFunction():
        on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        torch_states = [state.numpy().tobytes() for state in (torch.get_rng_state(), *on_gpu)]
    _, words, *rest = np.random.get_state(legacy=True)
    return torch_states, random.getstate(), words.tobytes(), rest  # type: ignore[union-attr]
