"""`edbatch bench tree-lstm`: a mini-batch of trees one by one, batched by hand, by edbatch, and "products alone".

In: settings. Out: times of all four. Their results are compared before anything is timed. "Products alone" is a floor:
only the matrix products of the batches that edbatch launches, into memory that was made before.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table

import edbatch
from edbatch.bench import measure
from edbatch.bench.contenders import HandBatched, OneByOneContender, ProductsContender
from edbatch.bench.measure import MIN_ROUNDS, BenchError, Rounds, Spread
from edbatch.datasets import NUM_LABELS, Tree, load_trees
from edbatch.models import TreeLSTM
from edbatch.stats import Stats

ONE_BY_ONE, HAND, EDBATCH, PRODUCTS = "one by one", "hand-batched", "edbatch", "products alone"


@dataclass(frozen=True)
class Settings:
    """What to measure. "One by one" may run in fewer rounds than the others, because it is slow."""

    batch_size: int = 64
    hidden: int = 256
    mode: str = "infer"
    policy: str | None = None
    rounds: int = MIN_ROUNDS
    one_by_one_rounds: int | None = None
    threads: int | None = None
    seed: int = 0

    def check(self) -> None:
        measure.check_rounds(self.rounds)
        if not 1 <= (self.one_by_one_rounds or self.rounds) <= self.rounds:
            raise BenchError(f"one by one can run in 1 to {self.rounds} of the rounds, not in {self.one_by_one_rounds}")


def run(settings: Settings, data: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Measures and returns the result, ready for JSON. `data` is a folder like `$EDBATCH_DATA`."""
    with measure.num_threads(settings.threads):
        bank = load_trees("train", folder=data)
        if settings.batch_size > len(bank.trees):
            raise BenchError(f"there are only {len(bank.trees)} trees in {bank.source}; ask for a smaller batch")
        torch.manual_seed(settings.seed)
        model = TreeLSTM(words=len(bank.vocabulary), classes=NUM_LABELS, dim=settings.hidden)
        race = TreeLSTMRace(model, bank.trees[: settings.batch_size], settings.policy, settings.mode)
        race.check()
        with measure.progress("measuring", settings.rounds) as advance:
            rounds = race.run(settings.rounds, settings.one_by_one_rounds or settings.rounds, advance)
        return {
            "settings": asdict(settings) | {"policy": race.batched.policy.name},
            "data": measure.without_folder(bank.source, data),
            "machine": measure.machine_facts(),
            "num_nodes": race.stats.num_nodes,
            "num_batches": race.stats.num_batches,
            "ms": {name: rounds.spread(name).scaled(1e3)._asdict() for name in rounds.seconds},
            "stages_ms": {name: Spread.of(s).scaled(1e3)._asdict() for name, s in race.stage_seconds.items()},
            "speedup_over_one_by_one": {n: rounds.ratio(ONE_BY_ONE, n)._asdict() for n in (HAND, EDBATCH)},
            "ratio_to_hand_batched": {n: rounds.ratio(n, HAND)._asdict() for n in (EDBATCH, PRODUCTS)},
        }


class TreeLSTMRace:
    """The contenders on one mini-batch."""

    def __init__(self, model: TreeLSTM, trees: list[Tree], policy: str | None, mode: str) -> None:
        self.model, self.trees, self.is_training = model, trees, mode == "train"
        self.batched = edbatch.batch(model, policy=policy) if policy else edbatch.batch(model)
        self.one_by_one = OneByOneContender(model, trees)
        self.hand_batched = HandBatched(model, trees)
        self.stage_seconds: dict[str, list[float]] = defaultdict(list)

    @property
    def stats(self) -> Stats:
        assert self.batched.stats is not None, "read before the first call"
        return self.batched.stats

    def edbatch_train(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.batched(self.trees)[0].sum().backward()

    def check(self) -> None:
        """Raises if contenders differ in losses or, in training, in the gradient of a parameter.

        Guesses are not compared: they may differ where two logits are equal up to rounding.
        """
        losses, _ = self.batched(self.trees)
        for name, contender in ((ONE_BY_ONE, self.one_by_one), (HAND, self.hand_batched)):
            _assert_close(f"losses of {name} and edbatch", contender.infer()[0], losses)
        if not self.is_training:
            return
        self.edbatch_train()
        for name, contender in ((ONE_BY_ONE, self.one_by_one), (HAND, self.hand_batched)):
            contender.train()
            theirs = dict(contender.model.named_parameters())
            for key, parameter in self.model.named_parameters():
                _assert_close(f"gradients of {key}, {name} and edbatch", theirs[key].grad, parameter.grad)

    def run(self, rounds: int, one_by_one_rounds: int, advance: Callable[[], object]) -> Rounds:
        products = ProductsContender(self.model, self.batch_sizes())
        contenders: dict[str, Callable[[], object]]
        if self.is_training:
            contenders = {ONE_BY_ONE: self.one_by_one.train, HAND: self.hand_batched.train,
                          EDBATCH: self.edbatch_train, PRODUCTS: products.train}  # fmt: skip
        else:
            contenders = {ONE_BY_ONE: self.one_by_one.infer, HAND: self.hand_batched.infer,
                          EDBATCH: lambda: self.batched(self.trees), PRODUCTS: products.infer}  # fmt: skip
        with torch.inference_mode(not self.is_training):
            return measure.interleave(contenders, rounds, fewer={ONE_BY_ONE: one_by_one_rounds},
                              after={EDBATCH: self._keep_stages}, advance=advance)  # fmt: skip

    def _keep_stages(self) -> None:
        for stage, seconds in self.stats.seconds.items():
            self.stage_seconds[stage].append(seconds)

    def batch_sizes(self) -> dict[str, list[int]]:
        """The sizes of the batches that edbatch launches, by cell."""
        schedule = edbatch.schedule(edbatch.record(self.batched, self.trees), self.batched.policy)
        sizes: dict[str, list[int]] = {"leaf": [], "node": [], "out": []}
        for name, nodes in schedule.batches:
            cell = re.match(r"leaf\b|node\b|out\b", str(name))
            if cell:
                sizes[cell.group()].append(len(nodes))
        return sizes


def _assert_close(what: str, first: Any, second: Any) -> None:
    try:
        torch.testing.assert_close(first.to_dense(), second, rtol=1e-3, atol=1e-4)
    except AssertionError as error:
        raise BenchError(f"nothing was timed, because results differ: {what}. {error}") from None


def tables(result: dict[str, Any]) -> list[Table]:
    """The result as tables for people."""
    settings, machine = result["settings"], result["machine"]
    title = (f"TreeLSTM, {settings['mode']}: {settings['batch_size']} trees, hidden size {settings['hidden']}, policy "
             f"{settings['policy']}\n{result['num_nodes']} nodes in {result['num_batches']} batches")  # fmt: skip
    caption = (f"medians (quartiles); speed-up over one by one; time relative to hand-batched\n{result['data']}\n"
               f"{machine['cpu']}, {machine['torch_threads']} threads, torch {machine['torch']}")  # fmt: skip
    times = Table("", "ms", "rounds", "speed-up", "to hand-batched", title=title, caption=caption, box=SIMPLE)
    for name, ms in result["ms"].items():
        speedup, ratio = (result[key].get(name) for key in ("speedup_over_one_by_one", "ratio_to_hand_batched"))
        speedup_text = f"{speedup['median']:.1f}×" if speedup else ""
        times.add_row(name, measure.text(ms), str(ms["rounds"]), speedup_text, measure.text(ratio) if ratio else "")
    stages = Table("stage of edbatch", "ms", box=SIMPLE)
    for name, ms in result["stages_ms"].items():
        stages.add_row(name, measure.text(ms))
    return [times, stages]
