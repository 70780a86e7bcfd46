"""The policies: which ready type to launch next.

In: a `Graph`. Out: a `Schedule`. Each policy is a small value with a name; the loops are numba's, in `frontier`, and
are imported at first use. Everywhere ties go to the smaller type id, and node ids ascend inside a batch.
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
    """Launch the ready type of the smallest mean depth over all of its nodes, as DyNet does.

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
    """Launch the ready type of the smallest mean depth over its nodes that have not run.

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
    """Launch the type whose ready nodes are the largest part of its waiting nodes with no waiting node of it above.

    Backward: on the reversed graph, the schedule then reversed.

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
    """Launch the type after which the lower bound of what remains is smallest, then the one with most ready nodes.

    With a beam it goes on with that many of the best beginnings instead of one.

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
    """A shortest schedule, by search; raises a PolicyError beyond the limits.

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
    """Learn a machine from the first graph, again when types are new, and take its schedule or a shorter one.

    The other schedule is bound greedy's; it is made only where the machine needs more batches than the lower bound.
    Learning has a budget of work, so that it takes some half a second for graphs of any size; from a graph that is too
    large for the budget nothing is learned, and the rule decides.

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
    max_lessons: ClassVar[int] = 4  # some models have new types in every mini-batch
    max_work: ClassVar[int] = 5_000_000  # of a lesson: nodes launched; more with many types, whose steps cost more

    def run(self, graph: Graph) -> Schedule:
        if not graph.num_nodes:
            return BoundGreedy().run(graph)
        machine = self.machine
        if machine is None or machine.unknown_types(graph):
            if len(self.lessons) == self.max_lessons:
                schedule = BoundGreedy().run(graph)
                return replace(schedule, unseen_states=schedule.num_batches)
            # Both are replaced when all is learned: an interrupt or another thread never sees one without the other.
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
        """A machine for these graphs, which also knows the states that the machine knew before."""
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
    """A policy of this name; underscores are as good as hyphens.

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
