"""`edbatch bench unmarked`: models with their cells marked, and the same models with the marks taken off.

In: settings. Out: milliseconds and launches of both, when examples are recorded and when they are known by their keys,
in inference and training. Losses and gradients are compared in float64 first. A mini-batch is the first examples of the
training data.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table
from torch import Tensor, nn

from edbatch.bench import measure, mini_batch
from edbatch.bench.measure import BenchError
from edbatch.bench.workloads import MODES, WorkloadRace
from edbatch.recording.program.marking import unmark
from edbatch.workloads import Workload

WAYS: dict[str, Callable[..., int] | None] = {"recording": None, "key=": id}
MARKED, UNMARKED = "marked", "unmarked"


@dataclass(frozen=True)
class Settings(mini_batch.Settings):
    """What to measure."""

    known = ("tree-lstm", "lattice-lstm", "bilstm-tagger", "module-net")


def run(settings: Settings, data: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Measures and returns all there is to say, ready for JSON. `data` is a folder like `$EDBATCH_DATA`."""
    chosen = settings.chosen()
    total = len(chosen) * len(WAYS) * len(MODES) * settings.rounds
    with measure.num_threads(settings.threads), measure.progress("measuring", total) as advance:
        return {
            "settings": settings.facts(),
            "machine": measure.machine_facts(),
            "workloads": {workload.name: _measure(workload, settings, data, advance) for workload in chosen},
        }


def _measure(
    workload: Workload, settings: Settings, data: str | os.PathLike[str] | None, advance: Callable[[], object]
) -> dict[str, Any]:
    with _default_dtype(torch.float64):
        source, races = _races(workload, settings, data)
        _check(workload.name, races)
    _, races = _races(workload, settings, data)
    found = {way: {mode: _race(races[way], mode, settings.rounds, advance) for mode in MODES} for way in WAYS}
    hidden = mini_batch.hidden_of(workload, settings.hidden)
    return {"data": measure.without_folder(source, data), "hidden": hidden, **found}


def _races(
    workload: Workload, settings: Settings, data: str | os.PathLike[str] | None
) -> tuple[str, dict[str, dict[str, WorkloadRace]]]:
    """Where the examples are from; and for each way the models that are compared, which have the same weights."""
    corpus = mini_batch.load(workload, settings.batch_size, data, settings.seed)
    marked = workload.make(corpus, mini_batch.hidden_of(workload, settings.hidden), settings.seed)
    unmarked = copy.deepcopy(marked)
    for module in unmarked.modules():
        unmark(module)
    models = {MARKED: marked, UNMARKED: unmarked}
    races = {
        way: {name: WorkloadRace(model, corpus.train, key) for name, model in models.items()}
        for way, key in WAYS.items()
    }
    return corpus.source, races


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _check(name: str, races: dict[str, dict[str, WorkloadRace]]) -> None:
    """Raises if losses or gradients of the unmarked model are not those of the marked one, one by one."""
    first = races["recording"][MARKED]
    wanted = _outcome(first.model, lambda: first.batched.one_by_one(first.examples)[0][0])
    for way, both in races.items():
        for race in both.values():
            for what, ours in _outcome(race.model, partial(_losses, race)).items():
                scale = float(wanted[what].abs().max())
                if not torch.allclose(ours, wanted[what], rtol=1e-9, atol=1e-9 * max(scale, 1e-3)):
                    raise BenchError(f"nothing was timed, because {what} of {name} with {way} differ from one by one")


def _losses(race: WorkloadRace) -> Tensor:
    losses: Tensor = race.batched(race.examples)[0][0]
    return losses


def _outcome(model: nn.Module, losses: Callable[[], Tensor]) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    found = losses()
    found.sum().backward()  # type: ignore[no-untyped-call]
    gradients = {f"gradients of {key}": p.grad for key, p in model.named_parameters() if p.grad is not None}
    return {"losses": found.detach(), **gradients}


def _race(races: dict[str, WorkloadRace], mode: str, rounds: int, advance: Callable[[], object]) -> dict[str, Any]:
    contenders: dict[str, Callable[[], object]] = {name: getattr(race, mode) for name, race in races.items()}
    for contender in contenders.values():
        contender()  # the second call finds the cells that the first one found
    found = measure.interleave(contenders, rounds, fair=True, advance=advance)
    return {
        "ms": {name: found.spread(name).scaled(1e3)._asdict() for name in races},
        "ratio": found.ratio(UNMARKED, MARKED)._asdict(),
        "launches": {name: _launches(race) for name, race in races.items()},
    }


def _launches(race: WorkloadRace) -> int:
    assert race.batched.stats is not None, "it has just run"
    return race.batched.stats.num_batches


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    settings, machine = result["settings"], result["machine"]
    title = f"Marks taken off: mini-batches of {settings['batch_size']}, hidden size {settings['hidden']}"
    caption = (f"medians (quartiles) of {settings['rounds']} rounds; ratios are taken within rounds\n"
               f"{machine['cpu']}, {machine['torch_threads']} threads, torch {machine['torch']}")  # fmt: skip
    heads = ("", "examples", "mode", "marked, ms", "unmarked, ms", "ratio", "launches", "unmarked")
    table = Table(*heads, title=title, caption=caption, box=SIMPLE, pad_edge=False)
    for column in table.columns[3:]:
        column.justify = "right"
    for name, row in result["workloads"].items():
        for way in WAYS:
            for mode in MODES:
                cell = row[way][mode]
                times = [measure.text(cell["ms"][which]) for which in (MARKED, UNMARKED)]
                launches = [str(cell["launches"][which]) for which in (MARKED, UNMARKED)]
                table.add_row(name, way, mode, *times, measure.text(cell["ratio"]), *launches)
        table.add_section()
    return [table]
