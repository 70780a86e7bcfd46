"""The policies: which ready type to launch next.

In: a `Graph`. Out: a `Schedule`. Each policy is a small value with a name; the loops are numba's, in `frontier`, and
are imported at first use. Everywhere ties go to the smaller type id, and node ids ascend inside a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np

from edbatch.errors import PolicyError
from edbatch.planning.graph import Graph
from edbatch.planning.schedule import Policy, Schedule


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
        from edbatch.planning import frontier

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
        from edbatch.planning import frontier

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
        from edbatch.planning import frontier

        g = graph.reversed() if self.backward else graph
        order, starts, types = frontier.run_ratio_greedy(g.types, g.offsets, g.inputs, g.num_types)
        if self.backward:
            # Turning both the batches and the ids round keeps ids ascending inside a batch.
            order, starts, types = (len(order) - 1 - order)[::-1], (len(order) - starts)[::-1], types[::-1]
        return Schedule(order, starts, types, graph.type_names)


@dataclass(frozen=True)
class BoundGreedy:
    """Launch the type after which the lower bound of what remains is smallest, then the one with most ready nodes.

    >>> BoundGreedy().run(Graph.from_lists("abab", [[], [], [1], [2]])).batches
    (('b', [1]), ('a', [0, 2]), ('b', [3]))
    """

    name: ClassVar[str] = "bound-greedy"

    def run(self, graph: Graph) -> Schedule:
        from edbatch.planning import frontier

        batches = frontier.run_bound_greedy(graph.types, graph.offsets, graph.inputs, graph.num_types)
        return Schedule(*batches, graph.type_names)


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
        from edbatch.planning import exact

        if graph.num_nodes > self.max_nodes:
            raise PolicyError(
                f"the exact policy takes graphs of at most {self.max_nodes} nodes and this one has {graph.num_nodes}; "
                "raise max_nodes or use bound-greedy"
            )
        batches = exact.shortest(graph, self.max_states)
        order = np.fromiter(chain.from_iterable(nodes for _, nodes in batches), np.int64, graph.num_nodes)
        starts = np.cumsum([0, *(len(nodes) for _, nodes in batches)])
        return Schedule(order, starts, np.array([t for t, _ in batches], np.int32), graph.type_names)


_POLICIES: tuple[Policy, ...] = (
    Depth(), Agenda(), AgendaRemaining(), RatioGreedy(), RatioGreedy(backward=True), BoundGreedy(), Exact(),
)  # fmt: skip


def from_name(name: str) -> Policy:
    """The policy of this name; underscores are as good as hyphens.

    >>> from_name("ratio_greedy_backward")
    RatioGreedy(backward=True)

    Raises:
        PolicyError: no policy has this name; the message lists those that exist.
    """
    for policy in _POLICIES:
        if policy.name == name.replace("_", "-"):
            return policy
    raise PolicyError(f"no policy is called {name!r}; choose one of {', '.join(policy.name for policy in _POLICIES)}")
