"""What benchmarks of workloads (models with their data) have in common: settings, and a mini-batch of examples."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from edbatch.bench import measure
from edbatch.bench.measure import BenchError
from edbatch.datasets.corpora import Corpus
from edbatch.workloads import WORKLOADS, Workload, find


@dataclass(frozen=True)
class Settings:
    """What to measure, on which workloads; an empty list means all that the benchmark knows."""

    known: ClassVar[tuple[str, ...]] = tuple(WORKLOADS)
    min_rounds: ClassVar[int] = 10  # fewer than elsewhere, since there are many workloads

    workloads: tuple[str, ...] = ()
    batch_size: int = 32
    hidden: int = 128
    rounds: int = 30
    threads: int | None = None
    seed: int = 0

    def check(self) -> None:
        measure.check_rounds(self.rounds, self.min_rounds)
        self.chosen()

    def chosen(self) -> list[Workload]:
        return [find(name) for name in self.workloads or self.known]

    def facts(self) -> dict[str, Any]:
        """The settings for JSON."""
        return asdict(self) | {"workloads": self.workloads or self.known}


def load(workload: Workload, batch_size: int, data: str | os.PathLike[str] | None, seed: int = 0) -> Corpus:
    """The corpus of a workload, whose training examples are one mini-batch; raises if there are too few."""
    corpus = workload.load(data, seed, batch_size)
    if len(corpus.train) < batch_size:
        raise BenchError(f"there are only {len(corpus.train)} examples in {corpus.source}; ask for a smaller batch")
    return corpus


def hidden_of(workload: Workload, hidden: int) -> int:
    """The hidden size of a workload's model; half for MV-RNN, whose states are matrices."""
    return hidden // 2 if workload.name == "mv-rnn" else hidden
