"""Learns a finite state machine by Q-learning: runs over graphs, learns what each launch is worth, and keeps the best.

In: graphs. Out: an `Fsm`, which is a policy. The same graphs and seed give the same machine in any process: random
numbers come from a counter, and budgets are episodes, never seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from edbatch.errors import PolicyError
from edbatch.scheduling.fsm import ENCODINGS, Fsm
from edbatch.scheduling.graph import Graph, Ints
from edbatch.scheduling.learning_record import Evaluation, QLearning, Training

if TYPE_CHECKING:
    from edbatch.scheduling.machine import Table


def learn_policy(
    graphs: Sequence[Graph], encoding: str = "signs", seed: int = 0, *, held_out: Sequence[Graph] = (),
    settings: QLearning | None = None, progress: Callable[[Evaluation], object] | None = None,
) -> Fsm:  # fmt: skip
    """Learn a finite state machine from graphs; of all machines met on the way, the one with the fewest batches wins.

    With the encoding "signs", it has no states if none was as good as the fixed rule by itself (see `machine`).

    >>> chains = Graph.from_lists("abab", [[], [], [1], [2]])
    >>> learn_policy([chains], encoding="sort").run(chains).num_batches
    3

    Args:
        graphs: mini-batches to learn from, in turns.
        encoding: what the machine sees of the ready types: "signs" (the best), or the paper's "base", "max", "sort".
        seed: of the exploration.
        held_out: mini-batches that are not learned from; if given, the machine that is best on them is returned.
        settings: how to learn.
        progress: called after each evaluation.

    Raises:
        PolicyError: there is nothing to learn from, or no such encoding.
        GraphError: the arrays of a graph are inconsistent (see `Graph.check`).
    """
    settings = settings or QLearning()
    if isinstance(graphs, Graph) or isinstance(held_out, Graph):
        raise PolicyError("graphs are learned from in a list; give [graph] instead of a graph")
    if not any(graph.num_nodes for graph in graphs):
        raise PolicyError("there is nothing to learn from: give at least one graph that has nodes")
    for graph in (*graphs, *held_out):
        graph.check()
    if encoding not in ENCODINGS:
        raise PolicyError(f"no encoding is called {encoding!r}; choose one of {', '.join(ENCODINGS)}")
    if not isinstance(seed, int):
        raise PolicyError(f"a seed is an int, not {seed!r}")
    lesson = _Lesson(graphs, held_out, encoding, seed, settings)
    guided = settings.demonstrate and encoding == "signs"
    curve = [lesson.choose_rule()]
    chosen, best = 0, lesson.machine()
    if guided:
        for number in range(len(graphs)):
            lesson.play(number, explore=0.0)
    explore = settings.explore
    for episode in range(settings.episodes + 1):
        last = episode == settings.episodes
        if last or (episode % settings.evaluate_every == 0 and (episode or guided)):
            curve.append(lesson.evaluate(episode))
            if progress is not None:
                progress(curve[-1])
            cost, least = lesson.cost(curve[-1]), lesson.cost(curve[chosen])
            if cost < least or (chosen == 0 and (cost == least or not guided)):
                chosen, best = len(curve) - 1, lesson.machine()
            if curve[-1].batches <= settings.stop * lesson.lower_bound:
                break
        if not last:
            lesson.play(episode % len(graphs), explore)
            explore = max(settings.explore_floor, explore * settings.explore_decay)
    training = Training(
        seed=seed, settings=settings, num_graphs=len(graphs), num_nodes=sum(g.num_nodes for g in graphs),
        lower_bound=lesson.lower_bound, held_out_lower_bound=sum(g.lower_bound() for g in held_out), episodes=episode,
        chosen=chosen, curve=tuple(curve),
    )  # fmt: skip
    return Fsm(lesson.types, encoding, *best, lesson.crowd, training)


class _Lesson:
    """The graphs with common type ids, and the table that is learned."""

    def __init__(
        self, graphs: Sequence[Graph], held_out: Sequence[Graph], encoding: str, seed: int, settings: QLearning
    ) -> None:
        from edbatch.scheduling import machine

        id_of: dict[Hashable, int] = {}
        for graph in (*graphs, *held_out):
            for name in graph.type_names:
                id_of.setdefault(name, len(id_of))
        self.types = tuple(id_of)
        self.graphs = [_with_ids(graph, id_of) for graph in graphs]
        self.held_out = [_with_ids(graph, id_of) for graph in held_out]
        self.lower_bound = sum(graph.lower_bound() for graph in graphs)
        self.encoding, self.settings = ENCODINGS.index(encoding), settings
        self.random = np.frombuffer(sha256(str(seed).encode()).digest()[:8], np.uint64).copy()
        self.table: Table = machine.empty_table(len(self.types), settings.max_states)
        self.crowd = settings.crowds[0]

    def choose_rule(self) -> Evaluation:
        """Choose the value of `crowd` with which the rule by itself is best, and return how good it is."""
        judged = []
        for crowd in self.settings.crowds:
            self.crowd = crowd
            judged.append(self.evaluate(0))
        best = min(range(len(judged)), key=lambda k: self.cost(judged[k]))  # the first of equals
        self.crowd = self.settings.crowds[best]
        return judged[best]

    def cost(self, evaluation: Evaluation) -> tuple[int, int]:
        """What is minimised: batches on the held-out graphs, if there are any; among equals, on the training graphs."""
        return evaluation.held_out_batches, evaluation.batches

    def play(self, number: int, explore: float) -> None:
        """One episode: schedule a graph and learn from it."""
        self._play(self.graphs[number], explore, self.settings.learning_rate)

    def evaluate(self, episode: int) -> Evaluation:
        """How good the present table is, without exploring or learning."""
        batches, held_out = (sum(self._play(g, 0.0, 0.0) for g in group) for group in (self.graphs, self.held_out))
        return Evaluation(episode, batches, held_out, int(self.table.size[0]))

    def machine(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The present table as the fields symbols, starts, actions and visits of an `Fsm`."""
        size = int(self.table.size[0])
        lengths, counts = self.table.lengths[:size], self.table.counts[:size]
        symbols = self.table.symbols[:size][np.arange(len(self.types)) < lengths[:, None]]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        actions = np.where(counts > 0, self.table.values[:size], -np.inf).argmax(axis=1)
        return symbols, starts, actions, counts.sum(axis=1)

    def _play(self, graph: Graph, explore: float, rate: float) -> int:
        from edbatch.scheduling import machine

        s = self.settings
        (_, _, batch_types), _, _ = machine.play(
            graph.types, graph.offsets, graph.inputs, len(self.types), self.encoding, self.crowd, self.table,
            self.random, explore, s.alpha, s.discount, rate, s.steps,
        )  # fmt: skip
        return len(batch_types)


def _with_ids(graph: Graph, id_of: dict[Hashable, int]) -> Graph:
    ids = np.array([id_of[name] for name in graph.type_names], np.int32)
    return Graph(ids[graph.types], graph.inputs, graph.offsets, tuple(id_of))
