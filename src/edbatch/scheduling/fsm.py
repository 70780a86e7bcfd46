"""A learned policy: a finite state machine that decides which type to launch next.

In: states and the type to launch in each, from `learning` or from a file. Out: schedules of graphs. A state is what the
machine sees of the ready types; `machine` explains states and how the machine runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from edbatch.errors import PolicyError
from edbatch.scheduling.graph import Graph, Ints
from edbatch.scheduling.learning_record import Training
from edbatch.scheduling.schedule import Schedule

if TYPE_CHECKING:
    from edbatch.scheduling.machine import Table

ENCODINGS = ("base", "max", "sort", "signs")
MARKS = 4  # a state is a list of symbols; a symbol stands for a type and its mark: MARKS * type + mark
MARK_NAMES = {
    "base": ("",),
    "max": ("", "most"),
    "sort": ("",),
    "signs": ("", "lowers", "longest", "lowers longest"),
}


class MachineState(NamedTuple):
    """One state in readable form: the types it sees, what the machine launches there, how often that was learned."""

    ready: tuple[tuple[Hashable, str], ...]  # types and their marks
    launch: Hashable
    visits: int


@dataclass(frozen=True, eq=False, repr=False)
class Fsm:
    """State `i` is `symbols[starts[i]:starts[i + 1]]`; in it the machine launches `types[actions[i]]`.

    In states that it has not learned a fixed rule decides, of which `crowd` is a parameter (see `machine`).

    >>> from edbatch.scheduling.learning import learn_policy
    >>> graph = Graph.from_lists(["leaf", "leaf", "node", "leaf", "node"], [[], [], [0, 1], [], [2, 3]])
    >>> policy = learn_policy([graph])
    >>> policy
    Fsm(signs: 2 states over 2 types)
    >>> policy.run(graph).batches
    (('leaf', [0, 1, 3]), ('node', [2]), ('node', [4]))
    """

    types: tuple[Hashable, ...]
    encoding: str
    symbols: Ints
    starts: Ints
    actions: Ints
    visits: Ints
    crowd: float
    training: Training

    name: ClassVar[str] = "fsm"

    @property
    def num_states(self) -> int:
        return len(self.actions)

    def run(self, graph: Graph) -> Schedule:
        """The machine's schedule.

        Raises:
            PolicyError: the graph has types that the machine was not learned for.
        """
        return self.play(graph)[0]

    def play(self, graph: Graph) -> tuple[Schedule, int]:
        """The machine's schedule and the graph's lower bound, which is a by-product."""
        from edbatch.scheduling import machine

        is_same = graph.type_names == self.types  # as in most mini-batches: ids need not be translated
        ids = np.empty(0, np.int32) if is_same else self._ids_in(graph)
        (order, starts, batch_types), unseen, bound = machine.play(
            graph.types if is_same else ids[graph.types], graph.offsets, graph.inputs, len(self.types),
            ENCODINGS.index(self.encoding), self.crowd, self._table, np.zeros(1, np.uint64), 0.0, 0.0, 0.0, 0.0, 1,
        )  # fmt: skip
        if not is_same:
            ids_back = np.zeros(len(self.types), np.int32)
            ids_back[ids] = np.arange(len(ids))
            batch_types = ids_back[batch_types]
        return Schedule(order, starts, batch_types, graph.type_names, unseen_states=unseen), bound

    def unknown_types(self, graph: Graph) -> list[Hashable]:
        """The types of a graph that the machine was not learned for."""
        return [name for name in graph.type_names if name not in self._id_of]

    def with_types(self, types: Iterable[Hashable]) -> Fsm:
        """The same machine for more types; states that contain new types are left to the rule."""
        return replace(self, types=(*self.types, *(name for name in types if name not in self._id_of)))

    def joined(self, other: Fsm) -> Fsm:
        """This machine with the types of another one added and, if both have the same encoding, the states."""
        joined = self.with_types(other.types)
        if other.encoding != self.encoding:
            return joined
        ids = np.array([joined._id_of[name] for name in other.types], np.int64)
        known = {tuple(self.symbols[a:b]) for a, b in pairwise(self.starts)}
        symbols, lengths, more = [self.symbols], [np.diff(self.starts)], []
        for i, (a, b) in enumerate(pairwise(other.starts)):
            translated = MARKS * ids[other.symbols[a:b] // MARKS] + other.symbols[a:b] % MARKS
            if self.encoding != "sort":
                translated.sort()  # by type id
            if tuple(translated) not in known:
                symbols.append(translated)
                lengths.append(np.array([b - a]))
                more.append(i)
        return replace(
            joined,
            symbols=np.concatenate(symbols).astype(np.int32),
            starts=np.concatenate(([0], np.cumsum(np.concatenate(lengths)))),
            actions=np.concatenate((self.actions, ids[other.actions[more]])),
            visits=np.concatenate((self.visits, other.visits[more])),
        )

    def states(self) -> list[MachineState]:
        """What the machine does, the most visited states first.

        >>> from edbatch.scheduling.learning import learn_policy
        >>> learn_policy([Graph.from_lists("ab", [[], [0]])]).states()[0]
        MachineState(ready=(('a', 'lowers longest'),), launch='a', visits=1)
        """
        marks = MARK_NAMES[self.encoding]
        found = []
        for i in np.argsort(-self.visits, kind="stable"):
            symbols = self.symbols[self.starts[i] : self.starts[i + 1]].tolist()
            ready = tuple((self.types[symbol // MARKS], marks[symbol % MARKS]) for symbol in symbols)
            found.append(MachineState(ready, self.types[self.actions[i]], int(self.visits[i])))
        return found

    def save(self, path: str | Path) -> None:
        """Write the machine as JSON, all of it or nothing; `edbatch.load_policy` reads it."""
        from edbatch.scheduling import policy_file

        policy_file.save(self, Path(path))

    @cached_property
    def _id_of(self) -> dict[Hashable, int]:
        return {name: i for i, name in enumerate(self.types)}

    @cached_property
    def _table(self) -> Table:
        from edbatch.scheduling import machine

        table = machine.empty_table(len(self.types), max(self.num_states, 1))
        machine.insert_all(table, self.symbols, self.starts)
        table.counts[np.arange(self.num_states), self.actions] = 1
        return table

    def _ids_in(self, graph: Graph) -> Ints:
        """For each type of the graph its id in this machine."""
        unknown = self.unknown_types(graph)
        if unknown:
            shown = ", ".join(map(repr, unknown[:3])) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
            raise PolicyError(
                f"the policy was learned for other types: it does not know {shown}; learn one from graphs of this "
                'model, or use policy="learned" or edbatch.policies.Learned(policy), which learn again for new types'
            )
        return np.array([self._id_of[name] for name in graph.type_names], np.int32)

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_table", "_id_of")}

    def __repr__(self) -> str:
        return f"Fsm({self.encoding}: {self.num_states} states over {len(self.types)} types)"
