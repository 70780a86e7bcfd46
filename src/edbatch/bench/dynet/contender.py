"""`edbatch bench dynet`: the ED-Batch paper's workloads by edbatch and by DyNet with its automatic batching.

In: settings. Out: milliseconds of inference and training. DyNet is no dependency: if it is missing, the benchmark says
how to install it. Losses and gradients of both are compared before anything is timed. Training is forward and backward,
without an optimizer on either side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table
from torch import nn

import edbatch
from edbatch.bench import measure, mini_batch
from edbatch.bench.dynet.models import LOSSES, MiniBatch
from edbatch.bench.measure import BenchError
from edbatch.bench.workloads import EDBATCH, MODES
from edbatch.workloads import Workload

DYNET = "DyNet"
PACKAGE = "dyNET38"
MEMORY = "1024"  # megabytes to begin with; DyNet takes more when it needs more


class Settings(mini_batch.Settings):
    """What to measure."""

    known = tuple(LOSSES)

    def chosen(self) -> list[Workload]:
        found = super().chosen()
        for workload in found:
            if workload.name not in LOSSES:
                raise BenchError(f"{workload.name} is not written in DyNet; choose one of {', '.join(LOSSES)}")
        return found


def load() -> Any:
    """The module dynet, with automatic batching turned on, which must happen at import."""
    try:
        import dynet_config

        dynet_config.set(mem=MEMORY, autobatch=1)
        import dynet
    except ImportError as error:
        raise BenchError(f"DyNet cannot be imported ({error}); install it with: pip install {PACKAGE}") from None
    return dynet


def run(settings: Settings, data: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Measures and returns the result, ready for JSON. `data` is a folder like `$EDBATCH_DATA`."""
    dy, chosen = load(), settings.chosen()
    with measure.num_threads(settings.threads):
        results = {}
        with measure.progress("measuring", len(chosen) * (1 + len(MODES) * settings.rounds)) as advance:
            for workload in chosen:
                results[workload.name] = _measure(dy, workload, settings, data, advance)
        return {
            "settings": settings.facts(),
            "machine": measure.machine_facts() | {"dynet": _version(dy), "dynet_threads": 1},  # it has no others
            "workloads": results,
        }


def _version(dy: Any) -> str:
    try:
        return f"{dy.__version__} ({PACKAGE} {version(PACKAGE)})"
    except PackageNotFoundError:  # built from source
        return str(dy.__version__)


def _measure(
    dy: Any, workload: Workload, settings: Settings, data: str | os.PathLike[str] | None, advance: Callable[[], object]
) -> dict[str, Any]:
    corpus = mini_batch.load(workload, settings.batch_size, data, settings.seed)
    hidden = mini_batch.hidden_of(workload, settings.hidden)
    race = DyNetRace(dy, workload.name, workload.make(corpus, hidden, settings.seed), corpus.train)
    race.check()
    advance()
    return {
        "data": measure.without_folder(corpus.source, data),
        "hidden": hidden,
        **{mode: race.run(mode, settings.rounds, advance) for mode in MODES},
    }


class DyNetRace:
    """edbatch and DyNet on one mini-batch."""

    def __init__(self, dy: Any, name: str, model: nn.Module, examples: Sequence[Any]) -> None:
        self.name, self.model, self.examples = name, model, examples
        self.batched = edbatch.batch(model, stack="cat")
        self.in_dynet = MiniBatch(dy, name, model, examples)

    def infer(self) -> float:
        """The sum of all losses by edbatch, which also computes the guesses; DyNet does not."""
        with torch.inference_mode():
            return float(self.batched(self.examples)[0][0].sum())

    def train(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.batched(self.examples)[0][0].sum().backward()

    def check(self) -> None:
        """Raises if the loss of the mini-batch or the gradient of a parameter differs."""
        ours, theirs = self.infer(), self.in_dynet.infer()
        if not abs(ours - theirs) <= 1e-4 * abs(ours):
            raise BenchError(f"nothing was timed, because the loss of {self.name} is {ours} here and {theirs} in DyNet")
        self.train()
        self.in_dynet.copies.forget_gradients()
        self.in_dynet.train()
        for theirs_of, ours_of in self.in_dynet.copies.gradients():
            scale = float(ours_of.abs().max())
            if not torch.allclose(theirs_of, ours_of, rtol=1e-3, atol=1e-3 * max(scale, 1e-6)):
                shape = tuple(ours_of.shape)
                raise BenchError(f"nothing was timed, because gradients of {self.name} differ, of shape {shape}")

    def run(self, mode: str, rounds: int, advance: Callable[[], object]) -> dict[str, Any]:
        """Milliseconds of both, and how many times faster edbatch is."""
        contenders = {EDBATCH: getattr(self, mode), DYNET: getattr(self.in_dynet, mode)}
        times = measure.interleave(contenders, rounds, advance=advance)
        return {
            "ms": {name: times.spread(name).scaled(1e3)._asdict() for name in contenders},
            "speedup": times.ratio(DYNET, EDBATCH)._asdict(),
        }


def tables(result: dict[str, Any]) -> list[Table]:
    """The result as tables for people."""
    settings, machine = result["settings"], result["machine"]
    title = (f"edbatch and DyNet: mini-batches of {settings['batch_size']}, hidden size {settings['hidden']} "
             f"(MV-RNN half of it)")  # fmt: skip
    caption = (f"milliseconds, medians (quartiles) of {settings['rounds']} rounds in turns; speed-up over DyNet: of "
               f"the ratios\nwithin rounds; training: forward and backward; {machine['cpu']}, "
               f"{machine['torch_threads']} threads of torch {machine['torch']};\n"
               f"DyNet uses one thread, {machine['dynet']}")  # fmt: skip
    table = Table("", "mode", EDBATCH, DYNET, "speed-up", title=title, caption=caption, box=SIMPLE, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for name, found in result["workloads"].items():
        for mode in MODES:
            ms, speedup = found[mode]["ms"], found[mode]["speedup"]
            table.add_row(name, mode, measure.text(ms[EDBATCH]), measure.text(ms[DYNET]), measure.text(speedup))
    return [table]
