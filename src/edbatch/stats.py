"""What a call did, in numbers: batches, copies, memory, time per stage."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from edbatch.planning.graph import Graph
from edbatch.planning.layout import Slot
from edbatch.runtime.forward import Plan


class Stopwatch:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begin


@dataclass(frozen=True)
class TypeStats:
    """One type of node in a call."""

    name: str
    num_nodes: int
    num_batches: int
    runs_alone: str | None  # why its nodes ran one by one; None when they were batched


@dataclass(frozen=True)
class Stats:
    """The last call of a batched function.

    seconds: by stage (record, rewrite, schedule, plan, run, and backward once it has run).
    views, gathers: operands of batches read in place, and copied. bytes_copied: by those gathers. peak_bytes: of all
    arenas. unseen_states: launches for which a learned policy knew nothing and followed its rule.
    """

    num_nodes: int
    num_batches: int
    types: tuple[TypeStats, ...]
    views: int
    gathers: int
    bytes_copied: int
    peak_bytes: int
    unseen_states: int
    seconds: dict[str, float]
    graph: Graph = field(repr=False)

    @property
    def num_types(self) -> int:
        return len(self.types)

    @staticmethod
    def of(plan: Plan, peak_bytes: int, seconds: dict[str, float]) -> Stats:
        recorded, layout = plan.recording, plan.layout
        width = layout.slot_first.shape[1]
        row_bytes = np.zeros((len(recorded.node_types), width), np.int64)
        for t, node_type in enumerate(recorded.node_types):
            for k, (slot, spec) in enumerate(zip(node_type.slots, node_type.slot_specs, strict=True)):
                if spec is not None and slot != Slot.DATA:
                    row_bytes[t, k] = math.prod(spec.shape) * spec.dtype.itemsize
        gathered = layout.slot_first == -1
        copied = (layout.slot_size * row_bytes[plan.schedule.batch_types] * gathered).sum()
        batches = np.bincount(plan.schedule.batch_types, minlength=len(recorded.node_types)).tolist()
        return Stats(
            num_nodes=len(recorded.types),
            num_batches=plan.schedule.num_batches,
            types=tuple(
                TypeStats(t.name, nodes, launches, t.kernel.reason)
                for t, nodes, launches in zip(recorded.node_types, layout.type_nodes.tolist(), batches, strict=True)
            ),
            views=int((layout.slot_first >= 0).sum()),
            gathers=int(gathered.sum()),
            bytes_copied=int(copied),
            peak_bytes=peak_bytes,
            unseen_states=plan.schedule.unseen_states,
            seconds=seconds,
            graph=plan.graph,
        )
