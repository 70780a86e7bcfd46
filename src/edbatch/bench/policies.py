"""`edbatch bench policies`: how many batches each policy needs, and how long it takes to decide.

A policy decides which recorded calls run together, and when. In: settings. Out: batches and times. A learned policy (a
"machine") learns on the first mini-batch of a workload only; what counts are the mini-batches after it, which it has
not seen, and the worst of several seeds is reported. What fewer batches are worth in time is measured in `total_time`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from edbatch.bench import measure, total_time
from edbatch.bench.kernels import small_graphs
from edbatch.bench.kernels.small_graphs import LOWER_BOUND
from edbatch.bench.measure import MIN_ROUNDS
from edbatch.bench.total_time import BOUND_GREEDY, LEARNED
from edbatch.datasets.files import data_folder
from edbatch.datasets.graphs import STRUCTURES, mini_batch_graphs
from edbatch.policies import Agenda, AgendaRemaining, BoundGreedy, Depth, Fsm, Learned, QLearning, RatioGreedy
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.learning import learn_policy
from edbatch.scheduling.schedule import Policy

BEAM_4, BEAM_64, MACHINE, RULE = "beam 4", "beam 64", "machine alone", "rule alone"
LEARNING, THOUSAND_EPISODES = "learning", "1,000 episodes"
COIN_SEEDS = {"tree-lstm-2type": (0, 1, 2)}  # its types are random, so there are several cases
CASES_PER_TABLE = 3  # fits 80 columns


def _learn_machine(encoding: str, settings: QLearning, graph: Graph, seed: int) -> Policy:
    return learn_policy([graph], encoding, seed, settings=settings)


def _learned(graph: Graph, seed: int) -> Learned:
    policy = Learned(seed=seed)
    policy.run(graph)
    return policy


HEURISTICS: dict[str, Policy] = {
    "depth": Depth(), "agenda": Agenda(), "agenda-remaining": AgendaRemaining(), "ratio-greedy": RatioGreedy(),
    "ratio-greedy-backward": RatioGreedy(backward=True), BOUND_GREEDY: BoundGreedy(), BEAM_4: BoundGreedy(beam=4),
    BEAM_64: BoundGreedy(beam=64),
}  # fmt: skip
LEARNERS: dict[str, Callable[[Graph, int], Policy]] = {  # of the graph to learn from and a seed
    **{f"paper's, {encoding}": partial(_learn_machine, encoding, QLearning()) for encoding in ("base", "max", "sort")},
    MACHINE: partial(_learn_machine, "signs", QLearning()),
    RULE: partial(_learn_machine, "signs", QLearning(episodes=0, demonstrate=False)),
    LEARNED: _learned,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What to measure; an empty list of workloads means all. Learning is timed in fewer rounds, because it is slow."""

    workloads: tuple[str, ...] = ()
    batch_size: int = 32
    unseen: int = 5
    seeds: tuple[int, ...] = (0, 1, 2)
    small_graphs: int = 500
    rounds: int = MIN_ROUNDS
    learning_rounds: int = 5
    hidden: int = 128
    threads: int | None = 1  # the time to wake other threads is no part of a launch

    def check(self) -> None:
        measure.check_rounds(self.rounds)


@dataclass(frozen=True)
class PolicyCase:
    """The graphs of a workload's mini-batches; several workloads may have the same."""

    name: str
    workload: str
    same: tuple[str, ...]  # the other workloads with these graphs
    graphs: list[Graph]


def run(settings: Settings, data: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Measures and returns the result, ready for JSON. `data` is a folder like `$EDBATCH_DATA`."""
    cases = load_cases(settings, data)
    timed: dict[str, PolicyCase] = {}  # one case of each workload
    for case in cases:
        timed.setdefault(case.workload, case)
    steps = len(cases) + settings.small_graphs + settings.rounds * (len(timed) + 1)
    with measure.num_threads(settings.threads), measure.progress("measuring", steps) as advance:
        machine = measure.machine_facts()
        batches = {case.name: count_case(case, settings.seeds, advance) for case in cases}
        scheduling = {name: time_scheduling(case.graphs, settings, advance) for name, case in timed.items()}
        small = small_graphs.run(HEURISTICS, LEARNERS, settings.small_graphs, seed=0, advance=advance)
        model = total_time.time_model(settings.batch_size, settings.hidden, settings.rounds, data, advance)
    folder = data_folder(data)
    return {
        "settings": asdict(settings),
        "data": f"the data in {folder}" if folder else "generated data",
        "machine": machine,
        "batches": batches,
        "scheduling": scheduling,
        "small_graphs": small,
        "tree_lstm": model,
        "estimates": total_time.estimate(
            batches, scheduling, model["microseconds_per_launch"]["median"], settings.unseen
        ),
    }


def load_cases(settings: Settings, data: str | os.PathLike[str] | None) -> list[PolicyCase]:
    """The cases to measure; workloads with the same graphs are one case."""
    cases: list[PolicyCase] = []
    chosen = settings.workloads or tuple(STRUCTURES)
    for name in dict.fromkeys(chosen):
        if any(name in case.same for case in cases):
            continue
        for seed in COIN_SEEDS.get(name, (0,)):
            graphs = mini_batch_graphs(name, 1 + settings.unseen, settings.batch_size, data, seed)
            workload = STRUCTURES[name]
            same = [w.name for w in STRUCTURES.values() if (w.examples, w.add) == (workload.examples, workload.add)]
            label = f"{name}, coin {seed}" if name in COIN_SEEDS else name
            cases.append(PolicyCase(label, name, tuple(w for w in same if w != name), graphs))
    return cases


def count_case(case: PolicyCase, seeds: tuple[int, ...], advance: Callable[[], object]) -> dict[str, Any]:
    """Batches of every policy (for a learned one, with its worst seed), and the ratios that matter."""
    bounds = [graph.lower_bound() for graph in case.graphs]
    rows: dict[str, dict[str, Any]] = {LOWER_BOUND: {"first": bounds[0], "unseen": sum(bounds[1:])}}
    rows |= {name: count_batches(policy, case.graphs) for name, policy in HEURISTICS.items()}
    for name, learner in LEARNERS.items():
        by_seed = [{"seed": seed} | count_batches(learner(case.graphs[0], seed), case.graphs) for seed in seeds]
        rows[name] = max(by_seed, key=lambda row: (row["unseen"], row["first"])) | {"seeds": by_seed}
    advance()
    return {
        "workload": case.workload,
        "same_graphs": case.same,
        "num_nodes": case.graphs[0].num_nodes,
        "num_types": case.graphs[0].num_types,
        "unseen_nodes": sum(graph.num_nodes for graph in case.graphs[1:]),
        "policies": rows,
        "learned_to": {
            name: rows[LEARNED]["unseen"] / rows[name]["unseen"] for name in (LOWER_BOUND, BEAM_64, BOUND_GREEDY, RULE)
        },
    }


def count_batches(policy: Policy, graphs: list[Graph]) -> dict[str, Any]:
    """Batches of the first graph and of the others together, and how many of the others' states a machine knows."""
    names = _type_names(graphs)
    if isinstance(policy, Fsm):
        policy = policy.with_types(names)
    first, *others = (policy.run(graph).num_batches for graph in graphs)
    row: dict[str, Any] = {"first": first, "unseen": sum(others)}
    machine: Policy | None = policy
    if isinstance(policy, Learned):
        machine, row["lessons"] = policy.machine, len(policy.lessons)
    if isinstance(machine, Fsm):
        schedules = [machine.with_types(names).run(graph) for graph in graphs[1:]]
        unseen_states, states = (sum(s.unseen_states for s in schedules), sum(s.num_batches for s in schedules))
        rate = unseen_states / max(states, 1)
        row |= {"states": machine.num_states, "crowd": machine.crowd, "unseen_state_rate": rate}
    return row


def _type_names(graphs: list[Graph]) -> list[Hashable]:
    return list(dict.fromkeys(name for graph in graphs for name in graph.type_names))


def time_scheduling(graphs: list[Graph], settings: Settings, advance: Callable[[], object]) -> dict[str, Any]:
    """Nanoseconds per node to schedule the first graph and those after it, and seconds to learn on the first."""
    graph, *unseen = graphs
    first = _learned(graph, 0).machine
    assert first is not None  # the policy has just learned it
    machine = first.with_types(_type_names(graphs))  # so that nothing is learned while the clock runs
    schedule, bound = machine.play(graph)
    on_first: dict[str, Policy] = {
        BOUND_GREEDY: BoundGreedy(), BEAM_4: BoundGreedy(beam=4), MACHINE: machine,
        LEARNED: Learned(machine),
    }  # fmt: skip
    on_unseen = {name: on_first[name] for name in (BOUND_GREEDY, LEARNED)}
    contenders: dict[str, Callable[[], object]] = {
        **{name: partial(_schedule, one, [graph]) for name, one in on_first.items()},
        **{f"{name}, unseen": partial(_schedule, one, unseen) for name, one in on_unseen.items()},
        LEARNING: partial(_learned, graph, 0),
        THOUSAND_EPISODES: partial(learn_policy, [graph], settings=QLearning(stop=0.0)),
    }
    fewer = dict.fromkeys((LEARNING, THOUSAND_EPISODES), min(settings.learning_rounds, settings.rounds))
    rounds = measure.interleave(contenders, settings.rounds, fewer=fewer, advance=advance)
    scale, unseen_scale = 1e9 / graph.num_nodes, 1e9 / sum(g.num_nodes for g in unseen)
    return {
        "num_nodes": graph.num_nodes,
        "num_types": graph.num_types,
        "episodes": machine.training.episodes,
        "schedules_made": 1 + (schedule.num_batches > bound),
        "ns_per_node": {name: rounds.spread(name).scaled(scale)._asdict() for name in on_first},
        "unseen_ns_per_node": {n: rounds.spread(f"{n}, unseen").scaled(unseen_scale)._asdict() for n in on_unseen},
        "seconds": {name: rounds.spread(name)._asdict() for name in fewer},
    }


def _schedule(policy: Policy, graphs: list[Graph]) -> None:
    for graph in graphs:
        policy.run(graph)


def tables(result: dict[str, Any]) -> list[Table]:
    """The result as tables for people."""
    cases, settings = list(result["batches"].items()), result["settings"]
    parts = [dict(cases[i : i + CASES_PER_TABLE]) for i in range(0, len(cases), CASES_PER_TABLE)]
    return [
        *(_batches_table(part, settings, result["data"]) for part in parts),
        *(_machines_table(part) for part in parts),
        _ratios_table(result["batches"]),
        *_scheduling_tables(result["scheduling"], result["machine"]),
        small_graphs.table(result["small_graphs"]),
        total_time.table(result),
    ]


def _batches_table(cases: dict[str, Any], settings: dict[str, Any], data: str) -> Table:
    title = f"Batches of {settings['batch_size']} examples: first mini-batch | sum of the {settings['unseen']} after it"
    notes = [f"learned on the first mini-batch alone, the worst of seeds {', '.join(map(str, settings['seeds']))}; "
             "in states that a machine does not know, also the paper's, the rule decides", data]  # fmt: skip
    notes += [f"{', '.join(case['same_graphs'])}: the same graphs as {case['workload']}"
              for case in cases.values() if case["same_graphs"]]  # fmt: skip
    notes += [f"{name}: learned again on unseen mini-batches with new types"
              for name, case in cases.items() if case["policies"][LEARNED]["lessons"] > 1]  # fmt: skip
    table = _table(*cases, title=title, caption="\n".join(notes))
    for name in (LOWER_BOUND, *HEURISTICS, *LEARNERS):
        rows = [case["policies"][name] for case in cases.values()]
        table.add_row(name, *(f"{row['first']} | {row['unseen']}" for row in rows))
    return table


def _machines_table(cases: dict[str, Any]) -> Table:
    table = _table(*cases, title="Machines: states | share of unknown states in the unseen mini-batches")
    for name in LEARNERS:
        rows = [case["policies"][name] for case in cases.values()]
        table.add_row(name, *(f"{row['states']:,} | {100 * row['unseen_state_rate']:.1f} %" for row in rows))
    return table


def _ratios_table(cases: dict[str, Any]) -> Table:
    columns = LOWER_BOUND, BEAM_64, BOUND_GREEDY, RULE
    title = "Learned, unseen mini-batches: batches over the seeds, and the worst seed relative to others"
    table = _table("batches", *(f"/ {name}" for name in columns), title=title)
    for name, case in cases.items():
        batches = [row["unseen"] for row in case["policies"][LEARNED]["seeds"]]
        ratios = (f"{case['learned_to'][column]:.3f}" for column in columns)
        table.add_row(name, f"{min(batches)} – {max(batches)}", *ratios)
    return table


def _scheduling_tables(scheduling: dict[str, Any], machine: dict[str, Any]) -> list[Table]:
    caption = (f"medians (quartiles); learned: * the machine needs more batches than the bound, so both schedules are "
               f"made\n{machine['cpu']}, numba {machine['numba']}")  # fmt: skip
    columns = BOUND_GREEDY, BEAM_4, MACHINE, LEARNED
    times = _table(*columns, title="Scheduling the first mini-batch, ns per node", caption=caption)
    caption = ("medians (quartiles); learning includes the first schedule and stops at the lower bound or after "
               f"launching some {Learned.max_work:,} nodes")  # fmt: skip
    learning = _table(
        "nodes", "types", "episodes", LEARNING, THOUSAND_EPISODES, title="Learning on it, seconds", caption=caption
    )
    for name, row in scheduling.items():
        mark = " *" if row["schedules_made"] > 1 else ""
        texts = [measure.text(row["ns_per_node"][column]) for column in columns]
        times.add_row(name, *texts[:-1], texts[-1] + mark)
        seconds = (measure.text(row["seconds"][column]) for column in (LEARNING, THOUSAND_EPISODES))
        learning.add_row(name, *(f"{row[key]:,}" for key in ("num_nodes", "num_types", "episodes")), *seconds)
    return [times, learning]


def _table(*columns: str, title: str, caption: str | None = None) -> Table:
    """A table with names in its first column, which are never shortened."""
    table = Table(title=title, caption=caption, box=SIMPLE)
    table.add_column(no_wrap=True)
    for column in columns:
        table.add_column(column.replace(", ", "\n"))
    return table
