"""Finds examples that were recorded before, by the keys that the user gives them.

In: examples. Out: which of them are known, and a bank with their *pieces* (a piece is what was recorded of one
example). An example with a known key is not recorded again: its piece is used. Parameters, and tensors in columns (the
positional arguments of a batched function), are read afresh in every call. Constants in columns (numbers, strings,
flags) and lists of them count as parts of the key. So do the numbers of all tensors in a column once the function has
read one of them (`int(x[0])`, `if x.any()`, …), because it may decide by them. A piece is valid only in the *world* in
which it was recorded: the same modes, keywords and states of all modules.

Examples that draw random numbers, write tensors in place or compute with parameters outside of cells (the parts of the
model that are batched) are recorded in every call. If examples of a function use each other's values, keys are not used
for that function at all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from types import FunctionType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn

from edbatch.errors import BatchError, WrongKeyError
from edbatch.layout.layout import Ints
from edbatch.recording.program.attributes import SCALARS, mark
from edbatch.recording.program.module_watch import Watch
from edbatch.recording.types.kernel_cache import Context
from edbatch.replay.example_recorder import FindCells, PieceRecorder, Types, cut
from edbatch.replay.joining import JoinedTypes
from edbatch.replay.piece_bank import PieceBank, ResultStructure
from edbatch.replay.piece_differences import difference
from edbatch.torch_insides import pytree
from edbatch.torch_state.surroundings import inside

MAX_BYTES = 200_000_000  # of all pieces that are kept; those used last are kept longest
MAX_WORLDS = 8  # train, eval, …
MAX_MODULES = 2000  # watched in a world; a function that makes new modules for every example would have ever more
USES_OTHERS = "an example uses values of another one of its mini-batch"
LEAVES_VALUES = (
    "the function leaves values on objects (self.state = h) or checks values of distributions (validate_args=False "
    "does not), and must run each time"
)
CHANGES_STATE = "modules or parameters were changed while it was recorded"
Place = Hashable  # by which an example is found: its key, or its key and what its columns hold (see `_forms`)
_WITH_COLUMNS = object()  # begins a place of the second kind, so that it is equal to no key


@dataclass(eq=False)
class World:
    """All that recordings depend on besides the examples, and the pieces recorded there.

    numbers: for the place of each example the number of its piece in the bank. keys: the keys of those examples. types:
    those of the pieces' nodes. joined: the types of mini-batches (see `joining`).
    """

    mode: Hashable
    keywords: list[Any]  # kept alive, because `mode` holds ids of tensors
    watch: Watch
    bank: PieceBank = field(default_factory=PieceBank)
    numbers: dict[Place, int] = field(default_factory=dict)
    keys: set[Hashable] = field(default_factory=set)
    types: Types = field(default_factory=WeakValueDictionary)
    joined: JoinedTypes = field(default_factory=dict)

    def keep_only(self, kept: Ints) -> None:
        """Drop all other pieces. Calls that are under way still use the bank as it was."""
        bank = PieceBank()
        number_of = dict(zip(kept.tolist(), bank.append(self.bank, kept).tolist(), strict=True))
        numbers = {place: number_of[number] for place, number in self.numbers.items() if number in number_of}
        self.bank, self.numbers, self.keys = bank, numbers, set(map(_key_of, numbers))
        self.joined.clear()


@dataclass
class LookUp:
    """A mini-batch: which of its examples are known, and their pieces."""

    world: World
    keys: list[Hashable]
    places: list[Place]
    unknown: Sequence[int]  # the examples to be recorded
    bank: PieceBank
    numbers: Ints  # for each example the number of its piece in the bank, -1 where there is none yet


class KnownExamples:
    """The pieces of one batched function. Threads may share it."""

    def __init__(self, key: Callable[..., Hashable], root: nn.Module | None, *, debug: bool = False):
        self.key = key
        self.debug = debug
        self.structures: list[ResultStructure] = []
        self.report = ""  # on the last call, for people
        self._root = root
        self._read_columns: frozenset[int] = frozenset()  # those whose numbers were ever read; it only grows
        self._opaque: set[type] = set()  # classes of things in columns that are neither tensors nor constants
        self._worlds: list[World] = []  # the one used last comes last
        self._clock = count()
        self._given_up = ""
        self._is_whole = True  # False: an interrupt came while pieces were being stored, so none of them is used
        self._lock = threading.RLock()

    def look_up(self, examples: Sequence[Sequence[Any]], keywords: dict[str, Any]) -> LookUp | None:
        """What is known of these examples; None when keys cannot be used and everything has to be recorded."""
        marks = _marks(keywords)
        if self._given_up or marks is None:
            self.report = self._given_up or "key is not used: a keyword is neither a tensor, a module nor a constant"
            return None
        keys = self._keys(examples)
        places = self._places(keys, examples)
        return inside((self._lock,), self._look_up, keys, places, marks, keywords)

    def _look_up(self, keys: list[Hashable], places: list[Place], marks: Hashable, keywords: dict[str, Any]) -> LookUp:
        if not self._is_whole:
            self._worlds.clear()
            self._is_whole = True
        world = self._world((Context.current(), torch.is_inference_mode_enabled(), marks), keywords)
        bank, number_of = world.bank, world.numbers
        known = [number_of.get(place, -1) for place in places]
        unknown: Sequence[int] = [i for i, number in enumerate(known) if number < 0] if min(known) < 0 else []
        numbers = np.array(known, dtype=np.int64)
        bank.last_used[numbers[numbers >= 0] if unknown else numbers] = next(self._clock)
        reasons = Counter([self._reason(keys[i], world) for i in unknown]) if unknown else {}
        unknown = range(len(keys)) if self.debug else unknown
        self.report = f"key: {len(keys) - len(unknown)} of {len(keys)} examples were known"
        self.report += "".join(f"; {n} {reason}" for reason, n in reasons.items())
        if self._read_columns:
            names = ", ".join(map(str, sorted(self._read_columns)))
            self.report += f"; the numbers in column {names} are read, and so are parts of the key"
        return LookUp(world, keys, places, unknown, bank, numbers)

    def take(self, call: LookUp, recorder: PieceRecorder, examples: Sequence[Sequence[Any]], find: FindCells) -> bool:
        """Keep what was recorded of the unknown examples. False when keys cannot be used for this function."""
        bank = inside((self._lock,), self._take, call, recorder, examples, find)
        if bank is None:
            return False
        _put_together(call, bank)
        changes = Counter(filter(None, recorder.changes))
        self.report += "".join(f"; {n} will always be recorded: {change}" for change, n in changes.items())
        return True

    def _take(
        self, call: LookUp, recorder: PieceRecorder, examples: Sequence[Sequence[Any]], find: FindCells
    ) -> PieceBank | None:
        if not recorder.read_columns <= self._read_columns:
            self._read_columns |= recorder.read_columns
            call.places = self._places(call.keys, examples)
        bank = cut(recorder, [examples[i] for i in call.unknown], call.world.types, find)
        if bank is None:
            self.give_up()
            return None
        if not call.world.watch.is_unchanged():
            recorder.changes[:] = [change or CHANGES_STATE for change in recorder.changes]
        lasting = self._lasting(call, bank, recorder.changes)
        self._is_whole = False  # until all of it is kept
        self._keep(call, bank, lasting)
        self._watch(call.world, recorder)
        self._is_whole = True
        return bank

    def give_up(self, reason: str = USES_OTHERS) -> None:
        """Use no keys any more: an example that is not recorded has no values that others use, and leaves none."""
        inside((self._lock,), self._give_up, reason)

    def _give_up(self, reason: str) -> None:
        self._given_up = f"key is not used: {reason}"
        self.report = self._given_up
        self._worlds.clear()

    def _reason(self, key: Hashable, world: World) -> str:
        """Why an example is not known, for people."""
        if key is None:
            return "had None as key"
        if key in world.keys:
            return "had other constants, shapes of tensors or numbers that are read in their columns"
        if any(key in other.keys for other in self._worlds):
            return "were known in other modes, with other keywords or other states of modules"
        return "were new"

    def _keys(self, examples: Sequence[Sequence[Any]]) -> list[Hashable]:
        key, keys = self.key, []
        try:
            for example in examples:
                keys.append(key(*example))
        except Exception as error:
            error.add_note(f"while computing the key of example {len(keys)} of the mini-batch")
            raise
        for i, found in enumerate(keys) if not set(map(type, keys)) <= {int, str} else ():
            if not _is_key(found):
                raise BatchError(
                    f"the key of example {i} is of type {type(found).__name__}, by which it cannot be found again; "
                    "give a number, a string or a tuple of them that names the example"
                )
        return keys

    def _places(self, keys: list[Hashable], examples: Sequence[Sequence[Any]]) -> list[Place]:
        forms = self._forms(examples)
        return keys if forms is None else [(_WITH_COLUMNS, *both) for both in zip(keys, forms, strict=True)]

    def _forms(self, examples: Sequence[Sequence[Any]]) -> list[Hashable] | None:
        """What tells examples with one key apart: the constants in their columns, and shape, dtype and device of the
        tensors there; of columns that are read also their numbers. None if the columns hold neither."""
        kinds = set(map(type, chain.from_iterable(examples)))
        if kinds <= self._opaque:
            return None
        if not any(issubclass(kind, (Tensor, list, tuple, *SCALARS)) for kind in kinds):
            self._opaque |= kinds
            return None
        forms: list[Hashable] = [tuple(map(_form, example)) for example in examples]
        for j in sorted(self._read_columns):
            forms = [(form, _numbers(example[j])) for form, example in zip(forms, examples, strict=True)]
        return forms

    def _lasting(self, call: LookUp, bank: PieceBank, changes: Sequence[str | None]) -> list[int]:
        """Which of the pieces just recorded are to be kept: the first one of each new key that can be used again."""
        first: dict[Place, int] = {}
        for piece, (i, change) in enumerate(zip(call.unknown, changes, strict=True)):
            number, key, place = int(call.numbers[i]), call.keys[i], call.places[i]
            if self.debug and (number >= 0 or place in first):
                before = bank.piece(first[place]) if number < 0 else call.bank.piece(number)
                if (found := change or difference(before, bank.piece(piece))) is not None:
                    raise _wrong_key(key, i, found)
            if number < 0 and change is None and key is not None:
                first.setdefault(place, piece)
        return list(first.values())

    def _keep(self, call: LookUp, bank: PieceBank, pieces: list[int]) -> None:
        world = call.world
        numbers = world.bank.append(bank, np.array(pieces, dtype=np.int64))
        world.bank.last_used[numbers] = next(self._clock)
        for piece, number in zip(pieces, numbers.tolist(), strict=True):
            i = call.unknown[piece]
            world.numbers[call.places[i]] = number
            world.keys.add(call.keys[i])
        if sum(world.bank.num_bytes for world in self._worlds) > MAX_BYTES:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the pieces that were not used for longest: an eighth of all, so that this is not done too often."""
        banks = [world.bank for world in self._worlds]
        oldest_last = np.argsort(-np.concatenate([bank.last_used[: bank.num_pieces] for bank in banks]), kind="stable")
        sizes = np.concatenate([bank.sizes() for bank in banks])
        is_kept = np.empty(len(sizes), np.bool_)
        is_kept[oldest_last] = np.cumsum(sizes[oldest_last]) <= MAX_BYTES - MAX_BYTES // 8
        ends = np.cumsum([bank.num_pieces for bank in banks])
        for world, of_world in zip(self._worlds, np.split(is_kept, ends[:-1]), strict=True):
            world.keep_only(np.flatnonzero(of_world))

    def _world(self, mode: Hashable, keywords: dict[str, Any]) -> World:
        """The world of this call: a known one in which nothing has changed since, or a new one."""
        for world in reversed(self._worlds):
            if world.mode == mode and world.watch.is_unchanged():
                break
        else:
            leaves = pytree.tree_leaves(keywords)
            roots = [*([] if self._root is None else [self._root]), *[v for v in leaves if isinstance(v, nn.Module)]]
            world = World(mode, leaves, Watch(roots, [v for v in leaves if isinstance(v, Tensor)]))
            self._worlds.append(world)
            del self._worlds[:-MAX_WORLDS]
        if self._worlds[-1] is not world:
            self._worlds.remove(world)
            self._worlds.append(world)
        return world

    def _watch(self, world: World, recorder: PieceRecorder) -> None:
        """Watch the modules that were called, also those that are found only through a closure."""
        world.watch.add(recorder.called_modules(), [t for made in recorder.node_types for t in made.shared])
        if len(world.watch) > MAX_MODULES and world in self._worlds:
            self._worlds.remove(world)


def _is_key(found: Any) -> bool:
    try:
        hash(found)
    except TypeError:
        return False
    return all(map(_is_key, found)) if isinstance(found, tuple) else not isinstance(found, Tensor)


def _key_of(place: Place) -> Hashable:
    return place[1] if type(place) is tuple and place and place[0] is _WITH_COLUMNS else place


def _form(entry: Any) -> Hashable:
    if isinstance(entry, Tensor):
        return entry.shape, entry.dtype, entry.device
    if isinstance(entry, SCALARS):
        return mark(entry)
    if not isinstance(entry, list | tuple):
        return None
    kinds = set(map(type, entry))
    if kinds <= {int} or kinds <= {str}:  # most lists of constants; the line below takes ten times as long
        return type(entry), *kinds, *entry
    return (type(entry), *map(mark, entry)) if all(issubclass(t, SCALARS) for t in kinds) else None


def _numbers(entry: Any) -> Hashable:
    if not isinstance(entry, Tensor):
        return None
    return entry.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _put_together(call: LookUp, recorded: PieceBank) -> None:
    """Give the call one bank, with the known pieces and those that were just recorded."""
    bank = PieceBank()
    is_known = np.ones(len(call.numbers), np.bool_)
    is_known[call.unknown] = False
    call.numbers[is_known] = bank.append(call.bank, call.numbers[is_known])
    call.numbers[~is_known] = bank.append(recorded, np.arange(recorded.num_pieces))
    call.bank = bank


def _marks(keywords: dict[str, Any]) -> Hashable | None:
    """What tells keywords of two calls apart; None if one of them may change and still be the same object."""
    if not keywords:
        return ()
    leaves, structure = pytree.tree_flatten(keywords)
    marks: list[Hashable] = [repr(structure)]
    for leaf in leaves:
        if isinstance(leaf, Tensor | nn.Module | FunctionType):
            marks.append(id(leaf))
        elif isinstance(leaf, SCALARS):
            marks.append(mark(leaf))
        else:
            return None
    return tuple(marks)


def _wrong_key(key: Hashable, example: int, found: str) -> WrongKeyError:
    return WrongKeyError(
        f"key {key!r} of example {example} of the mini-batch was given before to an example that was recorded "
        f"differently: {found}. An example with a known key is not recorded again, so examples may have the same key "
        "only if they are alike in all but the tensors and constants in their columns; put what differs into the key, "
        "or give None as the key of what must always be recorded"
    )
