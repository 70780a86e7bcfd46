"""How things are timed: functions come in, seconds per round, their medians and quartiles go out.

Contenders take turns, round after round, because the speed of a shared machine drifts. So times that are compared were
taken at about the same moment. A ratio is computed for each round, and then the median of these is taken.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress

from edbatch.datasets.files import data_folder
from edbatch.errors import EdbatchError
from edbatch.storage.atomic import can_write, write_atomically

MIN_ROUNDS = 30


class BenchError(EdbatchError, ValueError):
    """A measurement was asked for that cannot be made, or contenders do not agree."""


class Spread(NamedTuple):
    """Median and quartiles of some rounds.

    >>> Spread.of([4.0, 1.0, 2.0, 3.0, 5.0])
    Spread(median=3.0, lower=2.0, upper=4.0, rounds=5)
    """

    median: float
    lower: float
    upper: float
    rounds: int

    @staticmethod
    def of(values: list[float]) -> Spread:
        lower, _, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * values
        return Spread(statistics.median(values), lower, upper, len(values))

    def scaled(self, factor: float) -> Spread:
        return Spread(factor * self.median, factor * self.lower, factor * self.upper, self.rounds)


def text(spread: Mapping[str, float]) -> str:
    """A spread, as it is in JSON, for a table.

    >>> text(Spread.of([4.0, 1.0, 2.0, 3.0, 5.0])._asdict())
    '3 (2 – 4)'
    """
    numbers = (spread[key] for key in ("median", "lower", "upper"))
    median, lower, upper = (f"{number:,.0f}" if number >= 1000 else f"{number:.3g}" for number in numbers)
    return f"{median} ({lower} – {upper})"


class Rounds:
    """Seconds per contender and round.

    >>> rounds = Rounds({"slow": {0: 4.0, 2: 6.0}, "quick": {0: 2.0, 1: 1.0, 2: 2.0}})
    >>> rounds.spread("quick").median, rounds.ratio("slow", "quick").median
    (2.0, 2.5)
    """

    def __init__(self, seconds: Mapping[str, Mapping[int, float]]) -> None:
        self.seconds = seconds

    def spread(self, name: str) -> Spread:
        return Spread.of(list(self.seconds[name].values()))

    def ratio(self, over: str, under: str) -> Spread:
        """The ratio of the time of `over` to that of `under`, in the rounds in which both ran."""
        first, second = self.seconds[over], self.seconds[under]
        return Spread.of([first[number] / second[number] for number in first if number in second])


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    fewer: Mapping[str, int] | None = None,
    after: Mapping[str, Callable[[], object]] | None = None,
    fair: bool = False,
    advance: Callable[[], object] = lambda: None,
) -> Rounds:
    """Times every contender once a round; those in `fewer` only in the number of rounds given there, evenly spread.

    Each runs once before anything is timed. Garbage is collected outside the clock, so that no contender pays for that
    of another.

    Args:
        after: What to do after a contender was timed, outside the clock.
        fair: For small differences. Each contender runs just before it is timed, too, and turns are drawn anew for each
            round: else each comes after the same one, which favours some by several percent.
        advance: Called after each round, for a progress bar.
    """
    for contender in contenders.values():
        contender()
    seconds: dict[str, dict[int, float]] = {name: {} for name in contenders}
    names, rng = list(contenders), random.Random(0)
    gc.collect()
    gc.freeze()
    try:
        for number in range(rounds):
            turns = names[number % len(names) :] + names[: number % len(names)]
            for name in rng.sample(names, len(names)) if fair else turns:
                share = (fewer or {}).get(name, rounds)
                if number * share % rounds < share:
                    if fair:
                        contenders[name]()
                    seconds[name][number] = _time(contenders[name])
                    (after or {}).get(name, lambda: None)()
            advance()
    finally:
        gc.unfreeze()
    return Rounds(seconds)


def _time(function: Callable[[], object]) -> float:
    gc.collect()
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], object]]:
    """A progress bar on stderr; yields the function that advances it by one."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def num_threads(threads: int | None) -> Iterator[None]:
    """A scope in which torch uses so many threads; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine_facts() -> dict[str, Any]:
    """What a reader needs to judge the numbers."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{package: version(package) for package in ("numpy", "numba", "edbatch")},
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def write_json(path: Path, value: Any) -> None:
    """Writes all of the file or, if anything fails, nothing: a reader never sees half of it."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def check_rounds(rounds: int, least: int | None = None) -> None:
    """Refuses fewer rounds than a median needs."""
    least = least or MIN_ROUNDS
    if rounds < least:
        raise BenchError(f"{rounds} rounds are too few for a median to trust; ask for {least} or more")


def without_folder(source: str, data: str | os.PathLike[str] | None) -> str:
    """Where examples are from, without the path of the data folder on this machine.

    >>> without_folder("/home/me/data/trees/train.txt; generated", "/home/me/data")
    'trees/train.txt; generated'
    """
    return source.replace(f"{data_folder(data)}{os.sep}", "")


def check_output(path: Path | None) -> None:
    """Refuses a path that could not be written, before minutes are spent on measuring."""
    if path is not None and not can_write(path):
        raise BenchError(f"cannot write {path}: give a file name in an existing folder that may be written to")
