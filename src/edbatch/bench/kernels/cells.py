"""`edbatch cells`: how ops inside the cells of the ED-Batch paper are batched and laid out, and how long a cell takes.

In: settings. Out: counts of ops, batches and copies inside each cell, and the time of the compiled cell on random rows,
called as the runtime calls it for a batch: as fused kernels, and as torch ops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE
from rich.table import Table
from torch import Tensor, nn

from edbatch.bench import measure
from edbatch.bench.kernels.cells_of_paper import CELLS
from edbatch.bench.measure import BenchError
from edbatch.cells.compiled import CompiledCell, compile_cell
from edbatch.cells.kernel import Mask, Read
from edbatch.inspection.cell_plan import plan_of
from edbatch.pq.cell_layout import CellLayout
from edbatch.runtime.binding import Binding
from edbatch.spec import Spec
from edbatch.switches import Switches
from edbatch.torch_insides.pytree import tree_leaves

LAYOUTS = {"without": "without planning", "planned": "with planning", "gathered": "inputs gathered"}
FUSED, PLAIN = "fused_microseconds", "plain_microseconds"
FORMS = {FUSED: Switches(compile=True), PLAIN: Switches(compile=False)}
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


def compiled(name: str, module: nn.Module, hidden: int) -> CompiledCell:
    """The compiled kernel of a cell of the paper."""
    specs = [Spec(shape, torch.float32, torch.device("cpu")) for shape in CELLS[name].shapes(hidden)]
    return compile_cell(module, specs, name=name)


def _measure(name: str, settings: Settings, advance: Callable[[], object]) -> dict[str, Any]:
    hidden = settings.hidden_of(name)
    module = CELLS[name].make(hidden)
    cell = compiled(name, module, hidden)
    check(cell, module)
    calls: dict[str, Callable[[], object]] = {}
    for size in settings.batch_sizes:
        calls |= {f"{form} {size}": OneBatch(cell, size, switches) for form, switches in FORMS.items()}
    bursts = {name: _burst(call) for name, call in calls.items()}
    contenders: dict[str, Callable[[], object]] = {s: partial(_repeat, calls[s], bursts[s]) for s in calls}
    advance()
    with torch.inference_mode():
        rounds = measure.interleave(contenders, settings.repeats, advance=advance)
    plan = plan_of(cell)
    return {
        "hidden": hidden,
        "num_ops": plan.num_ops,
        "num_batches": plan.num_batches,
        **{kind: _copies(getattr(plan, kind)) for kind in LAYOUTS},
        **{
            kind: {
                str(size): rounds.spread(f"{kind} {size}").scaled(1e6 / bursts[f"{kind} {size}"])._asdict()
                for size in settings.batch_sizes
            }
            for kind in FORMS
        },
    }


class OneBatch(Binding):
    """One batch of random rows, and a form of a cell (fused or torch ops) ready to run on it, without a plan."""

    def __init__(self, cell: CompiledCell, size: int, switches: Switches) -> None:
        self._size = size
        self.rows_of = [spec.empty(size).normal_() for spec in cell.rows]
        self.results = [spec.empty(size) for spec in cell.outputs]
        self._index, self._numbers = np.arange(size), np.array([size, *[0] * (1 + len(self.rows_of))])
        self.starts = self._numbers.ctypes.data + self._numbers.itemsize  # zeros: rows are read from the first on
        self.head = self._numbers.ctypes.data, self.starts, self._index.ctypes.data, 1
        self._held: list[Any] = []
        self._memory: dict[int, Tensor] = {}
        form = cell.form((Read.ROWS,) * len(self.rows_of), switches)
        with torch.no_grad():
            self.pro = form.prologue(cell.enclosed)
        self._launch = form.infer.forward.bind(self)

    def __call__(self) -> None:
        self._launch(0)

    def operands(self, b: int, read: Mask | None = None) -> list[Any]:
        return self.rows_of

    def outs(self, b: int) -> list[Any]:
        return self.results

    def saved(self, b: int) -> list[Tensor]:
        return []

    @property
    def sizes(self) -> list[int]:
        return [self._size]

    @property
    def own(self) -> list[int]:
        return [0]

    def arena(self, slot: int) -> int:
        return self.rows_of[slot].data_ptr()

    def reader(self, slot: int) -> Callable[[int], Tensor]:
        return lambda _: self.rows_of[slot]

    def rows(self, slot: int) -> tuple[int, ...]:
        return 1, self.rows_of[slot].data_ptr(), 0, 0, 0, 0

    def tensor(self, group: str, number: int) -> Tensor:
        assert group == "outs", "it only infers"
        return self.results[number]

    def address(self, group: str, number: int) -> int:
        return self.tensor(group, number).data_ptr()

    def scratch(self, number: int, row_bytes: int) -> int:
        made = self._memory[number] = torch.empty(self._size * row_bytes, dtype=torch.uint8)
        return made.data_ptr()

    def scratch_tensor(self, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._memory[number].view(dtype).view(self._size, *shape)


def check(cell: CompiledCell, module: nn.Module) -> None:
    """Raises if a batch differs from the module called on one row after the other."""
    for switches in FORMS.values():
        batch = OneBatch(cell, 3, switches)
        batch()
        for i in range(3):
            alone = tree_leaves(module(*[row[i] for row in batch.rows_of]))
            if not all(torch.allclose(a, out[i], atol=1e-4) for a, out in zip(alone, batch.results, strict=True)):
                raise BenchError(f"nothing was timed, because {cell.name} on three rows differs from one by one")


def _repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def _burst(call: Callable[[], object]) -> int:
    """How many calls take about BURST_SECONDS."""
    call()
    begin = time.perf_counter()
    call()
    return min(MAX_BURST, max(1, round(BURST_SECONDS / (time.perf_counter() - begin))))


def _copies(layout: CellLayout) -> dict[str, int]:
    return {"copies": layout.num_copies, "bytes": layout.bytes_copied}


def tables(result: dict[str, Any]) -> list[Table]:
    """The result as tables for people."""
    settings, machine = result["settings"], result["machine"]
    title = f"Inside the cells of the paper: hidden size {settings['hidden']}, MV {settings['hidden'] // 2 or 1}"
    caption = (
        "copies: of operands and results of in-cell batches, and their bytes for one row\n"
        "inputs are in tensors of their own; in the last column they are\n"
        "gathered to where the plan wants them, by whoever reads them"
    )
    copies = [f"copies (bytes)\n{text}" for text in LAYOUTS.values()]
    inside = _table(title, caption, ["cell", "ops", "batches", *copies])
    machine_text = f"{machine['cpu']}, {machine['torch_threads']} threads, torch {machine['torch']}"
    caption = f"inference, medians: as fused kernels, in brackets as torch ops\n{machine_text}"
    sizes = [f"{size} row{'s' * (size > 1)}" for size in settings["batch_sizes"]]
    latency = _table("A call of the compiled cell, µs", caption, ["cell", *sizes])
    for name, row in result["cells"].items():
        counts = (f"{row[kind]['copies']} ({row[kind]['bytes']:,})" for kind in LAYOUTS)
        inside.add_row(name, str(row["num_ops"]), str(row["num_batches"]), *counts)
        pairs = zip(row[FUSED].values(), row[PLAIN].values(), strict=True)
        latency.add_row(name, *[f"{fused['median']:.0f} ({plain['median']:.0f})" for fused, plain in pairs])
    return [inside, latency]


def _table(title: str, caption: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, caption=caption, box=SIMPLE, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="left" if head == "cell" else "right")
    return table
