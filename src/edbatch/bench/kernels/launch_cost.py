"""What a launch costs when there is nearly nothing to compute, and what the first call of a process costs.

Parts of `edbatch bench floor`. A chain of tiny cells on one example makes as many batches as calls, each of one row.
In: how often to measure. Out: microseconds per launch; seconds of a first call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

import edbatch
from edbatch.bench import measure
from edbatch.bench.measure import Spread
from edbatch.bench.recording import LSTMChain
from edbatch.bench.scale import first_use

HIDDEN, STEPS = 4, 500
INFER, FORWARD, BACKWARD = "inference", "training, forward", "training, backward"
FIRST_CALL = """
import time, torch, edbatch
from edbatch.workloads import find
torch.set_num_threads({threads})
workload = find({workload!r})
corpus = workload.load({data!r}, limit={batch_size})
batched = edbatch.batch(workload.make(corpus, {hidden}), stack="cat")
begin = time.perf_counter()
with torch.inference_mode({mode!r} == "infer"):
    losses = batched(corpus.train)[0][0]
if {mode!r} == "train":
    losses.sum().backward()
print(time.perf_counter() - begin)
"""


def launch_cost(rounds: int, advance: Callable[[], object]) -> dict[str, Any]:
    """Microseconds per batch, of the stages that launch batches (run and backward)."""
    chain = edbatch.batch(LSTMChain(HIDDEN, STEPS))
    xs = torch.zeros(1, HIDDEN)
    seconds: dict[str, list[float]] = {INFER: [], FORWARD: [], BACKWARD: []}

    def infer() -> None:
        with torch.inference_mode():
            chain(xs)

    def train() -> None:
        chain.zero_grad(set_to_none=True)
        chain(xs).sum().backward()

    def keep(**stages: str) -> Callable[[], None]:
        def keep_now() -> None:
            assert chain.stats is not None, "it has just run"
            for stage, name in stages.items():
                seconds[name].append(chain.stats.seconds[stage] / chain.stats.num_batches)

        return keep_now

    after = {"infer": keep(run=INFER), "train": keep(run=FORWARD, backward=BACKWARD)}
    measure.interleave({"infer": infer, "train": train}, rounds, after=after, advance=advance)
    assert chain.stats is not None, "it has just run"
    return {
        "hidden": HIDDEN,
        "steps": STEPS,
        "num_batches": chain.stats.num_batches,
        "microseconds_per_launch": {name: Spread.of(s).scaled(1e6)._asdict() for name, s in seconds.items()},
    }


def first_call(
    workload: str, mode: str, batch_size: int, hidden: int, data: str | os.PathLike[str] | None, repeats: int = 3
) -> dict[str, Any]:
    """Seconds of the first call in a fresh process: when nothing is compiled yet, and when machine code is on disk."""
    folder = None if data is None else os.fspath(data)
    code = FIRST_CALL.format(
        workload=workload, mode=mode, batch_size=batch_size, hidden=hidden, data=folder,
        threads=torch.get_num_threads(),
    )  # fmt: skip
    cold, warm = first_use(code, repeats)
    return {"workload": workload, "nothing compiled": cold._asdict(), "from disk": warm._asdict()}
