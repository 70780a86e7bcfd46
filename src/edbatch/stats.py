"""What a batched call did, in numbers: batches, copies, memory, time per stage.

In: the plan of the call (recorded calls, schedule, layout), its memory and its times. Out: `Stats`, ready to print.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edbatch.layout.layout import Ints
from edbatch.runtime.plan import Plan
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.schedule import Schedule
from edbatch.storage.compile_time import seconds_compiling

LAUNCH, OP, OP_OF_NODE = 6.0, 1.5, 0.05  # microseconds, roughly: of a batch, of an op in it, of that for each node
STAGES = ("record", "rewrite", "schedule", "plan", "compile", "run", "backward")


class Stopwatch:
    """Seconds by stage: `with stopwatch("run"): …`. A stage may come several times, but not inside another.

    Time to compile machine code, or to load it, counts as the stage "compile", wherever it happens.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stage, self._begin, self._compiling = "", 0.0, 0.0

    def __call__(self, stage: str) -> Stopwatch:
        self._stage = stage
        return self

    def __enter__(self) -> None:
        self._begin, self._compiling = time.perf_counter(), seconds_compiling()

    def __exit__(self, *_: object) -> None:
        compiling = seconds_compiling() - self._compiling
        self._add(self._stage, time.perf_counter() - self._begin - compiling)
        if compiling:
            self._add("compile", compiling)

    def _add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


@dataclass(frozen=True)
class TypeStats:
    """One type of node: the calls that the same kernel computes."""

    name: str
    num_nodes: int
    num_batches: int
    reason: str | None  # why its nodes ran one by one; None when they were batched
    cost: float = 0.0  # an estimate of its share of the time to run, in any unit


@dataclass(frozen=True, eq=False, repr=False)
class Stats:
    """The numbers of the last call of a batched function. They are counted when they are asked for, since mostly nobody
    does.

    >>> import torch, edbatch
    >>> batched = edbatch.batch(lambda x, n: (n * x).sum())
    >>> _ = batched(torch.ones(2, 3), [1, 2])
    >>> print(batched.stats)  # doctest: +ELLIPSIS
    4 nodes of 2 types in 2 batches; lower bound 2
      operands: 2 views, 0 gathers (0.0 kB copied); arenas ... kB
      time: record ... ms, rewrite ... ms, schedule ... ms, plan ... ms, compile ... ms, run ... ms; ... ms in all

    seconds: by stage (record, rewrite, schedule, plan, compile, run, and backward once it has run).
    peak_bytes: the memory of all values.
    """

    seconds: dict[str, float]
    peak_bytes: int
    graph: Graph
    _schedule: Schedule
    _reasons: tuple[str | None, ...]
    _num_ops: tuple[int, ...]
    _row_bytes: Ints
    _slot_first: Ints
    _slot_size: Ints

    @staticmethod
    def of(plan: Plan, peak_bytes: int, seconds: dict[str, float]) -> Stats:
        types, layout = plan.recording.type_set, plan.layout
        return Stats(
            seconds, peak_bytes, plan.graph, plan.schedule, types.reasons,
            types.num_ops, types.row_bytes, layout.slot_first,
            layout.slot_size,
        )  # fmt: skip

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    @property
    def num_types(self) -> int:
        return self.graph.num_types

    @property
    def num_batches(self) -> int:
        return self._schedule.num_batches

    @property
    def unseen_states(self) -> int:
        """Launches in states that a learned policy did not know, where its rule decided."""
        return self._schedule.unseen_states

    @cached_property
    def types(self) -> tuple[TypeStats, ...]:
        nodes, batches = (
            np.bincount(types, minlength=self.num_types).tolist()
            for types in (self.graph.types, self._schedule.batch_types)
        )
        launches = (n if reason is not None else b for n, b, reason in zip(nodes, batches, self._reasons, strict=True))
        costs = [
            number * (LAUNCH + OP * ops) + OP_OF_NODE * ops * n
            for number, ops, n in zip(launches, self._num_ops, nodes, strict=True)
        ]
        return tuple(map(TypeStats, map(str, self.graph.type_names), nodes, batches, self._reasons, costs))

    @cached_property
    def views(self) -> int:
        """Operands of batches that were read in place."""
        return int((self._slot_first >= 0).sum())

    @cached_property
    def gathers(self) -> int:
        """Operands of batches that were copied."""
        return int((self._slot_first == -1).sum())

    @cached_property
    def bytes_copied(self) -> int:
        """How many bytes these gathers copied."""
        row_bytes = self._row_bytes[self._schedule.batch_types, : self._slot_size.shape[1]]
        return int((self._slot_size * row_bytes * (self._slot_first == -1)).sum())

    def __str__(self) -> str:
        batches = f"{self.num_nodes} nodes of {self.num_types} types in {self.num_batches} batches"
        return "\n".join([f"{batches}; lower bound {self.graph.lower_bound()}", *self.costs()])

    def costs(self) -> list[str]:
        """What was copied, and the time of each stage: indented lines of text."""
        times = [(stage, self.seconds[stage]) for stage in STAGES if stage in self.seconds]
        stages = ", ".join(f"{stage} {1e3 * seconds:.2f} ms" for stage, seconds in times)
        return [
            f"  operands: {self.views} views, {self.gathers} gathers ({_bytes(self.bytes_copied)} copied); arenas "
            f"{_bytes(self.peak_bytes)}",
            f"  time: {stages}; {1e3 * sum(self.seconds.values()):.2f} ms in all",
        ]

    def __repr__(self) -> str:
        names = ("num_nodes", "num_batches", "types", "views", "gathers", "bytes_copied", "peak_bytes", "unseen_states",
                 "seconds")  # fmt: skip
        return f"Stats({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _bytes(number: int) -> str:
    return f"{number / 1e6:.1f} MB" if number >= 1e6 else f"{number / 1e3:.1f} kB"
