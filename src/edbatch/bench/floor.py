"""`edbatch bench floor`: how close a mini-batch comes to its matrix products alone, and what a launch costs.

Contenders take turns on one mini-batch: the products of the batches that edbatch launches, into memory that is there
already; edbatch with every example known by its key; and edbatch when it records. What edbatch computes is compared
with one by one before anything is timed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table

from edbatch.bench import measure, mini_batch, workloads
from edbatch.bench.kernels import launch_cost
from edbatch.bench.kernels.products_alone import Launched, ProductsAlone, launched, left_out
from edbatch.bench.measure import Rounds, Spread
from edbatch.runtime.execution import Execution
from edbatch.stats import Stopwatch
from edbatch.workloads import Workload

PRODUCTS, RUN, KNOWN, RECORDING = "products alone", "schedule + plan + run", "with key", "recording"
RUN_STAGES = ("schedule", "plan", "compile", "run", "backward")
FIRST_CALL = "tree-lstm"


@dataclass(frozen=True)
class Settings(mini_batch.Settings):
    """What to measure. `compile_time`: also the first call in fresh processes, which takes a minute."""

    known = ("tree-lstm", "lattice-lstm", "bilstm-tagger")
    min_rounds = 3

    batch_size: int = 64
    hidden: int = 256
    mode: str = "infer"
    compile_time: bool = False


def run(settings: Settings, data: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Measures and returns all there is to say, ready for JSON. `data` is a folder like `$EDBATCH_DATA`."""
    chosen = settings.chosen()
    with measure.num_threads(settings.threads):
        with measure.progress("measuring", (len(chosen) + 1) * settings.rounds) as advance:
            results = {workload.name: _measure(workload, settings, data, advance) for workload in chosen}
            launch = launch_cost.launch_cost(settings.rounds, advance)
        first = None
        if settings.compile_time:
            first = launch_cost.first_call(FIRST_CALL, settings.mode, settings.batch_size, settings.hidden, data)
        return {
            "settings": settings.facts(),
            "machine": measure.machine_facts(),
            "workloads": results,
            "launch": launch,
            "first_call_seconds": first,
        }


def _measure(
    workload: Workload, settings: Settings, data: str | os.PathLike[str] | None, advance: Callable[[], object]
) -> dict[str, Any]:
    corpus = mini_batch.load(workload, settings.batch_size, data, settings.seed)
    hidden = mini_batch.hidden_of(workload, settings.hidden)
    model = workload.make(corpus, hidden, settings.seed)
    known, recording = workloads.WorkloadRace(model, corpus.train, key=id), workloads.WorkloadRace(model, corpus.train)
    for race in (known, recording):
        race.check(workload.name)
    execution = execute(known, settings.mode)
    products = launched(execution)
    rounds, stages = _race(known, recording, products, settings, advance)
    stats = known.batched.stats
    assert stats is not None, "it has just run"
    return {
        "data": measure.without_folder(corpus.source, data),
        "hidden": hidden,
        "num_nodes": stats.num_nodes,
        "num_batches": stats.num_batches,
        "num_products": len(products),
        "gigaflops": 1e-9 * sum(item.product.num_flops for item in products),
        "types_without_known_products": left_out(execution),
        "ms": {name: rounds.spread(name).scaled(1e3)._asdict() for name in rounds.seconds},
        "stages_ms": {stage: Spread.of(seconds).scaled(1e3)._asdict() for stage, seconds in stages.items()},
        "ratio_to_products": {n: rounds.ratio(n, PRODUCTS)._asdict() for n in rounds.seconds if n != PRODUCTS},
    }


def execute(race: workloads.WorkloadRace, mode: str) -> Execution:
    """A mini-batch, run forward in this mode: it holds the batches and the programs of every type."""
    with torch.inference_mode(mode == "infer"):
        batched = race.batched
        execution, _ = batched.pipeline.prepare((race.examples,), {}, batched.policy, Stopwatch())
        with torch.no_grad():
            execution.run()
    return execution


def _race(
    known: workloads.WorkloadRace,
    recording: workloads.WorkloadRace,
    products: list[Launched],
    settings: Settings,
    advance: Callable[[], object],
) -> tuple[Rounds, dict[str, list[float]]]:
    """Seconds of the contenders, and by stage of the calls with keys."""
    contenders: dict[str, Callable[[], object]] = {
        PRODUCTS: ProductsAlone(products),
        KNOWN: getattr(known, settings.mode),
        RECORDING: getattr(recording, settings.mode),
    }
    stages: dict[str, list[float]] = defaultdict(list)

    def keep() -> None:
        stats = known.batched.stats
        assert stats is not None, "it has just run"
        for stage, seconds in stats.seconds.items():
            stages[stage].append(seconds)

    rounds = measure.interleave(contenders, settings.rounds, after={KNOWN: keep}, advance=advance)
    run_seconds = map(sum, zip(*(stages[stage] for stage in RUN_STAGES if stage in stages), strict=True))
    seconds = {PRODUCTS: rounds.seconds[PRODUCTS], RUN: dict(enumerate(run_seconds)), **rounds.seconds}
    return Rounds(seconds), stages


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    found = [_floors(result), _launches(result)]
    return found if result["first_call_seconds"] is None else [*found, _first_calls(result)]


def _floors(result: dict[str, Any]) -> Table:
    settings, machine = result["settings"], result["machine"]
    is_training = settings["mode"] == "train"
    title = (f"{'Forward and backward' if is_training else 'Inference'} against the products alone: "
             f"{settings['batch_size']} examples, hidden size {settings['hidden']}")  # fmt: skip
    caption = (f"medians (quartiles) of {settings['rounds']} rounds; ratios are taken within rounds\n"
               f"with key: every example was recorded before; {RUN}: these stages of that call\n"
               f"{machine['cpu']}, {machine['torch_threads']} threads, torch {machine['torch']}")  # fmt: skip
    table = Table("", "", "ms", "to products alone", title=title, caption=caption, box=SIMPLE)
    for name, row in result["workloads"].items():
        table.add_row(name, f"{row['num_batches']} batches, {row['num_products']} products, "
                            f"{row['gigaflops']:.3g} Gflop", style="bold")  # fmt: skip
        for contender, ms in row["ms"].items():
            ratio = row["ratio_to_products"].get(contender)
            label = f"{contender} + backward" if contender == RUN and is_training else contender
            table.add_row("", label, measure.text(ms), measure.text(ratio) if ratio else "")
        if row["types_without_known_products"]:
            missing = ", ".join(row["types_without_known_products"])
            table.add_row("", f"not in the products, because they run as written: {missing}")
        table.add_section()
    return table


def _launches(result: dict[str, Any]) -> Table:
    launch = result["launch"]
    title = f"A launch of nearly nothing: {launch['num_batches']} batches, hidden size {launch['hidden']}"
    table = Table("", "µs per launch", title=title, caption="a chain of LSTM cells on one example", box=SIMPLE)
    for name, microseconds in launch["microseconds_per_launch"].items():
        table.add_row(name, measure.text(microseconds))
    return table


def _first_calls(result: dict[str, Any]) -> Table:
    first = result["first_call_seconds"]
    table = Table("", "seconds", "processes", title=f"The first call of {first['workload']} in a process", box=SIMPLE)
    for name in ("nothing compiled", "from disk"):
        table.add_row(name, measure.text(first[name]), str(first[name]["rounds"]))
    return table
