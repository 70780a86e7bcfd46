"""`edbatch bench segments`: lattices and DAGs, whose nodes join any number of arcs, in two versions.

One uses segment reductions (nodes with different numbers of arcs run in one batch), the other a cell that takes a list
(they do not). In: settings. Out: types, batches, the lower bound, and the time of a call, for both. That both compute
the same is checked first.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table
from torch import Tensor, nn

import edbatch
from edbatch.batched import Batched
from edbatch.bench import measure
from edbatch.bench.kernels.listed_sums import ListedLatticeLSTM, ListedRandomDag
from edbatch.bench.measure import MIN_ROUNDS, BenchError
from edbatch.bench.mini_batch import load
from edbatch.workloads import find

LISTED = {"lattice-lstm": ListedLatticeLSTM, "random-dag": ListedRandomDag}
SEGMENTS, LISTS = "segments", "lists"
POLICIES = ("depth", "agenda", "bound-greedy", "learned")


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    batch_size: int = 32
    hidden: int = 128
    rounds: int = MIN_ROUNDS
    threads: int | None = None

    def check(self) -> None:
        measure.check_rounds(self.rounds)


def run(settings: Settings, data: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Measures and returns the result, ready for JSON. `data` is a folder like `$EDBATCH_DATA`."""
    with (
        measure.num_threads(settings.threads),
        measure.progress("measuring", len(LISTED) * settings.rounds) as advance,
    ):
        workloads = {name: _measure(name, settings, data, advance) for name in LISTED}
        return {"settings": asdict(settings), "machine": measure.machine_facts(), "workloads": workloads}


def _measure(
    name: str, settings: Settings, data: str | os.PathLike[str] | None, advance: Callable[[], object]
) -> dict[str, Any]:
    corpus = load(find(name), settings.batch_size, data)
    model = find(name).make(corpus, settings.hidden)
    models = {SEGMENTS: model, LISTS: listed_like(model, name)}
    batched = {kind: edbatch.batch(m, stack="cat") for kind, m in models.items()}
    ours, theirs = (b(corpus.train)[0][0] for b in batched.values())
    if not torch.allclose(ours, theirs, rtol=1e-3):
        raise BenchError(f"nothing was timed, because the losses of {name} with and without segments differ")
    contenders: dict[str, Callable[[], object]] = {k: partial(_train, batched[k], corpus.train) for k in models}
    rounds = measure.interleave(contenders, settings.rounds, advance=advance)
    found: dict[str, Any] = {kind: _graph(batched[kind], corpus.train) for kind in models}
    for kind in models:
        found[kind]["train_ms"] = rounds.spread(kind).scaled(1e3)._asdict()
    source = measure.without_folder(corpus.source, data)
    return {"data": source, **found, "speedup": rounds.ratio(LISTS, SEGMENTS)._asdict()}


def listed_like(model: nn.Module, name: str) -> nn.Module:
    """The model with the same weights whose arcs are joined by a cell that takes a list."""
    other = copy.deepcopy(model)
    other.__class__ = LISTED[name]
    return other


def _train(batched: Batched, examples: Any) -> Tensor:
    batched.zero_grad(set_to_none=True)
    loss: Tensor = batched(examples)[0][0].sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def _graph(batched: Batched, examples: Any) -> dict[str, Any]:
    graph = edbatch.record(batched, examples)
    policies = {name: edbatch.policies.from_name(name) for name in POLICIES}
    return {
        "num_nodes": graph.num_nodes,
        "num_types": graph.num_types,
        "lower_bound": graph.lower_bound(),
        "num_batches": {name: edbatch.schedule(graph, policy).num_batches for name, policy in policies.items()},
    }


def tables(result: dict[str, Any]) -> list[Table]:
    """The result as tables for people."""
    settings, machine = result["settings"], result["machine"]
    title = f"Segment reductions: mini-batches of {settings['batch_size']}, hidden size {settings['hidden']}"
    caption = (f"lists: arcs are joined by a cell that takes a list, a type for each number of arcs\n"
               f"training step: median (quartiles), {machine['cpu']}, {machine['torch_threads']} threads")  # fmt: skip
    heads = ("", "", "nodes", "types", "bound", *POLICIES, "training step, ms")
    table = Table(*heads, title=title, caption=caption, box=SIMPLE, pad_edge=False)
    for name, found in result["workloads"].items():
        for kind in (SEGMENTS, LISTS):
            row = found[kind]
            counts = (row["num_nodes"], row["num_types"], row["lower_bound"], *row["num_batches"].values())
            table.add_row(name, kind, *map(str, counts), measure.text(row["train_ms"]))
    return [table]
