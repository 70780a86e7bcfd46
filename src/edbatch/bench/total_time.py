"""What fewer batches are worth in time, under the policies "bound-greedy" and "learned": part of `edbatch bench
policies`.

In: the size of a TreeLSTM; and for each workload its batches and the time to schedule them. Out: milliseconds. For the
TreeLSTM they are measured, for inference and for training. For other workloads they are estimated from the number of
batches; the table says which is which.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table

import edbatch
from edbatch.bench import measure
from edbatch.bench.measure import BenchError, Rounds
from edbatch.bench.recording import LSTMChain
from edbatch.datasets import NUM_LABELS, Tree, load_trees
from edbatch.models import TreeLSTM
from edbatch.stats import Stats

BOUND_GREEDY, LEARNED = "bound-greedy", "learned"
POLICIES = BOUND_GREEDY, LEARNED
CHAIN, CHAIN_DIM, CHAIN_STEPS = "chain", 8, 200
TRAINING = "training, "  # followed by a policy's name: the name of a contender


def time_model(
    batch_size: int, hidden: int, rounds: int, data: str | os.PathLike[str] | None, advance: Callable[[], object]
) -> dict[str, Any]:
    """Times a TreeLSTM under both policies and, for the cost of a launch, a chain of tiny cells, in turns."""
    bank = load_trees("train", folder=data)
    trees = bank.trees[:batch_size]
    torch.manual_seed(0)
    model = TreeLSTM(words=len(bank.vocabulary), classes=NUM_LABELS, dim=hidden)
    batched = {name: edbatch.batch(model, policy=name) for name in POLICIES}
    _compare(model, batched, trees)
    chain = edbatch.batch(LSTMChain(CHAIN_DIM, CHAIN_STEPS), policy=BOUND_GREEDY)
    infer: dict[str, Callable[[], object]] = {name: partial(_infer, batched[name], trees) for name in POLICIES}
    infer[CHAIN] = partial(_infer, chain, torch.zeros(1, CHAIN_DIM))
    train = {TRAINING + name: partial(_train, model, batched[name], trees) for name in POLICIES}
    seconds: dict[str, dict[int, float]] = {name: {} for name in infer}

    def keep(name: str, one: edbatch.Batched, *stages: str) -> None:
        seconds[name][len(seconds[name])] = sum(_stats(one).seconds[stage] for stage in stages)

    after: dict[str, Callable[[], object]] = {n: partial(keep, n, batched[n], "schedule", "run") for n in POLICIES}
    after[CHAIN] = partial(keep, CHAIN, chain, "run")
    calls = measure.interleave(infer | train, rounds, after=after, advance=advance)
    stages = Rounds(seconds)
    return {
        "data": bank.source,
        "num_batches": {name: _stats(batched[name]).num_batches for name in POLICIES},
        "microseconds_per_launch": stages.spread(CHAIN).scaled(1e6 / _stats(chain).num_batches)._asdict(),
        "call_ms": _both(calls),
        "schedule_and_run_ms": _both(stages),
        "training_ms": _both(calls, TRAINING),
    }


def _both(times: Rounds, prefix: str = "") -> dict[str, Any]:
    """Milliseconds of each policy, and their ratio."""
    ms = {name: times.spread(prefix + name).scaled(1e3)._asdict() for name in POLICIES}
    return ms | {"ratio": times.ratio(prefix + LEARNED, prefix + BOUND_GREEDY)._asdict()}


def _infer(batched: edbatch.Batched, column: Any) -> Any:
    with torch.inference_mode():
        return batched(column)


def _train(model: TreeLSTM, batched: edbatch.Batched, trees: list[Tree]) -> None:
    """Forward and backward of the losses of all trees together."""
    model.zero_grad(set_to_none=True)
    batched(trees)[0].sum().backward()


def _compare(model: TreeLSTM, batched: dict[str, edbatch.Batched], trees: list[Tree]) -> None:
    """Raises if losses or gradients differ between policies; guesses may differ, where two logits are nearly equal."""
    results = []
    for name in POLICIES:
        _train(model, batched[name], trees)
        gradients = (parameter.grad for parameter in model.parameters())
        losses, _ = _infer(batched[name], trees)
        results.append([losses, *(g.clone() for g in gradients if g is not None)])
    for first, second in zip(*results, strict=True):
        if not torch.allclose(first, second, rtol=1e-3, atol=1e-4):
            raise BenchError(f"nothing was timed, because the results of {' and '.join(POLICIES)} differ")


def _stats(batched: edbatch.Batched) -> Stats:
    assert batched.stats is not None, "read before the first call"
    return batched.stats


def estimate(
    batches: dict[str, Any], scheduling: dict[str, Any], microseconds_per_launch: float, unseen: int
) -> dict[str, Any]:
    """Milliseconds to schedule an unseen mini-batch and launch its batches, as if these had nothing to compute."""
    estimates = {}
    for name, case in batches.items():
        ns, nodes = scheduling[case["workload"]]["unseen_ns_per_node"], case["unseen_nodes"] / unseen
        num_batches = {policy: case["policies"][policy]["unseen"] / unseen for policy in POLICIES}
        decide = {policy: 1e-6 * nodes * ns[policy]["median"] for policy in POLICIES}
        ms = {policy: decide[policy] + 1e-3 * num_batches[policy] * microseconds_per_launch for policy in POLICIES}
        saved = num_batches[BOUND_GREEDY] - num_batches[LEARNED]
        estimates[name] = {
            "ms": ms,
            "scheduling_ms": decide,
            "ratio": ms[LEARNED] / ms[BOUND_GREEDY],
            "pays_above_microseconds_per_launch":
                max(0.0, 1e3 * (decide[LEARNED] - decide[BOUND_GREEDY]) / saved) if saved > 0 else None,
        }  # fmt: skip
    return estimates


def table(result: dict[str, Any]) -> Table:
    """`tree_lstm` and `estimates` of the benchmark's result, as a table for people."""
    model, settings, machine = result["tree_lstm"], result["settings"], result["machine"]
    launch = measure.text(model["microseconds_per_launch"])
    caption = (f"measured: a TreeLSTM of hidden size {settings['hidden']} on {settings['batch_size']} trees, in turns; "
               f"schedule + run: of inference; training: forward and backward of the summed loss; threads: "
               f"{machine['torch_threads']}\n"
               f"estimated: scheduling as measured on the unseen mini-batches + batches × {launch} µs, the measured "
               f"cost of launching a cell of {CHAIN_DIM} units for inference; what batches hold is not in it\n"
               f"pays above: µs per launch from which learned is ahead\n"
               f"{machine['cpu']}, torch {machine['torch']}")  # fmt: skip
    rows = Table(title="Scheduling and running a mini-batch, ms", caption=caption, box=SIMPLE, pad_edge=False)
    rows.add_column(no_wrap=True)
    for column in (*POLICIES, "ratio", "pays\nabove"):
        rows.add_column(column, min_width=max(map(len, column.splitlines())))
    rows.add_row("measured", style="bold")
    measured = {"inference": "call_ms", "schedule + run": "schedule_and_run_ms", "training": "training_ms"}
    for what, key in measured.items():
        texts = (measure.text(model[key][column]) for column in (*POLICIES, "ratio"))
        rows.add_row(f"TreeLSTM, {what}", *texts)
    rows.add_section()
    rows.add_row("estimated", style="bold")
    for name, row in result["estimates"].items():
        above = row["pays_above_microseconds_per_launch"]
        ms = (f"{row['ms'][policy]:.3g}" for policy in POLICIES)
        rows.add_row(name, *ms, f"{row['ratio']:.3f}", "" if above is None else f"{above:.3g} µs")
    return rows
