"""Finds a schedule with the fewest batches, for small graphs: for the ops inside a cell, and to judge other policies.

In: a graph. Out: the batches. It is an A* search over sets of launched nodes, which are held as the bits of ints:

* launching all ready nodes of a type is never worse than launching some of them, so a move is a type;
* the estimate of what is still to come is the lower bound of the remaining nodes. A launch lowers it by one or not at
  all (see `frontier.run_bound_greedy`), so length + estimate grows by 0 or 1 per move, and a deque that is filled at
  both ends replaces the heap;
* if all free nodes of a type are ready (see `policies.RatioGreedy`), some shortest schedule starts with that type, so
  it is the only move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from edbatch.errors import PolicyError
from edbatch.scheduling.graph import Graph

Path = tuple[int, int, "Path"] | None  # (type, launched nodes, path before), shared between states


@dataclass(frozen=True, slots=True)
class SearchState:
    """Which nodes are launched and which are ready, as bits, and the launches that led there."""

    done: int
    ready: int
    path: Path


def bits(mask: int) -> Iterator[int]:
    """The positions of the ones, ascending.

    >>> list(bits(0b1101))
    [0, 2, 3]
    """
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def shortest(graph: Graph, max_states: int) -> list[tuple[int, list[int]]]:
    """The batches of a shortest schedule as (type id, node ids).

    >>> shortest(Graph.from_lists("abab", [[], [], [1], [2]]), max_states=100)
    [(1, [1]), (0, [0, 2]), (1, [3])]
    """
    search = _Search(graph)
    sources = sum(1 << i for i in range(graph.num_nodes) if not search.inputs[i])
    todo = deque([SearchState(0, sources, None)])
    closed: set[int] = set()
    while todo:
        state = todo.popleft()
        if not state.ready:
            return _unwind(state.path)
        if state.done in closed:
            continue
        closed.add(state.done)
        if len(closed) > max_states:
            raise PolicyError(
                f"the exact policy looked at {max_states} states of a graph of {graph.num_nodes} nodes without finding "
                "a shortest schedule; raise max_states or use bound-greedy"
            )
        # The best move by bound greedy's rule is pushed last, so that it is the first to be looked at.
        for lowers, _, negative_type in sorted(search.moves(state)):
            following = search.launch(state, -negative_type)
            if lowers:
                todo.appendleft(following)
            else:
                todo.append(following)
    raise AssertionError("unreachable: a ready type can always be launched")


class _Search:
    """A graph as bit sets, and the moves from a state."""

    def __init__(self, graph: Graph) -> None:
        n, types, offsets, inputs = graph.num_nodes, graph.types.tolist(), graph.offsets.tolist(), graph.inputs.tolist()
        self.inputs = [0] * n
        self.consumers = [0] * n
        self.descendants = [0] * n
        self.of_type = [0] * graph.num_types
        self.height = [[0] * graph.num_types for _ in range(n)]
        for i in reversed(range(n)):
            self.of_type[types[i]] |= 1 << i
            self.height[i][types[i]] += 1
            for p in inputs[offsets[i] : offsets[i + 1]]:
                self.inputs[i] |= 1 << p
                self.consumers[p] |= 1 << i
                self.descendants[p] |= self.descendants[i] | 1 << i
                self.height[p] = [max(pair) for pair in zip(self.height[p], self.height[i], strict=True)]

    def moves(self, state: SearchState) -> list[tuple[bool, int, int]]:
        """Every move worth trying, as (lowers the bound, nodes launched, -type); only one if it is known to be best."""
        found = []
        for t, of_type in enumerate(self.of_type):
            batch = state.ready & of_type
            if not batch:
                continue
            below = 0
            for i in bits(batch):
                below |= self.descendants[i]
            top = max(self.height[i][t] for i in bits(batch))
            others = max((self.height[i][t] for i in bits(state.ready & ~of_type)), default=0)
            move = (top > others, batch.bit_count(), -t)
            if not of_type & ~(state.done | batch | below):
                return [move]
            found.append(move)
        return found

    def launch(self, state: SearchState, t: int) -> SearchState:
        batch = state.ready & self.of_type[t]
        done, ready = state.done | batch, state.ready & ~batch
        touched = 0
        for i in bits(batch):
            touched |= self.consumers[i]
        for c in bits(touched):
            if not self.inputs[c] & ~done:
                ready |= 1 << c
        return SearchState(done, ready, (t, batch, state.path))


def _unwind(path: Path) -> list[tuple[int, list[int]]]:
    batches = []
    while path:
        type_id, batch, path = path
        batches.append((type_id, list(bits(batch))))
    return batches[::-1]
