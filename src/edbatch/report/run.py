"""`edbatch run`: inference with a workload's model (a model and data of `edbatch.workloads`).

In: a workload's name and options. Out: how long it took, how it was batched, and how many guesses were right.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import edbatch
from edbatch.batched import Batched
from edbatch.datasets.corpora import Corpus
from edbatch.errors import BatchError
from edbatch.report.options import policy_of
from edbatch.report.output import OutputError, progress_bar, say
from edbatch.report.words import counted
from edbatch.scheduling.policy_file import load_policy
from edbatch.scheduling.schedule import Policy
from edbatch.stats import Stats
from edbatch.storage.atomic import can_write, write_atomically
from edbatch.workloads import checkpoint as checkpoints
from edbatch.workloads.checkpoint import POLICY, Checkpoint, CheckpointError
from edbatch.workloads.registry import Workload, find


@dataclass(frozen=True)
class RunOptions:
    """The options of the command; None means the value of the checkpoint, or the default."""

    workload: str
    batches: int | None = None
    batch_size: int = 32
    hidden: int | None = None
    policy: str | None = None
    seed: int | None = None
    data: Path | None = None
    checkpoint: Path | None = None
    output: Path | None = None
    check: bool = False


@dataclass
class Totals:
    """Sums over mini-batches, and the guesses of every example."""

    mini_batches: int = 0
    right: int = 0
    num_labels: int = 0
    loss: float = 0.0
    num_nodes: int = 0
    types: set[str] = field(default_factory=set)
    num_batches: int = 0
    lower_bound: int = 0
    seconds: Counter[str] = field(default_factory=Counter)
    guesses: list[list[int]] = field(default_factory=list)

    def add(self, result: Any, stats: Stats, labels: Sequence[Sequence[int]]) -> None:
        (losses, _), (guesses, lengths) = result
        found = [part.tolist() for part in guesses.split(lengths.tolist())]
        self.guesses += found
        self.mini_batches += 1
        self.right += sum(
            a == b for ours, theirs in zip(found, labels, strict=True) for a, b in zip(ours, theirs, strict=True)
        )
        self.num_labels += sum(map(len, labels))
        self.loss += losses.sum().item()
        self.num_nodes += stats.num_nodes
        self.types.update(node_type.name for node_type in stats.types)
        self.num_batches += stats.num_batches
        self.lower_bound += stats.graph.lower_bound()
        self.seconds.update(stats.seconds)


def run(options: RunOptions, console: Console | None = None) -> None:
    """Inference on the test examples, mini-batch by mini-batch."""
    console = console or Console()
    _check_output(options.output)
    workload = find(options.workload)
    before = _checkpoint(options)
    seed, hidden = (before.settings.seed, before.settings.hidden) if before else (options.seed or 0, options.hidden)
    corpus = workload.load(options.data, seed, before.settings.limit if before else None)
    batched = _batched(workload, corpus, hidden, seed, _policy(options), before)
    examples = corpus.dev[: options.batches * options.batch_size if options.batches else None]
    if options.check:
        edbatch.check(batched, examples[: options.batch_size])
    totals = _infer(batched, workload, examples, options.batch_size)
    console.print(_table(options, batched, corpus, examples, totals))
    _say_known(console, options, totals)
    if before:
        say(console, f"right: {totals.right:,} of {totals.num_labels:,} ({totals.right / totals.num_labels:.1%})")
    else:
        say(console, f"The weights are random; train some: edbatch train {options.workload}")
    if options.check:
        say(console, "checked: values and gradients of the first mini-batch equal those of one by one")
    if options.output:
        write_atomically(options.output, _lines(workload, examples, totals))
        say(console, f"Wrote the guesses, one example a line, to {options.output}")


def _say_known(console: Console, options: RunOptions, totals: Totals) -> None:
    """Prints how many types of nodes a saved policy knows."""
    if options.policy and options.policy.endswith(".json"):
        known = totals.types & set(map(str, load_policy(options.policy).types))
        note = "" if len(known) == len(totals.types) else "; the others were learned anew"
        say(console, f"{options.policy} knows {len(known)} of the {len(totals.types)} types{note}")


def _infer(batched: Batched, workload: Workload, examples: Sequence[Any], size: int) -> Totals:
    totals = Totals()
    begins = range(0, len(examples), size)
    batched.eval()
    with torch.inference_mode(), progress_bar("inference", len(begins)) as update:
        batched(examples[:size])  # captures and compiles
        gc.collect()  # so that garbage of the first call is not collected while the clock runs
        gc.freeze()
        for number, begin in enumerate(begins, start=1):
            some = examples[begin : begin + size]
            result = batched(some)
            if batched.stats is None:
                raise BatchError("nothing was batched, so there is nothing to report; unset EDBATCH_EAGER")
            totals.add(result, batched.stats, [workload.labels(example) for example in some])
            update(number, f"{begin + len(some):,} examples")
    return totals


def _checkpoint(options: RunOptions) -> Checkpoint | None:
    if options.checkpoint is None:
        return None
    found = checkpoints.load(options.checkpoint)
    if found.settings.workload != options.workload:
        raise CheckpointError(
            f"{options.checkpoint} holds a checkpoint of {found.settings.workload}; run that workload"
        )
    for name in ("hidden", "seed"):
        saved, given = getattr(found.settings, name), getattr(options, name)
        if given not in (None, saved):
            raise CheckpointError(f"{options.checkpoint} was trained with --{name} {saved}, not {given}; leave it out")
    return found


def _policy(options: RunOptions) -> Policy:
    """The policy of the options, else that of the checkpoint."""
    saved = options.checkpoint / POLICY if options.checkpoint else None
    return policy_of(options.policy or (str(saved) if saved and saved.is_file() else "learned"))


def _batched(
    workload: Workload, corpus: Corpus, hidden: int | None, seed: int, policy: Policy, before: Checkpoint | None
) -> Batched:
    model = workload.make(corpus, hidden, seed)
    if before:
        before.load_weights(model, corpus)
    return edbatch.batch(model, policy=policy, stack="cat")


def _table(options: RunOptions, batched: Batched, corpus: Corpus, examples: Sequence[Any], totals: Totals) -> Table:
    seconds = sum(totals.seconds.values())
    table = Table(title=f"{options.workload}, policy {batched.policy.name}", caption=corpus.source, show_header=False)
    rows = {
        "examples": f"{len(examples):,} in {counted(totals.mini_batches, 'mini-batch', 'mini-batches')}",
        "loss": f"{totals.loss / len(examples):.4f} an example",
        "nodes": f"{totals.num_nodes:,} of {len(totals.types)} types",
        "batches": f"{totals.num_batches:,}; lower bound {totals.lower_bound:,}",
        "speed": f"{len(examples) / seconds:,.0f} examples/s",
        "a mini-batch": f"{1e3 * seconds / totals.mini_batches:.1f} ms",
        **{f"  {stage}": f"{1e3 * s / totals.mini_batches:.2f} ms" for stage, s in totals.seconds.items()},
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _lines(workload: Workload, examples: Sequence[Any], totals: Totals) -> bytes:
    pairs = zip(totals.guesses, examples, strict=True)
    records = ({"guesses": guesses, "labels": list(workload.labels(example))} for guesses, example in pairs)
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def _check_output(path: Path | None) -> None:
    if path is not None and not can_write(path):
        raise OutputError(f"cannot write {path}: give a file name in an existing folder")
