"""The graph of a mini-batch: nodes with types, and the edges between them, as flat arrays.

In: the arrays of a recording, or plain lists written by hand. Out: a `Graph`, from which schedules and layouts are
made. A node is one recorded call; nodes of one type can run together as one batch. Node ids follow the order of
recording, so every input of a node has a smaller id than the node: the graph is acyclic, and every pass over it is one
loop.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from edbatch.errors import GraphError

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]

_SHOWN_TYPES = 8


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """Node `i` has type `type_names[types[i]]` and inputs `inputs[offsets[i]:offsets[i + 1]]`, all smaller than `i`.

    The constructor converts dtypes and checks nothing. `schedule` and `learn_policy` call `check`; the `run` of a
    policy does not.

    >>> Graph.from_lists(["leaf", "leaf", "node", "out"], [[], [], [0, 1], [2]])
    Graph(4 nodes, 3 edges: leaf×2, node×1, out×1)
    """

    types: Ints
    inputs: Ints
    offsets: Ints
    type_names: tuple[Hashable, ...]

    def __post_init__(self) -> None:
        # One dtype per field, so that every loop is compiled once.
        object.__setattr__(self, "types", np.ascontiguousarray(self.types, np.int32))
        object.__setattr__(self, "inputs", np.ascontiguousarray(self.inputs, np.int64))
        object.__setattr__(self, "offsets", np.ascontiguousarray(self.offsets, np.int64))

    @staticmethod
    def from_lists(types: Iterable[Hashable], inputs: Iterable[Sequence[int]]) -> Graph:
        """A graph from plain lists: `types[i]` is any hashable, `inputs[i]` the ids of the nodes that node `i` reads.

        >>> Graph.from_lists("aab", [[], [0], [1, 1]]).lower_bound()
        3

        Raises:
            GraphError: the lists differ in length, or an input is not the id of an earlier node.
        """
        types, inputs = list(types), list(inputs)
        if len(types) != len(inputs):
            raise GraphError(
                f"a graph of {len(types)} types has {len(inputs)} lists of inputs; "
                "give one list of inputs per node, empty for a source"
            )
        id_of: dict[Hashable, int] = {}
        try:
            type_ids = [id_of.setdefault(name, len(id_of)) for name in types]
        except TypeError as error:
            raise GraphError(f"{error}; the type of a node must be hashable, e.g. a string or a tuple") from error
        flat = np.array(list(chain.from_iterable(inputs)) or np.empty(0, np.int64))
        if flat.ndim != 1 or flat.dtype.kind not in "iu":
            raise GraphError(f"inputs hold values of {flat.dtype}; give the ids of earlier nodes, which are ints")
        lengths = np.fromiter(map(len, inputs), np.int64, len(inputs))
        graph = Graph(np.array(type_ids, np.int32), flat, np.concatenate(([0], np.cumsum(lengths))), tuple(id_of))
        graph.check()
        return graph

    @property
    def num_nodes(self) -> int:
        return len(self.types)

    @property
    def num_types(self) -> int:
        return len(self.type_names)

    def lower_bound(self) -> int:
        """No schedule has fewer batches than this: the sum over types of the most nodes of that type on one path.

        Nodes on one path can only run one after the other.

        >>> Graph.from_lists("abab", [[], [0], [1], [2]]).lower_bound()
        4
        """
        from edbatch.scheduling import frontier

        if not self.num_nodes:
            return 0
        return int(frontier.heights(self.types, self.offsets, self.inputs, self.num_types).max(axis=0).sum())

    def depths(self) -> Ints:
        """The number of edges on the longest path from a source to each node.

        >>> Graph.from_lists("aab", [[], [0], [0, 1]]).depths()
        array([0, 1, 2], dtype=int32)
        """
        from edbatch.scheduling import frontier

        return frontier.depths(self.offsets, self.inputs)

    def reversed(self) -> Graph:
        """The graph with every edge reversed; node `i` becomes `num_nodes - 1 - i`, type ids stay.

        >>> Graph.from_lists("ab", [[], [0]]).reversed().types
        array([1, 0], dtype=int32)
        """
        from edbatch.scheduling import frontier

        starts, consumers = frontier.consumers(self.offsets, self.inputs)
        last = self.num_nodes - 1
        return Graph(self.types[::-1], (last - consumers)[::-1], (len(consumers) - starts)[::-1], self.type_names)

    def check(self) -> None:
        """Raise a GraphError if the arrays are inconsistent; it names the first node at fault.

        >>> Graph(np.array([0]), np.array([0]), np.array([0, 1]), ("a",)).check()
        Traceback (most recent call last):
        edbatch.errors.GraphError: node 0 of type 'a' has input 0; inputs must be earlier nodes, 0 or more and below 0
        """
        n, offsets = self.num_nodes, self.offsets
        if len(offsets) != n + 1:
            raise GraphError(f"a graph of {n} nodes has {len(offsets)} offsets; give one more than there are nodes")
        if offsets[0] != 0 or offsets[-1] != len(self.inputs) or (offsets[1:] < offsets[:-1]).any():
            raise GraphError(
                f"offsets run from {offsets[0]} to {offsets[-1]} over {len(self.inputs)} inputs; "
                f"they must start at 0, never fall, and end at {len(self.inputs)}"
            )
        bad = np.flatnonzero((self.types < 0) | (self.types >= self.num_types))
        if len(bad):
            raise GraphError(
                f"node {bad[0]} has type id {self.types[bad[0]]}; ids must be at least 0 and below {self.num_types}, "
                "the number of type_names"
            )
        owners = np.repeat(np.arange(n), np.diff(offsets))
        bad = np.flatnonzero((self.inputs < 0) | (self.inputs >= owners))
        if len(bad):
            node = owners[bad[0]]
            raise GraphError(
                f"node {node} of type {self.type_names[self.types[node]]!r} has input {self.inputs[bad[0]]}; "
                f"inputs must be earlier nodes, 0 or more and below {node}"
            )

    def __repr__(self) -> str:
        counts = np.bincount(self.types, minlength=self.num_types)
        shown = [f"{name}×{count}" for name, count in zip(self.type_names[:_SHOWN_TYPES], counts, strict=False)]
        if self.num_types > _SHOWN_TYPES:
            shown.append(f"… {self.num_types - _SHOWN_TYPES} more types")
        listed = f": {', '.join(shown)}" if shown else ""
        return f"Graph({self.num_nodes} nodes, {len(self.inputs)} edges{listed})"
