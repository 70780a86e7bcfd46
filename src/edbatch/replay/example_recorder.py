"""Records examples one after the other so that each can be used again in other mini-batches.

In: examples. Out: a bank of *pieces*; a piece is what was recorded of one example, apart from its mini-batch.
`PieceRecorder` records the examples, and `cut` takes the recording apart. Both find out which examples cannot be used
again, and why.
"""

from __future__ import annotations

import random
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edbatch.layout.layout import REF, Ints
from edbatch.recording.calls.entries import Signature
from edbatch.recording.calls.signature import lasting_key
from edbatch.recording.program.attributes import SCALARS
from edbatch.recording.recorder import DRAWS, Recorder
from edbatch.recording.results import Value, structure_of
from edbatch.recording.types.recording import Recording
from edbatch.recording.values.lazy import Lazy, copied
from edbatch.replay.piece_bank import Others, PieceBank, PieceType, ResultStructure
from edbatch.spec import is_tensor
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction

Types = MutableMapping[Any, PieceType]
FindCells = Callable[[Recording, Ints], Any]  # see `rewriting.find_cells`: gives a `WithFoundCells`, or None
MAX_STRUCTURES = 20  # of results that are remembered; most functions have one
DERIVED = "it uses a tensor that was computed from parameters"


class PieceRecorder(Recorder):
    """Records some examples of a mini-batch. Each has its own inputs from outside (tensors that no node computes)."""

    def __init__(self, *args: Any, structures: list[ResultStructure], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._structures = structures
        self.outside_starts: list[int] = []
        self.columns: list[list[int]] = []  # of each example, the numbers of the columns (arguments) that are tensors
        self.results: list[tuple[ResultStructure, list[Any]]] = []
        self.read_columns: set[int] = set()  # the columns whose numbers were read
        self.changes: list[str | None] = []  # of each example, why its piece cannot be used again; None if it can
        self._random = random_state()

    def begin(self, example: Sequence[Any]) -> list[Any]:
        self.starts.append(len(self.types))
        self.outside_starts.append(len(self._outside))
        self.columns.append([j for j, x in enumerate(example) if isinstance(x, Tensor)])
        self.changing = None
        self.made.clear()
        values = list(example)
        for j in self.columns[-1]:
            values[j] = self.outside(example[j])
            self._outside_of.clear()  # the same tensor elsewhere is another input: only columns change in every call
        self._outside_of.clear()
        return values

    def end(self, output: Any) -> Any:
        output = super().end(output)
        leaves, tree = pytree.tree_flatten(output)
        values = [Value.of(v, self) if isinstance(v, Lazy) else v for v in leaves]
        self.results.append((self._structure(output, tree, values), values))
        drawn, self._random = self._random, random_state()
        self.changes.append(DRAWS if drawn != self._random else self.changing or self._unlasting(leaves))
        copies = [copied(v) if isinstance(v, Lazy) else v for v in leaves]
        self.copies += [v for v in copies if isinstance(v, Lazy)]
        return pytree.tree_unflatten(copies, tree)

    def note_read(self, refs: frozenset[int]) -> None:
        first = self.outside_starts[-1]
        for place in [-1 - ref - first for ref in refs]:
            if place < 0:
                self.changing = "it reads numbers of another example"
            elif place < len(self.columns[-1]):
                self.read_columns.add(self.columns[-1][place])

    def _structure(self, output: Any, tree: pytree.TreeSpec, values: list[Any]) -> ResultStructure:
        specs = tuple([v.spec if type(v) is Value and v.how == "one" else None for v in values])
        for known in self._structures:
            if known.specs == specs and known.tree == tree:
                return known
        structure = ResultStructure(*structure_of(output), specs)
        self._structures.insert(0, structure)
        del self._structures[MAX_STRUCTURES:]
        return structure

    def _unlasting(self, leaves: list[Any]) -> str | None:
        """Why the piece of this example would be wrong in later calls, if its inputs or outputs are the reason."""
        other = next((v for v in leaves if not isinstance(v, (Lazy, Tensor, *SCALARS))), None)
        if other is not None:
            return f"it returns something of type {type(other).__name__}, neither a tensor nor a plain constant"
        with DisableTorchFunction():
            own = self._outside[self.outside_starts[-1] + len(self.columns[-1]) :]
            if any(t.grad_fn is not None or self.shared.is_derived(t) for t in (*own, *leaves) if is_tensor(t)):
                return DERIVED
        return None


def cut(recorder: PieceRecorder, examples: Sequence[Sequence[Any]], known: Types, find: FindCells) -> PieceBank | None:
    """The pieces of all recorded examples, or None when one uses values of another.

    Examples whose pieces cannot be used again get their reason in `recorder.changes`; the types of the others are put
    into `known`. `find` merges nodes to cells that nobody marked.
    """
    from edbatch.replay import loops

    recording, results, signatures = _with_found_cells(recorder, find)
    starts = np.append(recording.starts, len(recording.types))
    outside_starts = np.array([*recorder.outside_starts, len(recording.outside)])
    refs: list[int] = []
    others: dict[int, Others] = {}
    for e, example in enumerate(examples):
        first_node, first_input = int(starts[e]), int(outside_starts[e])
        inputs = slice(first_input, int(outside_starts[e + 1]))
        structure, leaves = results[e]
        if any(type(v) is Value and _is_foreign(v, first_node, first_input) for v in leaves):
            return None
        outside: list[Tensor | int] = list(recording.outside[inputs])
        for k, j in enumerate(recorder.columns[e]):
            if outside[k] is example[j]:
                outside[k] = j
            else:
                recorder.changes[e] = "another example writes one of its tensors in place"
        local = [_local(v, first_node, first_input) if type(v) is Value else v for v in leaves]
        refs += [0 if spec is None else v.refs[0] for v, spec in zip(local, structure.specs, strict=True)]
        unusual = tuple([v for v, spec in zip(local, structure.specs, strict=True) if spec is None])
        if outside or unusual:
            others[e] = Others(tuple(outside), recording.outside_specs[inputs], unusual)
    structures = [structure for structure, _ in recorder.results]
    leaf_starts = np.array([*accumulate([len(s.specs) for s in structures], initial=0)])
    table = recording.table
    rows, flat, is_ref, used, used_starts, is_foreign = loops.cut(
        recording.types, recording.args, starts, outside_starts, np.array(refs, dtype=np.int64), leaf_starts,
        table.starts, table.kinds,
    )  # fmt: skip
    if is_foreign.any():
        return None
    types = _types_of_pieces(recorder, recording, signatures, np.split(used, used_starts[1:-1]), known)
    bank = PieceBank.of(rows, flat, is_ref, types, structures)
    bank.others = others
    return bank


def _with_found_cells(
    recorder: PieceRecorder, find: FindCells
) -> tuple[Recording, list[tuple[ResultStructure, list[Any]]], list[Signature]]:
    """The recording, the results of its examples and the signatures of its types, after nodes were merged to cells."""
    recording = recorder.finish()
    refs = [ref for _, values in recorder.results for v in values if type(v) is Value for ref in v.refs]
    merged = find(recording, np.array(refs, dtype=np.int64))
    if merged is None:
        return recording, recorder.results, recorder.signatures
    new = iter(merged.moved.refs(np.array(refs, dtype=np.int64)).tolist())
    results = [
        (structure, [v._replace(refs=tuple([next(new) for _ in v.refs])) if type(v) is Value else v for v in values])
        for structure, values in recorder.results
    ]
    kept = [recorder.signatures[t] for t in merged.kept]
    found = zip(merged.keys, merged.recording.node_types[len(kept) :], strict=True)
    context = recorder.outer  # kernels of found cells were captured in modes that are parts of their keys
    return merged.recording, results, [*kept, *[Signature((key,), context, t.name) for key, t in found]]


def _types_of_pieces(
    recorder: PieceRecorder, recording: Recording, signatures: list[Signature], used: list[Ints], known: Types
) -> list[PieceType]:
    """The types of a recording as types of pieces, taken from `known` if they are there.

    Args:
        signatures: of all types.
        used: the types that each example uses.
    """
    is_derived = [any(map(recorder.shared.is_derived, t.shared)) for t in recording.node_types]
    lasting: set[int] = set()
    for e, numbers in enumerate(used):
        if any(is_derived[t] for t in numbers.tolist()):
            recorder.changes[e] = DERIVED
        if recorder.changes[e] is None:
            lasting.update(numbers.tolist())
    types = []
    for t, (key, context, name) in enumerate(signatures):
        lasts_as = context, lasting_key(key)
        found = known.get(lasts_as)
        if found is None:
            found = PieceType(replace(recording.node_types[t], name=name), context)
            if t in lasting:
                known[lasts_as] = found
        types.append(found)
    return types


def _is_foreign(value: Value, first_node: int, first_input: int) -> bool:
    return any(ref % REF < first_node if ref >= 0 else -1 - ref < first_input for ref in value.refs)


def _local(value: Value, first_node: int, first_input: int) -> Value:
    return value._replace(refs=tuple([ref - first_node if ref >= 0 else ref + first_input for ref in value.refs]))


def random_state() -> Any:
    """The states of the global random generators of torch, Python and numpy."""
    with DisableTorchFunction():
        on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        torch_states = [state.numpy().tobytes() for state in (torch.get_rng_state(), *on_gpu)]
    _, words, *rest = np.random.get_state(legacy=True)
    return torch_states, random.getstate(), words.tobytes(), rest  # type: ignore[union-attr]
