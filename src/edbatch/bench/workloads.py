"""`edbatch bench workloads`: every workload (a model with its data) by edbatch and one by one, inference and training.

In: settings. Out: times of both, and the number of batches under each policy. Results of both are compared before
anything is timed. A mini-batch is the first examples of the training data.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table
from torch import nn

import edbatch
from edbatch.batched import Batched
from edbatch.bench import measure, mini_batch
from edbatch.bench.measure import BenchError, Spread
from edbatch.bench.mini_batch import hidden_of, load
from edbatch.workloads import Workload
from edbatch.workloads.one_by_one import OneByOne

EDBATCH, ONE_BY_ONE = "edbatch", "one by one"
MODES = ("infer", "train")
POLICIES = ("depth", "agenda", "agenda-remaining", "ratio-greedy", "ratio-greedy-backward", "bound-greedy", "learned")
NEAR = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # how far sums in other orders may be apart
STAGES = ("record", "rewrite", "schedule", "plan", "compile", "run", "backward")


@dataclass(frozen=True)
class Settings(mini_batch.Settings):
    """What to measure. "One by one" runs in few of the rounds, because it is slow."""

    one_by_one_rounds: int = 3

    def check(self) -> None:
        super().check()
        if self.one_by_one_rounds > self.rounds:
            raise BenchError(f"one by one can run in 1 to {self.rounds} of the rounds, not in {self.one_by_one_rounds}")


def run(settings: Settings, data: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Measures and returns the result, ready for JSON. `data` is a folder like `$EDBATCH_DATA`."""
    chosen = settings.chosen()
    with measure.num_threads(settings.threads):
        results = {}
        with measure.progress("measuring", len(chosen) * (1 + len(MODES) * settings.rounds)) as advance:
            for workload in chosen:
                results[workload.name] = _measure(workload, settings, data, advance)
        return {
            "settings": settings.facts(),
            "machine": measure.machine_facts(),
            "workloads": results,
        }


def _measure(
    workload: Workload, settings: Settings, data: str | os.PathLike[str] | None, advance: Callable[[], object]
) -> dict[str, Any]:
    corpus = load(workload, settings.batch_size, data, settings.seed)
    model = workload.make(corpus, hidden_of(workload, settings.hidden), settings.seed)
    race = WorkloadRace(model, corpus.train)
    race.check(workload.name)
    graph = edbatch.record(race.batched, corpus.train)
    batches = {name: edbatch.schedule(graph, _policy(name, race.batched)).num_batches for name in POLICIES}
    advance()
    return {
        "data": measure.without_folder(corpus.source, data),
        "hidden": hidden_of(workload, settings.hidden),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "num_nodes": graph.num_nodes,
        "num_types": graph.num_types,
        "lower_bound": graph.lower_bound(),
        "num_batches": batches,
        **{mode: race.run(mode, settings, advance) for mode in MODES},
    }


def _policy(name: str, batched: Batched) -> Any:
    """A heuristic by its name; for "learned", the policy that the model has learned."""
    return batched.policy if name == batched.policy.name else edbatch.policies.from_name(name)


class WorkloadRace:
    """The contenders on one mini-batch."""

    def __init__(self, model: nn.Module, examples: Sequence[Any], key: Callable[..., Hashable] | None = None) -> None:
        self.model, self.examples = model, examples
        self.batched = edbatch.batch(model, stack="cat", key=key)
        self.one_by_one = OneByOne(model)

    def infer(self) -> None:
        with torch.inference_mode():
            self.batched(self.examples)

    def train(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.batched(self.examples)[0][0].sum().backward()

    def check(self, name: str) -> None:
        """Raises if losses or the gradient of a parameter differ."""
        losses = self.batched(self.examples)[0][0]
        theirs = torch.stack([loss for loss, _ in self.one_by_one.infer(self.examples)])
        pairs = [("losses", losses, theirs)]
        self.train()
        self.one_by_one.train(self.examples)
        gradients = {key: parameter.grad for key, parameter in self.one_by_one.model.named_parameters()}
        for key, parameter in self.model.named_parameters():
            their = gradients[key]
            if parameter.grad is not None and their is not None:
                pairs.append((f"gradients of {key}", parameter.grad, their.to_dense()))
            elif parameter.grad is not None or their is not None:
                raise BenchError(f"{name}: only one of edbatch and one by one has a gradient of {key}")
        for what, a, b in pairs:
            scale, near = float(b.abs().max()), NEAR[a.dtype]
            if not torch.allclose(a, b, rtol=near, atol=near * max(scale, 1e-6)):
                raise BenchError(f"nothing was timed, because results differ from one by one: {what} of {name}")

    def run(self, mode: str, settings: Settings, advance: Callable[[], object]) -> dict[str, Any]:
        """Milliseconds of both, of each stage, and how many times faster edbatch is."""
        contenders: dict[str, Callable[[], object]] = {
            EDBATCH: getattr(self, mode),
            ONE_BY_ONE: partial(getattr(self.one_by_one, mode), self.examples),
        }
        stages: dict[str, list[float]] = defaultdict(list)

        def keep() -> None:
            assert self.batched.stats is not None, "it has just run"
            for stage, seconds in self.batched.stats.seconds.items():
                stages[stage].append(seconds)

        rounds = measure.interleave(
            contenders, settings.rounds, fewer={ONE_BY_ONE: settings.one_by_one_rounds}, after={EDBATCH: keep},
            advance=advance,
        )  # fmt: skip
        return {
            "ms": {name: rounds.spread(name).scaled(1e3)._asdict() for name in contenders},
            "stages_ms": {stage: Spread.of(seconds).scaled(1e3)._asdict() for stage, seconds in stages.items()},
            "speedup": rounds.ratio(ONE_BY_ONE, EDBATCH)._asdict(),
        }


def tables(result: dict[str, Any]) -> list[Table]:
    """The result as tables for people."""
    settings, machine = result["settings"], result["machine"]
    title = f"mini-batches of {settings['batch_size']}, hidden size {settings['hidden']} (MV-RNN half of it)"
    facts = f"{machine['cpu']}, {machine['torch_threads']} threads, torch {machine['torch']}"
    found = []
    for heads, rows, name, caption in (
        (*_graphs(result), "Batches by policy", "the first examples of the training data"),
        (
            *_times(result),
            "Milliseconds",
            f"medians (quartiles); speed-up: median of ratios within rounds\n{facts}",
        ),
    ):
        table = Table(*heads, title=f"{name}: {title}", caption=caption, box=SIMPLE, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for row in rows:
            table.add_row(*row)
        found.append(table)
    return found


def _graphs(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    heads = ["", "hidden", "nodes", "types", "bound", *POLICIES]
    rows = [
        [name, str(r["hidden"]), f"{r['num_nodes']:,}", str(r["num_types"]), str(r["lower_bound"]),
         *(str(r["num_batches"][policy]) for policy in POLICIES)]
        for name, r in result["workloads"].items()
    ]  # fmt: skip
    return heads, rows


def _times(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    heads = ["", "mode", "edbatch", *STAGES, "one by one", "speed-up"]
    rows = []
    for name, r in result["workloads"].items():
        for mode in MODES:
            times = r[mode]
            stages = (times["stages_ms"].get(stage) for stage in STAGES)
            rows.append([
                name, mode, measure.text(times["ms"][EDBATCH]),
                *(f"{stage['median']:.3g}" if stage else "" for stage in stages),
                measure.text(times["ms"][ONE_BY_ONE]), f"{times['speedup']['median']:.1f}×",
            ])  # fmt: skip
    return heads, rows


def markdown(result: dict[str, Any]) -> str:
    """The result as Markdown tables, with the machine and how it was measured."""
    settings, machine = result["settings"], result["machine"]
    hidden = settings["hidden"]
    sections = [
        f"## Mini-batches of {settings['batch_size']}, hidden size {hidden} (MV-RNN {hidden // 2})",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['torch_threads']} threads of torch {machine['torch']}, "
        f"Python {machine['python']}, numba {machine['numba']}, edbatch {machine['edbatch']}. Medians (quartiles) of "
        f"{settings['rounds']} rounds, one by one in {settings['one_by_one_rounds']} of them, in turns in one process.",
        markdown_table(*_graphs(result)),
        "Milliseconds of a mini-batch, of its stages, and of the same model one by one (speed-up: median of the ratios "
        "within rounds):",
        markdown_table(*_times(result)),
    ]
    return "\n\n".join(sections) + "\n"


def markdown_table(heads: list[str], rows: list[list[str]]) -> str:
    """Names to the left, numbers to the right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
