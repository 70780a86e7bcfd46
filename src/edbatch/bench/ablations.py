"""`edbatch bench ablations`: what each rewrite is worth, by switching it off.

Contenders take turns on one mini-batch: edbatch with everything on and every example known by its key; the same again,
whose ratio shows the noise; and one for each thing that is off. What each computes is compared with one by one before
anything is timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table

from edbatch.bench import measure, mini_batch
from edbatch.bench.measure import BenchError
from edbatch.bench.workloads import MODES, WorkloadRace, markdown_table
from edbatch.workloads import Workload

EVERYTHING, AGAIN, RECORDING = "everything", "everything, again", "key="
FUSED: dict[str, tuple[str, ...]] = {
    "found cells": ("find_cells",),
    "hoisting": ("hoist",),
    "stacked weights": ("stack_weights",),
    "order inside batches": ("order_batches",),
    "deferred gradients": ("defer_gradients",),
}
ONLY_TRAINING = "deferred gradients"
TORCH_OPS: dict[str, tuple[str, ...]] = {
    "batches inside cells": ("batch_inside",),
    "planned memory": ("plan_memory",),
    "own loops for rows": ("move_rows",),
    "all of these": ("batch_inside", "move_rows"),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Settings(mini_batch.Settings):
    """What to measure, in one mode or in both."""

    known = ("tree-lstm", "lattice-lstm", "bilstm-tagger", "attention-nmt", "module-net")
    min_rounds = 3

    mode: str = "both"
    torch_ops: bool = False
    dtype: str = "float32"

    @property
    def switches(self) -> dict[str, tuple[str, ...]]:
        """What is switched off in turn, and by which switches."""
        return TORCH_OPS if self.torch_ops else FUSED

    @property
    def modes(self) -> tuple[str, ...]:
        return MODES if self.mode == "both" else (self.mode,)

    def check(self) -> None:
        super().check()
        if self.mode not in (*MODES, "both"):
            raise BenchError(f"there is no mode {self.mode!r}; choose one of {', '.join(MODES)} or both")
        if self.dtype not in DTYPES:
            raise BenchError(f"there is no measure of {self.dtype!r}; choose one of {', '.join(DTYPES)}")
        if self.dtype != "float32" and not self.torch_ops:
            raise BenchError(f"kernels are not fused in {self.dtype}; measure its torch ops with --torch-ops")


def run(settings: Settings, data: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Measures and returns all there is to say, ready for JSON. `data` is a folder like `$EDBATCH_DATA`."""
    chosen = settings.chosen()
    total = len(chosen) * len(settings.modes) * settings.rounds
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
    model = workload.make(corpus, hidden, settings.seed).to(DTYPES[settings.dtype])

    def contender(*off: str, key: Callable[..., int] | None = id) -> WorkloadRace:
        return _without(off, WorkloadRace(model, corpus.train, key=key), settings)

    races = {EVERYTHING: contender(), AGAIN: contender()}
    races |= {name: contender(*off) for name, off in settings.switches.items()}
    races[RECORDING] = contender(key=None)
    for name, race in races.items():
        race.check(f"{workload.name}, {name}")
    return {
        "data": measure.without_folder(corpus.source, data),
        "hidden": hidden,
        **{mode: _race(races, mode, settings.rounds, advance) for mode in settings.modes},
    }


def _without(off: tuple[str, ...], race: WorkloadRace, settings: Settings) -> WorkloadRace:
    compiles = race.batched.switches.compile and not settings.torch_ops
    race.batched.switches = replace(race.batched.switches, compile=compiles, **dict.fromkeys(off, False))
    return race


def _race(races: dict[str, WorkloadRace], mode: str, rounds: int, advance: Callable[[], object]) -> dict[str, Any]:
    """Milliseconds of all contenders, and the time of each as a multiple of that with everything on."""
    racing = {name: race for name, race in races.items() if mode == "train" or name != ONLY_TRAINING}
    contenders: dict[str, Callable[[], object]] = {name: getattr(race, mode) for name, race in racing.items()}
    found = measure.interleave(contenders, rounds, fair=True, advance=advance)
    return {
        "ms": {name: found.spread(name).scaled(1e3)._asdict() for name in racing},
        "ratio_to_everything": {name: found.ratio(name, EVERYTHING)._asdict() for name in racing if name != EVERYTHING},
        "graphs": {name: _graph(race) for name, race in racing.items()},
    }


def _graph(race: WorkloadRace) -> dict[str, int]:
    stats = race.batched.stats
    assert stats is not None, "it has just run"
    return {
        "num_nodes": stats.num_nodes,
        "num_batches": stats.num_batches,
        "views": stats.views,
        "gathers": stats.gathers,
        "peak_bytes": stats.peak_bytes,
    }


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    settings, machine = result["settings"], result["machine"]
    size = f"mini-batches of {settings['batch_size']}, hidden size {settings['hidden']}"
    title = f"What each thing buys: {size}{_as_torch_ops(settings)}"
    caption = (f"medians (quartiles) of {settings['rounds']} rounds; ratios are taken within rounds\n"
               "everything: with keys, every example was recorded before; again: the noise of these ratios\n"
               f"{machine['cpu']}, {machine['torch_threads']} threads, torch {machine['torch']}")  # fmt: skip
    heads = ("", "mode", "without", "ms", "to everything", "batches", "views", "gathers")
    table = Table(*heads, title=title, caption=caption, box=SIMPLE, pad_edge=False)
    for column in table.columns[3:]:
        column.justify = "right"
    for name, row in result["workloads"].items():
        for mode in (mode for mode in MODES if mode in row):
            for contender, ms in row[mode]["ms"].items():
                is_all = contender in (EVERYTHING, AGAIN)
                ratio, graph = row[mode]["ratio_to_everything"].get(contender), row[mode]["graphs"][contender]
                table.add_row(
                    name, mode, f"({contender})" if is_all else contender, measure.text(ms),
                    measure.text(ratio) if ratio else "", *(str(graph[k]) for k in ("num_batches", "views", "gathers")),
                )  # fmt: skip
            table.add_section()
    return [table]


def markdown(result: dict[str, Any]) -> str:
    """The ratios as a table of Markdown, with the machine and how it was measured."""
    settings, machine = result["settings"], result["machine"]
    switches = TORCH_OPS if settings["torch_ops"] else FUSED
    heads = ["", "mode", "everything, ms", "again", *switches, RECORDING]
    rows = []
    for name, row in result["workloads"].items():
        for mode in (mode for mode in MODES if mode in row):
            ratios = row[mode]["ratio_to_everything"]
            found = (ratios.get(contender) for contender in (AGAIN, *switches, RECORDING))
            rows.append([name, mode, measure.text(row[mode]["ms"][EVERYTHING]), *map(_ratio_text, found)])
    facts = (
        f"Mini-batches of {settings['batch_size']}, hidden size {settings['hidden']}, {machine['torch_threads']} "
        f"threads of torch {machine['torch']}, {machine['cpu']}{_as_torch_ops(settings)}: the time without each thing "
        f"as a multiple of that with everything. Medians (quartiles) of the ratios within {settings['rounds']} rounds; "
        "*again* is everything a second time, the noise."
    )
    return f"{facts}\n\n{markdown_table(heads, rows)}\n"


def _as_torch_ops(settings: dict[str, Any]) -> str:
    return f", all cells as torch ops, {settings['dtype']}" if settings["torch_ops"] else ""


def _ratio_text(ratio: dict[str, float] | None) -> str:
    return "" if ratio is None else "{median:.2f} ({lower:.2f} – {upper:.2f})".format(**ratio)
