"""`edbatch bench order`: today's order of nodes inside batches against one that PQ trees find.

Both take turns on one mini-batch, with cells as fused kernels and as torch ops. Of both are reported: how many operands
are read as views, how many are gathered, how many bytes that copies, how long the order takes to find, and how long a
call takes. *PQ trees, known* has found its order in an earlier call, which no planner can beat. *Possible* is a
bound: the gathers that are left when each operand has the order to itself. What both compute is compared with one by
one before anything is timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE
from rich.table import Table

from edbatch.bench import measure, mini_batch
from edbatch.bench.kernels.pq_order import order_by_pq_trees
from edbatch.bench.workloads import MODES, WorkloadRace, markdown_table
from edbatch.layout.batch_order import Bools, order_batches
from edbatch.layout.layout import Slot
from edbatch.runtime.plan import Plan
from edbatch.scheduling.graph import Graph, Ints
from edbatch.scheduling.schedule import Policy, Schedule
from edbatch.stats import Stopwatch
from edbatch.workloads import Workload

TODAY, AGAIN, UNORDERED, PQ, PQ_KNOWN = "today's", "today's, again", "as scheduled", "PQ trees", "PQ trees, known"
ORDERS = (TODAY, UNORDERED, PQ)
FORMS = {"fused": True, "torch ops": False}
SLOW_ROUNDS = 3  # of PQ trees, which take a second to find an order


@dataclass(frozen=True)
class Settings(mini_batch.Settings):
    """What to measure."""

    known = ("tree-lstm", "lattice-lstm", "random-dag", "bilstm-tagger", "module-net")
    min_rounds = 3


@dataclass(frozen=True)
class Facts:
    """What an order must know of types besides the graph; see `order_by_pq_trees`."""

    fixed: Bools
    only_sums: Bools
    arenas: Ints

    @staticmethod
    def of(plan: Plan) -> Facts:
        types = plan.recording.type_set
        arenas = [outputs[0].arena if outputs else -1 for outputs in types.outputs]
        return Facts(types.are_one_by_one, types.only_sums, np.array(arenas, np.int64))


@dataclass
class InPqOrder:
    """A policy that schedules like another one and has PQ trees order the batches. If `keeps`, once for each graph."""

    policy: Policy
    facts: Facts
    keeps: bool = False
    name: str = "in the order of PQ trees"
    _kept: list[tuple[Graph, Ints, Schedule]] = field(default_factory=list)

    def run(self, graph: Graph) -> Schedule:
        schedule = self.policy.run(graph)
        for known, order, found in self._kept:
            if np.array_equal(known.inputs, graph.inputs) and np.array_equal(order, schedule.order):
                return found
        facts = self.facts
        found = order_by_pq_trees(graph, schedule, facts.fixed, facts.only_sums, facts.arenas)
        if self.keeps:
            self._kept.append((graph, schedule.order, found))
        return found


def run(settings: Settings, data: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Measures and returns all there is to say, ready for JSON. `data` is a folder like `$EDBATCH_DATA`."""
    chosen = settings.chosen()
    total = len(chosen) * (1 + len(FORMS) * len(MODES)) * settings.rounds
    with measure.num_threads(settings.threads), measure.progress("measuring", total) as advance:
        return {
            "settings": settings.facts(),
            "machine": measure.machine_facts(),
            "workloads": {workload.name: _measure(workload, settings, data, advance) for workload in chosen},
        }


def _measure(
    workload: Workload, settings: Settings, data: str | os.PathLike[str] | None, advance: Callable[[], object]
) -> dict[str, Any]:
    corpus = mini_batch.load(workload, settings.batch_size, data, settings.seed)
    hidden = mini_batch.hidden_of(workload, settings.hidden)
    model = workload.make(corpus, hidden, settings.seed)
    found: dict[str, Any] = {"data": measure.without_folder(corpus.source, data), "hidden": hidden}
    for form, fuses in FORMS.items():
        races = [WorkloadRace(model, corpus.train) for _ in range(2)]
        for race, orders in zip(races, (True, False), strict=True):
            race.batched.switches = replace(race.batched.switches, compile=fuses, order_batches=orders)
        for mode in MODES:
            calls = _calls_of(races[0], races[1], mode)
            if mode == MODES[0]:
                for name in (TODAY, PQ_KNOWN):
                    calls[name].use().check(f"{workload.name}, {form}, {name}")
            if "reads" not in found:
                found |= _plans(calls, settings, advance)
            found.setdefault(form, {})[mode] = _race(calls, settings.rounds, advance)
    return found


@dataclass(frozen=True)
class OrderedCall:
    """A contender: a mini-batch that runs in one mode with a policy, which may order batches itself."""

    race: WorkloadRace
    policy: Policy
    mode: str

    def use(self) -> WorkloadRace:
        self.race.batched.policy = self.policy
        return self.race

    def __call__(self) -> None:
        getattr(self.use(), self.mode)()

    def plan(self) -> Plan:
        """The plan of the mini-batch."""
        with torch.inference_mode(self.mode == "infer"):
            batched = self.use().batched
            execution, _ = batched.pipeline.prepare((self.race.examples,), {}, self.policy, Stopwatch())
        return execution.plan


def _calls_of(ordered: WorkloadRace, unordered: WorkloadRace, mode: str) -> dict[str, OrderedCall]:
    """The contenders, from a race in which edbatch orders batches and one in which it does not. All schedule alike."""
    policy = ordered.batched.policy
    today = OrderedCall(ordered, policy, mode)
    facts = Facts.of(today.plan())
    return {
        TODAY: today,
        AGAIN: today,
        UNORDERED: OrderedCall(unordered, policy, mode),
        PQ: OrderedCall(unordered, InPqOrder(policy, facts), mode),
        PQ_KNOWN: OrderedCall(unordered, InPqOrder(policy, facts, keeps=True), mode),
    }


def _plans(calls: dict[str, OrderedCall], settings: Settings, advance: Callable[[], object]) -> dict[str, Any]:
    """What each order reads, of an infer call, and the milliseconds in which it is found."""
    plans = {name: calls[name].plan() for name in ORDERS}
    plan, facts = plans[UNORDERED], Facts.of(plans[UNORDERED])
    arguments = plan.graph, plan.schedule, facts.fixed, facts.only_sums
    contenders: dict[str, Callable[[], object]] = {
        TODAY: partial(order_batches, *arguments),
        PQ: partial(order_by_pq_trees, *arguments, facts.arenas),
    }
    fewer = {PQ: min(SLOW_ROUNDS, settings.rounds)}
    rounds = measure.interleave(contenders, settings.rounds, fewer=fewer, advance=advance)
    return {
        "num_nodes": plan.graph.num_nodes,
        "num_batches": plan.schedule.num_batches,
        "reads": {name: _reads(plan) for name, plan in plans.items()} | {"possible": possible(plan)},
        "planning_ms": {name: rounds.spread(name).scaled(1e3)._asdict() for name in contenders},
    }


def _reads(plan: Plan) -> dict[str, int]:
    first = plan.layout.slot_first
    return _counted(plan, first == -1, int((first >= 0).sum()))


def _counted(plan: Plan, is_gather: Bools, views: int) -> dict[str, int]:
    size = plan.layout.slot_size
    row_bytes = plan.recording.type_set.row_bytes[plan.schedule.batch_types, : size.shape[1]]
    copied = int((size * row_bytes * is_gather).sum())
    return {"views": views, "gathers": int(is_gather.sum()), "bytes_copied": copied}


def possible(plan: Plan) -> dict[str, int]:
    """What is gathered at least, whatever the order: the bound lets each operand have the best order for itself.

    An operand can be a view if it reads no row twice and its rows are in batches that lie side by side, with all rows
    of those in the middle. Inputs from outside lie where they lie.
    """
    layout, types = plan.layout, plan.schedule.batch_types
    slot_arenas = plan.recording.type_set.slot_arenas
    begins = _begins_of_batches(plan)
    is_gather = np.zeros(layout.slot_first.shape, np.bool_)
    for b, k in zip(*np.nonzero(layout.slot_first >= -1), strict=True):
        kind = plan.recording.table.kinds[plan.recording.table.starts[types[b]] + k]
        if kind in (Slot.SUM, Slot.SUM_ROWS, Slot.OFFSETS):
            is_gather[b, k] = layout.slot_first[b, k] == -1
            continue
        at = layout.slot_begin[b, k]
        rows = np.sort(layout.index[at : at + layout.slot_size[b, k]])
        of_arena = begins[slot_arenas[types[b]][k]]
        batches, counts = np.unique(np.searchsorted(of_arena, rows, side="right") - 1, return_counts=True)
        is_twice = bool((np.diff(rows) == 0).any())
        has_gaps = batches[-1] - batches[0] >= len(batches)
        middle = slice(1, -1)
        is_gather[b, k] = is_twice or has_gaps or (counts < np.diff(of_arena)[batches])[middle].any()
    return _counted(plan, is_gather, int((layout.slot_first >= -1).sum() - is_gather.sum()))


def _begins_of_batches(plan: Plan) -> list[Ints]:
    """For each arena where the rows of each batch begin, and the end; an input from outside counts as a batch."""
    layout, table = plan.layout, plan.recording.table
    counts, _ = plan.recording.outside_rows
    begins = [np.arange(count) for count in counts.tolist()]
    for t, (first, end) in enumerate(pairwise(table.output_starts.tolist())):
        batches = plan.schedule.batch_types == t
        for o in range(first, end):
            own = layout.row_begin if table.output_per_row[o] else layout.node_begin
            arena = table.output_arenas[o]
            begins[arena] = np.append(begins[arena], layout.base[o] + own[batches])
    return [np.append(np.unique(b), rows) for b, rows in zip(begins, layout.arena_rows, strict=True)]


def _race(calls: dict[str, OrderedCall], rounds: int, advance: Callable[[], object]) -> dict[str, Any]:
    """Milliseconds of a call of all contenders, and each time as a multiple of that in today's order."""
    fewer = {PQ: min(SLOW_ROUNDS, rounds)}
    found = measure.interleave(calls, rounds, fewer=fewer, fair=True, advance=advance)
    return {
        "ms": {name: found.spread(name).scaled(1e3)._asdict() for name in calls},
        "ratio_to_today": {name: found.ratio(name, TODAY)._asdict() for name in calls if name != TODAY},
    }


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    settings, machine = result["settings"], result["machine"]
    examples = f"mini-batches of {settings['batch_size']}, hidden size {settings['hidden']}"
    caption = (f"medians (quartiles) of {settings['rounds']} rounds, PQ trees of {SLOW_ROUNDS}; ratios within rounds\n"
               f"{machine['cpu']}, {machine['torch_threads']} threads, torch {machine['torch']}")  # fmt: skip
    found = []
    for (heads, rows), title in ((_reading(result), "What orders read"), (_calls(result), "A call, ms")):
        table = Table(*heads, title=f"{title}: {examples}", caption=caption, box=SIMPLE, pad_edge=False)
        for column in table.columns[2:]:
            column.justify = "right"
        for row in rows:
            table.add_row(*row)
        found.append(table)
    return found


def _reading(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for name, row in result["workloads"].items():
        for order, reads in row["reads"].items():
            planning = row["planning_ms"].get(order)
            rows.append([
                name, order, str(reads["views"]), str(reads["gathers"]), f"{reads['bytes_copied'] / 1e6:.3g}",
                measure.text(planning) if planning else "",
            ])  # fmt: skip
    return ["", "order", "views", "gathers", "MB gathered", "planning, ms"], rows


def _calls(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    others = (AGAIN, UNORDERED, PQ_KNOWN, PQ)
    rows = []
    for name, row in result["workloads"].items():
        for form in FORMS:
            for mode in MODES:
                ratios = (row[form][mode]["ratio_to_today"][other] for other in others)
                texts = ("{median:.2f} ({lower:.2f} – {upper:.2f})".format(**ratio) for ratio in ratios)
                rows.append([name, f"{form}, {mode}", measure.text(row[form][mode]["ms"][TODAY]), *texts])
    return ["", "", "today's, ms", *others], rows


def markdown(result: dict[str, Any]) -> str:
    """Both tables in Markdown."""
    return f"{markdown_table(*_reading(result))}\n\n{markdown_table(*_calls(result))}\n"
