"""A plan: everything that is known of a mini-batch before any number is computed.

In: a recording and its schedule. Out: a `Plan`, with the order inside batches and where values lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edbatch.layout.layout import Layout, lay_out
from edbatch.recording.results import Group
from edbatch.recording.types.recording import Recording
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.schedule import Schedule
from edbatch.switches import ALL_ON, Switches


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan:
    """A recorded, scheduled and laid out mini-batch: everything that is known before any number is computed."""

    recording: Recording
    graph: Graph
    schedule: Schedule
    layout: Layout

    def __repr__(self) -> str:
        return f"Plan({self.recording}, {self.layout})"

    def group_rows(self, group: Group) -> np.ndarray:
        """The arena rows of a group of results."""
        recording = self.recording
        rows = self.layout.rows_of(group.refs, recording.types, recording.table, recording.outside_rows[1])
        if not group.is_ragged or group.lengths is None:
            return rows
        return np.concatenate([np.arange(r, r + n) for r, n in zip(rows, group.lengths, strict=True)])

    def check(self) -> None:
        """Raise an error that names the first thing at fault, if there is one: of a part, or where parts disagree."""
        from edbatch.runtime.checking import check_plan

        check_plan(self)


def make_plan(recording: Recording, schedule: Schedule, switches: Switches = ALL_ON) -> Plan:
    if switches.order_batches:
        from edbatch.layout.batch_order import order_batches

        # Cells that run one by one may draw random numbers, which they do in the order of recording.
        types = recording.type_set
        schedule = order_batches(recording.graph, schedule, fixed=types.are_one_by_one, only_sums=types.only_sums)
    counts, rows = recording.outside_rows
    layout = lay_out(recording.graph, recording.args, recording.table, schedule, counts, rows)
    return Plan(recording, recording.graph, schedule, layout)
