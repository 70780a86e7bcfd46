"""The policies: each decides, again and again, which type to launch next.

In: a `Graph`. Out: a `Schedule`. A node is *ready* when all its inputs have been launched; launching a type runs all
its ready nodes as one batch. Each policy is a small object with a name; the loops are in `frontier`, compiled by numba,
and are imported at first use. In all policies ties go to the smaller type id, and node ids ascend inside a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np

from edbatch.errors import PolicyError
from edbatch.scheduling.fsm import Fsm
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.learning import learn_policy
from edbatch.scheduling.learning_record import QLearning
from edbatch.scheduling.schedule import Policy, Schedule


@dataclass(frozen=True)
class Depth:
    """Group nodes by (depth, type) and launch by ascending depth, as TensorFlow Fold does.

    >>> Depth().run(Graph.from_lists("aab", [[], [0], [0]])).batches
    (('a', [0]), ('a', [1]), ('b', [2]))
    """

    name: ClassVar[str] = "depth"

    def run(self, graph: Graph) -> Schedule:
        keys = graph.depths().astype(np.int64) * graph.num_types + graph.types
        order = np.argsort(keys, kind="stable")
        firsts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        return Schedule(order, np.append(firsts, len(order)), graph.types[order[firsts]], graph.type_names)


@dataclass(frozen=True)
class Agenda:
    """Launch the ready type with the smallest mean depth, taken over all of its nodes, as DyNet does.

    >>> Agenda().run(Graph.from_lists("aab", [[], [0], [0]])).batches
    (('a', [0]), ('a', [1]), ('b', [2]))
    """

    name: ClassVar[str] = "agenda"

    def run(self, graph: Graph) -> Schedule:
        from edbatch.scheduling import frontier

        batches = frontier.run_agenda(graph.types, graph.offsets, graph.inputs, graph.num_types, False)
        return Schedule(*batches, graph.type_names)


@dataclass(frozen=True)
class AgendaRemaining:
    """Launch the ready type with the smallest mean depth, taken over those of its nodes that have not run.

    >>> AgendaRemaining().run(Graph.from_lists("aab", [[], [0], [0]])).num_batches
    3
    """

    name: ClassVar[str] = "agenda-remaining"

    def run(self, graph: Graph) -> Schedule:
        from edbatch.scheduling import frontier

        batches = frontier.run_agenda(graph.types, graph.offsets, graph.inputs, graph.num_types, True)
        return Schedule(*batches, graph.type_names)


@dataclass(frozen=True)
class RatioGreedy:
    """Launch the type with the largest ratio of ready nodes to *free* nodes.

    A node is free if it has not run and depends on no other node of its type that has not run. At a ratio of 1 the
    batch cannot become larger by waiting. With `backward`, the reversed graph is scheduled, and the schedule reversed.

    >>> RatioGreedy(backward=True).run(Graph.from_lists("abab", [[], [], [1], [2]])).batches
    (('b', [1]), ('a', [0, 2]), ('b', [3]))
    """

    backward: bool = False

    @property
    def name(self) -> str:
        return "ratio-greedy-backward" if self.backward else "ratio-greedy"

    def run(self, graph: Graph) -> Schedule:
        from edbatch.scheduling import frontier

        g = graph.reversed() if self.backward else graph
        order, starts, types = frontier.run_ratio_greedy(g.types, g.offsets, g.inputs, g.num_types)
        if self.backward:
            # Turning both the batches and the ids round keeps ids ascending inside a batch.
            order, starts, types = (len(order) - 1 - order)[::-1], (len(order) - starts)[::-1], types[::-1]
        return Schedule(order, starts, types, graph.type_names)


@dataclass(frozen=True)
class BoundGreedy:
    """Launch the type that leaves the smallest lower bound for what remains; among equals, that with most ready nodes.

    With a `beam` above 1, that many of the best partial schedules are kept and extended instead of one.

    >>> BoundGreedy(beam=4).run(Graph.from_lists("abab", [[], [], [1], [2]])).batches
    (('b', [1]), ('a', [0, 2]), ('b', [3]))
    """

    beam: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.beam, int) or self.beam < 1:
            raise PolicyError(f"a beam holds at least one schedule, not {self.beam!r}; give an int of 1 or more")

    @property
    def name(self) -> str:
        return "bound-greedy" if self.beam == 1 else f"bound-greedy-{self.beam}"

    def run(self, graph: Graph) -> Schedule:
        from edbatch.scheduling import beam, frontier

        if self.beam == 1 or not graph.num_nodes:
            batches = frontier.run_bound_greedy(graph.types, graph.offsets, graph.inputs, graph.num_types)
            return Schedule(*batches, graph.type_names)
        starts, consumers = frontier.consumers(graph.offsets, graph.inputs)
        heights = frontier.heights(graph.types, graph.offsets, graph.inputs, graph.num_types)
        batch_of, batch_types = beam.run_beam(graph.types, graph.offsets, starts, consumers, heights, self.beam)
        order = np.argsort(batch_of, kind="stable")
        firsts = np.searchsorted(batch_of[order], np.arange(len(batch_types) + 1))
        return Schedule(order, firsts, batch_types, graph.type_names)


@dataclass(frozen=True)
class Exact:
    """A schedule with the fewest batches possible, found by search; raises a PolicyError for graphs beyond its limits.

    >>> Exact().run(Graph.from_lists("abab", [[], [], [1], [2]])).num_batches
    3
    """

    max_nodes: int = 1_000
    max_states: int = 100_000

    name: ClassVar[str] = "exact"

    def run(self, graph: Graph) -> Schedule:
        from edbatch.scheduling import exact

        if graph.num_nodes > self.max_nodes:
            raise PolicyError(
                f"the exact policy takes graphs of at most {self.max_nodes} nodes and this one has {graph.num_nodes}; "
                "raise max_nodes or use bound-greedy"
            )
        batches = exact.shortest(graph, self.max_states)
        order = np.fromiter(chain.from_iterable(nodes for _, nodes in batches), np.int64, graph.num_nodes)
        starts = np.cumsum([0, *(len(nodes) for _, nodes in batches)])
        return Schedule(order, starts, np.array([t for t, _ in batches], np.int32), graph.type_names)


@dataclass
class Learned:
    """Schedules by a finite state machine that it learns from the first graph, and again when a graph has new types.

    Where the machine needs more batches than the lower bound, bound greedy makes a schedule, too, and the shorter one
    is taken. Learning has a budget of work, so it takes about half a second for graphs of any size. If a graph is too
    large for the budget, nothing is learned from it, and a fixed rule decides (see `machine`).

    >>> policy = Learned()
    >>> policy.run(Graph.from_lists("abab", [[], [], [1], [2]])).num_batches
    3
    >>> policy.machine
    Fsm(signs: 2 states over 2 types)
    """

    machine: Fsm | None = None
    seed: int = 0
    lessons: tuple[Graph, ...] = field(default=(), repr=False)  # the graphs it learned from

    name: ClassVar[str] = "learned"
    max_lessons: ClassVar[int] = 4  # then no more: some models have new types in every mini-batch
    max_work: ClassVar[int] = 5_000_000  # per lesson, in launched nodes; those of graphs with many types count more

    def run(self, graph: Graph) -> Schedule:
        if not graph.num_nodes:
            return BoundGreedy().run(graph)
        machine = self.machine
        if machine is None or machine.unknown_types(graph):
            if len(self.lessons) == self.max_lessons:
                schedule = BoundGreedy().run(graph)
                return replace(schedule, unseen_states=schedule.num_batches)
            # Both are set after learning: until then an interrupt or another thread finds the old ones.
            lessons = (*self.lessons, graph)
            machine = self._learn(lessons)
            self.lessons, self.machine = lessons, machine
        schedule, bound = machine.play(graph)
        if schedule.num_batches > bound:
            other = BoundGreedy().run(graph)
            if other.num_batches < schedule.num_batches:
                return other
        return schedule

    def _learn(self, lessons: tuple[Graph, ...]) -> Fsm:
        """A machine for these graphs, with the states of the present machine added."""
        work = max(g.num_nodes * (1 + g.num_types**2 // 800) for g in lessons)
        settings = QLearning()
        if work * settings.evaluate_every > self.max_work:
            settings = replace(settings, episodes=0, crowds=(0.0,), demonstrate=False)
        else:
            settings = replace(settings, episodes=min(settings.episodes, self.max_work // work))
        machine = learn_policy(lessons, seed=self.seed, settings=settings)
        return machine if self.machine is None else machine.joined(self.machine)

    def save(self, path: str | Path) -> None:
        """Write the machine as JSON, all of it or nothing; `edbatch.load_policy` reads it."""
        if self.machine is None:
            raise PolicyError("nothing has been learned yet; call the batched function first, then save its policy")
        self.machine.save(path)


_POLICIES: dict[str, Callable[[], Policy]] = {
    "learned": Learned,
    "depth": Depth,
    "agenda": Agenda,
    "agenda-remaining": AgendaRemaining,
    "ratio-greedy": RatioGreedy,
    "ratio-greedy-backward": lambda: RatioGreedy(backward=True),
    "bound-greedy": BoundGreedy,
    "exact": Exact,
}


def from_name(name: str) -> Policy:
    """The policy of this name, written with hyphens or underscores.

    >>> from_name("ratio_greedy_backward")
    RatioGreedy(backward=True)

    Raises:
        PolicyError: no policy has this name; the message lists those that exist.
    """
    make = _POLICIES.get(name.replace("_", "-"))
    if make is None:
        raise PolicyError(
            f"no policy is called {name!r}; choose one of {', '.join(_POLICIES)}, "
            "or load one by edbatch.load_policy(path)"
        )
    return make()
