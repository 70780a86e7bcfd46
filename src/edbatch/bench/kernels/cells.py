"""`edbatch cells`: the cells of the ED-Batch paper in four forms: launches, copies and the time of a batch.

In: settings. Out: for each cell, inference and training (forward and backward of a batch; gradients of weights come
once per mini-batch and are not counted): torch ops one by one; batched inside, without a plan for memory; batched on
planned memory; and fused. A batch runs as the runtime launches it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table
from torch import Tensor, nn

import edbatch
from edbatch.bench import measure
from edbatch.bench.kernels.cells_of_paper import CELLS
from edbatch.bench.kernels.counting import CountingMode, Counts
from edbatch.bench.measure import BenchError
from edbatch.runtime.arena import Lease
from edbatch.runtime.backward import gradient_arenas
from edbatch.runtime.binding import Binding
from edbatch.stats import Stopwatch
from edbatch.switches import Switches
from edbatch.torch_insides.pytree import tree_leaves

FORMS = {
    "one by one": Switches(compile=False, batch_inside=False),
    "unplanned": Switches(compile=False, plan_memory=False),
    "planned": Switches(compile=False),
    "fused": Switches(),
}
MODES = "infer", "train"
BURST_SECONDS = 1e-3  # so many quick calls are timed together that they take this long
MAX_BURST = 50


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    hidden: int = 128
    batch_sizes: tuple[int, ...] = (1, 8, 64, 256)
    repeats: int = 30
    threads: int | None = None

    def check(self) -> None:
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise BenchError("batch sizes must be 1 or more; give some, e.g. --batch-sizes 1,64")

    def hidden_of(self, name: str) -> int:
        """The hidden size of a cell; half for MV, which computes with matrices of that size."""
        return max(1, self.hidden // 2) if name == "MV" else self.hidden


def parse_batch_sizes(text: str) -> tuple[int, ...]:
    """
    >>> parse_batch_sizes("1,64")
    (1, 64)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BenchError(f"{text!r} is no list of batch sizes; give numbers with commas between, e.g. 1,64") from None


def run(settings: Settings) -> dict[str, Any]:
    """Counts and measures, and returns the result, ready for JSON."""
    steps = len(CELLS) * (1 + settings.repeats)
    with measure.num_threads(settings.threads), measure.progress("compiling and measuring", steps) as advance:
        found = {name: _measure(name, settings, advance) for name in CELLS}
        return {"settings": asdict(settings), "machine": measure.machine_facts(), "cells": found}


def _measure(name: str, settings: Settings, advance: Callable[[], object]) -> dict[str, Any]:
    hidden = settings.hidden_of(name)
    module = CELLS[name].make(hidden)
    for form in FORMS:
        check(name, module, hidden, form)
    calls: dict[tuple[str, str, int], OneBatch] = {}
    counts: dict[tuple[str, str], Counts] = {}
    for mode in MODES:
        for form in FORMS:
            for size in settings.batch_sizes:
                rows = [torch.randn(size, *shape) for shape in CELLS[name].shapes(hidden)]
                calls[mode, form, size] = OneBatch(module, rows, FORMS[form], trains=mode == "train")
            counts[mode, form] = count(module, [row[:1] for row in rows], FORMS[form], trains=mode == "train")
    contenders = {" ".join(map(str, key)): partial(_repeat, call, _burst(call)) for key, call in calls.items()}
    bursts = {key: contender.args[1] for key, contender in contenders.items()}
    advance()
    rounds = measure.interleave(contenders, settings.repeats, advance=advance)

    def row(mode: str, form: str) -> dict[str, Any]:
        keys = {str(size): f"{mode} {form} {size}" for size in settings.batch_sizes}
        microseconds = {size: rounds.spread(key).scaled(1e6 / bursts[key])._asdict() for size, key in keys.items()}
        return {**counts[mode, form]._asdict(), "microseconds": microseconds}

    return {"hidden": hidden, **{mode: {form: row(mode, form) for form in FORMS} for mode in MODES}}


class OneBatch:
    """One batch of a cell, ready to be launched: its rows lie one after the other, so they are read in place."""

    def __init__(self, module: nn.Module, rows: Sequence[Tensor], switches: Switches, *, trains: bool) -> None:
        cell = edbatch.cell(module)
        batched = edbatch.batch(lambda *row: cell(*row), policy="depth", stack=False)
        pipeline = batched.pipeline
        pipeline.switches = switches
        columns = [row.clone().requires_grad_(trains) for row in rows]
        with torch.set_grad_enabled(trains):
            self._execution, self._results = pipeline.prepare(columns, {}, batched.policy, Stopwatch())
        execution = self._execution
        with torch.no_grad():
            execution.run()
        (self._programs,) = execution.programs
        lease = self._lease = Lease(execution.lease.pool, "cells")
        self._launches = [self._programs.forward.bind(Binding(execution, 0, lease))]
        if self._programs.backward is not None:
            arenas, ways = gradient_arenas(execution, lease, self._results.groups)
            deferred = [lease.take(spec, execution.type_sizes[0]) for spec in self._programs.deferred]
            self._memory = ways
            binding = Binding(execution, 0, lease).with_gradients(arenas, ways, deferred, {})
            self._launches.append(self._programs.backward.bind(binding))

    def __call__(self) -> None:
        with torch.no_grad():
            for launch in self._launches:
                launch(0)

    def counts(self) -> Counts:
        """What is launched. Fused: generated loops and products without torch, which are not ops of torch."""
        with CountingMode() as mode:
            self()
        programs = [self._programs.forward, self._programs.backward]
        loops = sum(len(getattr(p, "kernels", ())) + len(getattr(p, "products", ())) for p in programs)
        return mode.counts._replace(launches=mode.counts.launches + loops)

    @property
    def outputs(self) -> list[Tensor]:
        return [self._execution.gather(group) for group in self._results.groups]


def count(module: nn.Module, rows: Sequence[Tensor], switches: Switches, *, trains: bool) -> Counts:
    """What a batch launches. Torch gathers its operands, so that they are counted, too."""
    return OneBatch(module, rows, replace(switches, move_rows=False), trains=trains).counts()


def check(name: str, module: nn.Module, hidden: int, form: str, other: nn.Module | None = None) -> None:
    """Raises if a batch differs from the module (or another) called on one row after the other."""
    rows = [torch.randn(3, *shape) for shape in CELLS[name].shapes(hidden)]
    batch = OneBatch(module, rows, FORMS[form], trains=False)
    batch()
    for i in range(3):
        alone = tree_leaves((other or module)(*[row[i] for row in rows]))
        if not all(torch.allclose(a, out[i], atol=1e-4) for a, out in zip(alone, batch.outputs, strict=True)):
            raise BenchError(f"nothing was timed, because {name} on three rows differs from one by one")


def _repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def _burst(call: Callable[[], object]) -> int:
    """How many calls take about BURST_SECONDS."""
    call()
    begin = time.perf_counter()
    call()
    return min(MAX_BURST, max(1, round(BURST_SECONDS / (time.perf_counter() - begin))))


def tables(result: dict[str, Any]) -> list[Table]:
    """The result as tables for people."""
    settings, machine = result["settings"], result["machine"]
    size = f"hidden size {settings['hidden']}, MV {settings['hidden'] // 2 or 1}"
    text = f"{machine['cpu']}, {machine['torch_threads']} threads, torch {machine['torch']}"
    rows = [f"{n} row{'s' * (n > 1)}" for n in settings["batch_sizes"]]
    found = []
    for mode, title in (("infer", "inference"), ("train", "training, forward and backward")):
        caption = f"launches (copies, bytes of a row copied); medians in µs, in brackets of one by one\n{text}"
        table = Table(title=f"Cells of the paper, {title}: {size}", caption=caption, box=SIMPLE, pad_edge=False)
        for head in ("cell", "form", "launches", *rows):
            table.add_column(head, justify="left" if head in ("cell", "form") else "right")
        for name, cell in result["cells"].items():
            alone = cell[mode]["one by one"]["microseconds"]
            for form, row in cell[mode].items():
                times = [
                    f"{spread['median']:.0f} ({spread['median'] / alone[n]['median']:.2f})"
                    for n, spread in row["microseconds"].items()
                ]
                launches = f"{row['launches']} ({row['copies']}, {row['bytes_copied']:,})"
                table.add_row(name if form == "one by one" else "", form, launches, *times)
        found.append(table)
    return found
