"""Banks of *pieces* as flat arrays; a piece is what was recorded of one example, apart from its mini-batch.

In: pieces, from `example_recorder`. Out: pieces by number, for `joining`. Thousands of pieces are used again in every
epoch, each once, so none of them is in the processor's cache then. For most pieces only one row of a table and one
range of an array are therefore read, and no Python object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edbatch.layout.layout import Ints
from edbatch.recording.results import Value
from edbatch.recording.types.kernel_cache import Context
from edbatch.recording.types.type_set import NodeType
from edbatch.spec import Spec
from edbatch.torch_insides import pytree

BYTES_OF_NUMBER = 9  # 8, and 1 that says whether it is a reference
BYTES_OF_PIECE = 500  # besides its numbers: its row, its key and their place in a dictionary, other objects
Marks = NDArray[np.int8]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class PieceType:
    """A type of nodes in pieces of any recordings; its name is made unique when pieces are joined."""

    node_type: NodeType
    context: Context


@dataclass(frozen=True, eq=False)
class ResultStructure:
    """The structure of an example's result, and of its leaves the names and specs (shape, dtype, device).

    A leaf that is not one recorded value has no spec.
    """

    tree: pytree.TreeSpec
    names: list[str]
    specs: tuple[Spec | None, ...]


class Others(NamedTuple):
    """Those parts of a piece that are not numbers.

    outside: the inputs from outside; an int stands for the tensor in this column, which is another one in every call.
    leaves: the leaves of the result that are not one recorded value: lists of values, ragged values, tensors and
    constants.
    """

    outside: tuple[Tensor | int, ...]
    outside_specs: tuple[Spec, ...]
    leaves: tuple[Any, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes of its tensors; a tensor that several pieces hold is counted for each of them."""
        return sum(item.nbytes for item in (*self.outside, *self.leaves) if isinstance(item, Tensor))


NO_OTHERS = Others((), (), ())


@dataclass(frozen=True, eq=False)
class Piece:
    """One piece in readable form: as a `Recording`, but with nodes and inputs from outside numbered from 0."""

    types: Ints
    args: Ints
    node_types: Sequence[PieceType]
    structure: ResultStructure
    leaves: tuple[Any, ...]  # recorded values, tensors and plain constants
    others: Others


class Numbered(Generic[T]):
    """Different objects, numbered in order of first mention."""

    def __init__(self, items: Sequence[T] = ()) -> None:
        self.items = list(items)
        self._number_of = {item: i for i, item in enumerate(items)}

    def number(self, item: T) -> int:
        number = self._number_of.setdefault(item, len(self.items))
        if number == len(self.items):
            self.items.append(item)
        return number


class PieceBank:
    """Pieces by number. A bank only grows, so that a number is valid as long as its bank.

    Threads may read pieces while another one appends some; they must not append at the same time.

    Attributes:
        rows, flat, is_ref: see `loops`. Only the first `num_pieces` rows and the first `num_flat` numbers are in use.
        last_used: when each piece was used last; the owner of the bank sets it.
        others: by the number of a piece, for those that have any.
    """

    def __init__(self) -> None:
        from edbatch.replay.loops import WIDTH

        self.rows: Ints = np.empty((0, WIDTH), np.int64)
        self.flat: Ints = np.empty(0, np.int64)
        self.is_ref: Marks = np.empty(0, np.int8)
        self.last_used: Ints = np.empty(0, np.int64)
        self.num_pieces = self.num_flat = 0
        self.types, self.structures = Numbered[PieceType](), Numbered[ResultStructure]()
        self.others: dict[int, Others] = {}
        self._bytes_of_others = 0

    @staticmethod
    def of(
        rows: Ints, flat: Ints, is_ref: Marks, types: Sequence[PieceType], structures: Sequence[ResultStructure]
    ) -> PieceBank:
        """A bank of the pieces of one recording, with the types of that recording; `others` is for the caller to set.

        Args:
            structures: the structure of each piece's result.
        """
        from edbatch.replay.loops import STRUCTURE

        bank = PieceBank()
        bank.rows, bank.flat, bank.is_ref, bank.num_pieces, bank.num_flat = rows, flat, is_ref, len(rows), len(flat)
        bank.last_used = np.zeros(len(rows), np.int64)
        bank.types = Numbered(types)
        rows[:, STRUCTURE] = [bank.structures.number(structure) for structure in structures]
        return bank

    def sizes(self) -> Ints:
        """The bytes that each piece takes."""
        from edbatch.replay.loops import ARGS, LEAVES, NODES

        length: Ints = self.rows[: self.num_pieces, [NODES, ARGS, LEAVES]].sum(1)
        size: Ints = length * BYTES_OF_NUMBER + BYTES_OF_PIECE
        for number, others in self.others.items():
            size[number] += others.num_bytes
        return size

    @property
    def num_bytes(self) -> int:
        """The bytes that all pieces take."""
        return self.num_flat * BYTES_OF_NUMBER + self.num_pieces * BYTES_OF_PIECE + self._bytes_of_others

    def append(self, bank: PieceBank, numbers: Ints) -> Ints:
        """Copy the pieces with these numbers from another bank; returns their numbers here."""
        from edbatch.replay import loops

        rows = bank.rows[numbers]
        type_place = np.zeros(len(bank.types.items), np.int64)
        used = np.flatnonzero(loops.uses_types(rows, bank.flat, len(type_place)))
        type_place[used] = [self.types.number(bank.types.items[t]) for t in used.tolist()]
        structures, places = np.unique(rows[:, loops.STRUCTURE], return_inverse=True)
        structure_place = [self.structures.number(bank.structures.items[s]) for s in structures.tolist()]
        rows[:, loops.STRUCTURE] = np.array(structure_place, dtype=np.int64)[places]
        begin, end = self.num_pieces, self.num_pieces + len(rows)
        size = int(rows[:, [loops.NODES, loops.ARGS, loops.LEAVES]].sum())
        self.flat = _with_room(self.flat, self.num_flat, self.num_flat + size)
        self.is_ref = _with_room(self.is_ref, self.num_flat, self.num_flat + size)
        self.rows = _with_room(self.rows, begin, end)
        self.last_used = _with_room(self.last_used, begin, end)
        self.num_flat = loops.copy(rows, bank.flat, bank.is_ref, type_place, self.flat, self.is_ref, self.num_flat)
        self.rows[begin:end], self.last_used[begin:end] = rows, bank.last_used[numbers]
        self.num_pieces = end
        for mine, number in zip(range(begin, end), numbers.tolist(), strict=True) if bank.others else ():
            if number in bank.others:
                self.others[mine] = bank.others[number]
                self._bytes_of_others += self.others[mine].num_bytes
        return np.arange(begin, end)

    def piece(self, number: int) -> Piece:
        """A piece in readable form."""
        from edbatch.replay.loops import ARGS, FIRST, NODES

        begin, middle, end = np.cumsum(self.rows[number, [FIRST, NODES, ARGS]]).tolist()
        return Piece(
            types=self.flat[begin:middle],
            args=self.flat[middle:end],
            node_types=self.types.items,
            structure=self.structure(number),
            leaves=self.leaves(number),
            others=self.others.get(number, NO_OTHERS),
        )

    def structure(self, number: int) -> ResultStructure:
        from edbatch.replay.loops import STRUCTURE

        return self.structures.items[int(self.rows[number, STRUCTURE])]

    def leaves(self, number: int) -> tuple[Any, ...]:
        """The leaves of a piece's result: recorded values, tensors and plain constants."""
        from edbatch.replay.loops import ARGS, FIRST, NODES

        specs = self.structure(number).specs
        begin = int(self.rows[number, [FIRST, NODES, ARGS]].sum())
        refs, others = self.flat[begin : begin + len(specs)].tolist(), iter(self.others.get(number, NO_OTHERS).leaves)
        return tuple(
            [next(others) if spec is None else Value(spec, "one", (r,)) for r, spec in zip(refs, specs, strict=True)]
        )


def _with_room(array: NDArray[Any], used: int, size: int) -> NDArray[Any]:
    """The array, or a larger copy of its used part: it is never resized, because other threads may be reading it."""
    if size <= len(array):
        return array
    larger = np.empty((max(size, 2 * len(array)), *array.shape[1:]), array.dtype)
    larger[:used] = array[:used]
    return larger
