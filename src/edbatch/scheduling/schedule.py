"""The schedule of a mini-batch: which nodes run together, and in which order.

In: a `Graph`, and a policy, which decides what to launch next. Out: a `Schedule`: the batches in launch order, as flat
arrays. Later stages (layout and execution) read the schedule and know nothing of the policy.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from edbatch.errors import GraphError
from edbatch.scheduling.graph import Graph, Ints

_SHOWN_BATCHES = 8


class Policy(Protocol):
    """Anything with a name that turns a graph into a schedule."""

    @property
    def name(self) -> str: ...

    def run(self, graph: Graph) -> Schedule: ...


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """Batch `b` launches the nodes `order[starts[b]:starts[b + 1]]`, all of type `type_names[batch_types[b]]`.

    >>> schedule(Graph.from_lists(["leaf", "leaf", "node"], [[], [], [0, 1]]), "depth")
    Schedule(2 batches of 3 nodes: leaf×2, node×1)
    """

    order: Ints
    starts: Ints
    batch_types: Ints
    type_names: tuple[Hashable, ...]
    unseen_states: int = 0  # how often a learned policy met a state that it had not learned, and used its rule

    def __post_init__(self) -> None:
        # Contiguous and of one dtype per field, so that loops over schedules are compiled once.
        object.__setattr__(self, "order", np.ascontiguousarray(self.order, np.int64))
        object.__setattr__(self, "starts", np.ascontiguousarray(self.starts, np.int64))
        object.__setattr__(self, "batch_types", np.ascontiguousarray(self.batch_types, np.int32))

    @property
    def num_batches(self) -> int:
        return len(self.batch_types)

    @cached_property
    def batches(self) -> tuple[tuple[Hashable, list[int]], ...]:
        """The batches in launch order, each as (name of its type, node ids). For people; code uses the flat arrays.

        >>> schedule(Graph.from_lists(["leaf", "leaf", "node"], [[], [], [0, 1]]), "depth").batches
        (('leaf', [0, 1]), ('node', [2]))
        """
        nodes, starts = self.order.tolist(), self.starts.tolist()
        return tuple(
            (self.type_names[type_id], nodes[starts[b] : starts[b + 1]])
            for b, type_id in enumerate(self.batch_types.tolist())
        )

    def check(self, graph: Graph) -> None:
        """Raise a GraphError unless every node runs exactly once, in a batch of its type, after all of its inputs.

        >>> graph = Graph.from_lists("ab", [[], [0]])
        >>> Schedule(np.array([1, 0]), np.array([0, 1, 2]), np.array([1, 0]), ("a", "b")).check(graph)
        Traceback (most recent call last):
        edbatch.errors.GraphError: node 1 runs in batch 0 but its input 0 in batch 1; inputs must run earlier
        """
        self._check_batches(graph)
        seen = np.bincount(self.order, minlength=graph.num_nodes)
        wrong = np.flatnonzero(seen != 1)
        if len(wrong):
            raise GraphError(f"node {wrong[0]} runs {seen[wrong[0]]} times; every node must run exactly once")
        batch_of = np.empty(graph.num_nodes, np.int64)
        batch_of[self.order] = np.repeat(np.arange(self.num_batches), np.diff(self.starts))
        wrong = np.flatnonzero(graph.types != self.batch_types[batch_of])
        if len(wrong):
            node = wrong[0]
            raise GraphError(
                f"node {node} of type {graph.type_names[graph.types[node]]!r} runs in batch {batch_of[node]} of type "
                f"{self.type_names[self.batch_types[batch_of[node]]]!r}; a batch must hold nodes of its own type only"
            )
        owners = np.repeat(np.arange(graph.num_nodes), np.diff(graph.offsets))
        wrong = np.flatnonzero(batch_of[graph.inputs] >= batch_of[owners])
        if len(wrong):
            node, source = owners[wrong[0]], graph.inputs[wrong[0]]
            raise GraphError(
                f"node {node} runs in batch {batch_of[node]} but its input {source} in batch {batch_of[source]}; "
                "inputs must run earlier"
            )

    def _check_batches(self, graph: Graph) -> None:
        """The part of `check` that makes the arrays safe to index with one another."""
        n, starts = graph.num_nodes, self.starts
        if self.type_names != graph.type_names:
            raise GraphError("the schedule has other type_names than the graph; make it from this graph")
        if len(starts) != self.num_batches + 1 or starts[0] != 0 or starts[-1] != len(self.order):
            raise GraphError(
                f"{self.num_batches} batches of {len(self.order)} nodes have starts {starts.tolist()[:8]}; there must "
                f"be {self.num_batches + 1}, from 0 to {len(self.order)}"
            )
        empty = np.flatnonzero(np.diff(starts) <= 0)
        if len(empty):
            raise GraphError(f"batch {empty[0]} is empty; starts must rise from batch to batch")
        if ((self.batch_types < 0) | (self.batch_types >= graph.num_types)).any():
            raise GraphError(f"a batch has a type id outside 0..{graph.num_types - 1}; take ids from the graph")
        unknown = self.order[(self.order < 0) | (self.order >= n)]
        if len(unknown):
            raise GraphError(
                f"node {unknown[0]} runs but the graph has nodes 0..{n - 1}; make the schedule from this graph"
            )

    def __repr__(self) -> str:
        sizes = np.diff(self.starts[: _SHOWN_BATCHES + 1])
        shown = [f"{self.type_names[t]}×{size}" for t, size in zip(self.batch_types, sizes, strict=False)]
        if self.num_batches > _SHOWN_BATCHES:
            shown.append(f"… {self.num_batches - _SHOWN_BATCHES} more")
        listed = f": {', '.join(shown)}" if shown else ""
        return f"Schedule({self.num_batches} batches of {len(self.order)} nodes{listed})"


def schedule(graph: Graph, policy: Policy | str) -> Schedule:
    """Order the graph's nodes into batches by a policy, given as an object or by its name.

    >>> schedule(Graph.from_lists("aab", [[], [], [0, 1]]), "bound-greedy").num_batches
    2

    Raises:
        GraphError: the arrays of the graph are inconsistent (see `Graph.check`).
        PolicyError: no policy has this name, or the policy cannot schedule this graph.
    """
    graph.check()
    if isinstance(policy, str):
        from edbatch.scheduling import policies  # policies make schedules, so they import this module

        policy = policies.from_name(policy)
    return policy.run(graph)
