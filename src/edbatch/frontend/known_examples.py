"""Record once: examples that were recorded before are found again by the key that the user gives them.

An example with a known key is not recorded: its piece is used again, with the parameters and the column tensors of the
day. A piece is found only in the *world* it was recorded in: the same modes, keywords and states of all modules. What
does not last is recorded always: examples that draw random numbers, write tensors in place or compute with parameters
outside of cells. A function whose examples use each other's values is not known by keys at all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from types import FunctionType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from edbatch.errors import BatchError, WrongKeyError
from edbatch.frontend.kernels import Context
from edbatch.frontend.piece_differences import difference
from edbatch.frontend.pieces import JoinedTypes, Piece, PieceRecorder, Structure, Types, cut
from edbatch.frontend.watch import SCALARS, Watch
from edbatch.spec import Spec, float_bits

MAX_NODES = 4_000_000  # of all pieces that are kept, about 50 bytes each; those used last are kept longest
OVERHEAD = 50  # a piece without nodes takes as much memory as one with so many
MAX_WORLDS = 8  # train, eval, …
MAX_MODULES = 2000  # watched in a world; modules made anew for every example would be ever more


@dataclass(eq=False)
class World:
    """All that recordings depend on besides the examples, and the types of the pieces recorded there.

    joined: the types of mini-batches of those pieces.
    """

    number: int
    mode: Hashable
    keywords: list[Any]  # kept alive: marks hold ids of tensors
    watch: Watch
    types: Types
    joined: JoinedTypes


@dataclass
class Call:
    """What is known of a mini-batch: `pieces` of known examples; `unknown` are to be recorded."""

    world: World
    keys: list[Hashable]
    places: list[Hashable]  # where each example's piece is kept, None if nowhere
    pieces: list[Any]  # None of an unknown example
    unknown: Sequence[int]


class KnownExamples:
    """The pieces of one batched function. Threads may share it."""

    def __init__(self, key: Callable[..., Hashable], root: nn.Module | None, *, debug: bool = False):
        self.key = key
        self.debug = debug
        self.structures: list[Structure] = []
        self.report = ""  # on the last call, for people
        self._root = root
        self._pieces: dict[Hashable, Piece] = {}
        self._num_nodes = 0
        self._worlds: list[World] = []  # the one used last comes last
        self._numbers = count()
        self._given_up = ""
        self._lock = threading.RLock()

    def look_up(self, examples: Sequence[Sequence[Any]], keywords: dict[str, Any]) -> Call | None:
        """What is known of these examples; None when everything has to be recorded as without keys."""
        marks = _marks(keywords)
        if self._given_up or marks is None:
            self.report = self._given_up or "key is not used: a keyword is neither a tensor, a module nor a constant"
            return None
        keys = self._keys(examples)
        with self._lock:
            world = self._world((Context.current(), torch.is_inference_mode_enabled(), marks), keywords)
            places = _places(world, keys, examples)
            pieces = [None if place is None else self._find(place) for place in places]
        unknown = range(len(examples)) if self.debug else [i for i, piece in enumerate(pieces) if piece is None]
        self.report = f"key: {len(examples) - len(unknown)} of {len(examples)} examples were known"
        return Call(world, keys, places, pieces, unknown)

    def take(self, call: Call, recorder: PieceRecorder, examples: Sequence[Sequence[Any]]) -> bool:
        """Keep what was recorded of the unknown examples. False when keys cannot be used for this function."""
        recorded = [examples[i] for i in call.unknown]
        with self._lock:
            pieces = cut(recorder, recorded, call.world.types)
            if pieces is None:
                self.give_up()
                return False
            for i, piece, change in zip(call.unknown, pieces, recorder.changes, strict=True):
                known = call.pieces[i]
                if self.debug and known is None and call.places[i] is not None:
                    known = self._pieces.get(call.places[i])  # of an example before this one
                if known is not None and (found := change or difference(known, piece)) is not None:
                    raise _wrong_key(call.keys[i], i, found)
                call.pieces[i] = piece
                if change is None and call.places[i] is not None:
                    self._keep(call.places[i], piece)
            self._watch(call.world, recorder)
        changes = Counter(filter(None, recorder.changes))
        self.report += "".join(f"; {n} will always be recorded: {change}" for change, n in changes.items())
        return True

    def give_up(self) -> None:
        """Examples of this function use each other's values: an example that is not recorded has none."""
        with self._lock:
            self._given_up = "key is not used: an example uses values of another one of its mini-batch"
            self.report = self._given_up
            for world in list(self._worlds):
                self._forget(world)

    def _keys(self, examples: Sequence[Sequence[Any]]) -> list[Hashable]:
        keys: list[Hashable] = []
        try:
            for example in examples:
                keys.append(self.key(*example))
        except Exception as error:
            error.add_note(f"while computing the key of example {len(keys)} of the mini-batch")
            raise
        for i, key in enumerate(keys) if any(map(_is_no_key, set(map(type, keys)))) else ():
            if _is_no_key(type(key)):
                raise BatchError(
                    f"the key of example {i} is of type {type(key).__name__}, by which it cannot be found again; give "
                    "a number, a string or a tuple of them that names the example"
                )
        return keys

    def _find(self, place: Hashable) -> Piece | None:
        piece = self._pieces.pop(place, None)
        if piece is not None:
            self._pieces[place] = piece  # used last, kept longest
        return piece

    def _keep(self, place: Hashable, piece: Piece) -> None:
        self._drop(place)
        self._pieces[place] = piece
        self._num_nodes += len(piece.types) + OVERHEAD
        while self._num_nodes > MAX_NODES:
            self._drop(next(iter(self._pieces)))

    def _drop(self, place: Hashable) -> None:
        piece = self._pieces.pop(place, None)
        if piece is not None:
            self._num_nodes -= len(piece.types) + OVERHEAD

    def _world(self, mode: Hashable, keywords: dict[str, Any]) -> World:
        """The world as it is now."""
        for world in reversed(self._worlds):
            if world.mode == mode and world.watch.is_unchanged():
                break
        else:
            leaves = pytree.tree_leaves(keywords)
            roots = [*([] if self._root is None else [self._root]), *[v for v in leaves if isinstance(v, nn.Module)]]
            world = World(next(self._numbers), mode, leaves, Watch(roots), WeakValueDictionary(), {})
            self._worlds.append(world)
            if len(self._worlds) > MAX_WORLDS:
                self._forget(self._worlds[0])
        if self._worlds[-1] is not world:
            self._worlds.remove(world)
            self._worlds.append(world)
        return world

    def _watch(self, world: World, recorder: PieceRecorder) -> None:
        """Watch the modules that were called, also those that only a closure leads to."""
        world.watch.add(recorder.called_modules())
        if len(world.watch) > MAX_MODULES:
            self._forget(world)

    def _forget(self, world: World) -> None:
        if world in self._worlds:
            self._worlds.remove(world)
        for place in [place for place in self._pieces if place[0] == world.number]:  # type: ignore[index]
            self._drop(place)


def _is_no_key(kind: type) -> bool:
    return issubclass(kind, Tensor) or kind.__hash__ is None


def _places(world: World, keys: list[Hashable], examples: Sequence[Sequence[Any]]) -> list[Hashable]:
    """Where the pieces of examples are kept: by their keys, and by the specs of the tensors in their columns."""
    number, columns = world.number, len(examples[0])
    if not any(issubclass(t, Tensor) for t in set(map(type, chain.from_iterable(examples)))):
        return [None if key is None else (number, key, columns) for key in keys]
    return [
        None
        if key is None
        else (number, key, columns, *[Spec.of(x) if isinstance(x, Tensor) else None for x in example])
        for key, example in zip(keys, examples, strict=True)
    ]


def _marks(keywords: dict[str, Any]) -> Hashable | None:
    """What tells keywords apart; None when they hold what may change without being another object."""
    if not keywords:
        return ()
    leaves, structure = pytree.tree_flatten(keywords)
    marks: list[Hashable] = [repr(structure)]
    for leaf in leaves:
        if isinstance(leaf, Tensor | nn.Module | FunctionType):
            marks.append(id(leaf))
        elif isinstance(leaf, SCALARS):
            marks.append((type(leaf), float_bits(leaf) if type(leaf) is float else leaf))
        else:
            return None
    return tuple(marks)


def _wrong_key(key: Hashable, example: int, found: str) -> WrongKeyError:
    return WrongKeyError(
        f"key {key!r} of example {example} of the mini-batch was given before to an example that was recorded "
        f"differently: {found}. An example with a known key is not recorded again, so examples may have the same key "
        "only if they are alike in all but the tensors in their columns; put what differs into the key, or give None "
        "as the key of what must always be recorded"
    )
