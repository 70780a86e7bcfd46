"""`edbatch fuzz`: runs random programs until the time is up, makes those that fail small, writes them as scripts, and
prints a summary."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from edbatch.fuzz.generating import generate
from edbatch.fuzz.program import RandomProgram
from edbatch.fuzz.script import script_of
from edbatch.fuzz.shrinking import shrink, signature
from edbatch.fuzz.worker import Outcome, Worker


@dataclass(frozen=True)
class FuzzSettings:
    seed: int = 0
    seconds: float | None = None
    programs: int | None = None
    output: Path = Path("fuzz-findings")
    excluded: frozenset[str] = frozenset()
    seconds_to_shrink: float = 20.0  # for each finding


@dataclass
class Finding:
    """A kind of failure: the small program that shows it, and how often it occurred."""

    program: RandomProgram
    outcome: Outcome
    file: Path
    times: int = 1

    def explains(self, program: RandomProgram, outcome: Outcome) -> bool:
        """Whether another failing program is of this kind: the same error, or alike and with the small one's lines."""
        if signature(outcome) != signature(self.outcome):
            return False
        return outcome.kind == "error" or set(_lines(self.program)) <= set(_lines(program))


@dataclass
class Tally:
    """How many programs had which outcome."""

    kinds: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def programs(self) -> int:
        return self.kinds.total()

    @property
    def failures(self) -> int:
        return sum(finding.times for finding in self.findings)

    def __str__(self) -> str:
        rate = self.programs / max(self.seconds, 1e-9)
        return (
            f"{self.programs} programs, {self.kinds['refused']} refused, {self.failures} failed in "
            f"{len(self.findings)} ways, {rate:.1f} a second"
        )


def run(settings: FuzzSettings, console: Console | None = None) -> Tally:
    """Fuzz until the time or the number of programs is up, or Ctrl-C; prints a summary."""
    console = console or Console()
    tally = Tally()
    try:
        _loop(settings, tally, console)
    except KeyboardInterrupt:
        console.print("interrupted")
    _sum_up(tally, console)
    return tally


def _loop(settings: FuzzSettings, tally: Tally, console: Console) -> None:
    begin, number = time.monotonic(), 0
    seconds = settings.seconds
    on_stderr = Console(stderr=True)
    bar = Progress(console=on_stderr, transient=True, disable=not on_stderr.is_terminal)
    with bar, Worker(settings.excluded) as worker:
        task = bar.add_task("fuzzing", total=seconds or settings.programs)
        while (seconds is None or tally.seconds < seconds) and number != settings.programs:
            outcome = worker.run_number(settings.seed, number)
            tally.kinds[outcome.kind] += 1
            if outcome.kind == "refused":
                tally.refusals[re.sub(r"\d+|\[.*?\]", "…", outcome.message)[:100]] += 1
            if outcome.is_failure:
                _note(settings, number, outcome, worker, tally, console)
            number += 1
            tally.seconds = time.monotonic() - begin
            bar.update(task, completed=tally.seconds if seconds else number, description=str(tally))


def _note(
    settings: FuzzSettings, number: int, outcome: Outcome, worker: Worker, tally: Tally, console: Console
) -> None:
    """Count a failure if it is known, else make it small and write its script."""
    program = outcome.program or generate(settings.seed, number, settings.excluded)
    known = next((f for f in tally.findings if f.explains(program, outcome)), None)
    if known is None:
        program = shrink(program, outcome, worker.run, settings.seconds_to_shrink)
        again = worker.run(program) if outcome.kind in ("wrong", "error") else outcome
        outcome = again if again.is_failure else outcome  # else the failure did not occur again
        known = next((f for f in tally.findings if f.explains(program, outcome)), None)
    if known is not None:
        known.times += 1
        return
    settings.output.mkdir(parents=True, exist_ok=True)
    file = settings.output / f"{outcome.kind}-{settings.seed}-{number}.py"
    file.write_text(script_of(program, outcome))
    tally.findings.append(Finding(program, outcome, file))
    console.print(f"{outcome.kind}: {outcome.message[:200]}\n  {file}", markup=False, highlight=False, soft_wrap=True)


def _lines(program: RandomProgram) -> list[str]:
    """The lines of a program without names, and its settings that are not the plain ones."""
    blocks = [program.body, program.setup, *program.changes, *(f.body for f in program.functions)]
    forms = [inner.form for block in blocks for s in block for inner in s.all()]
    return [
        *forms,
        *[f"{k}={v}" for k, v in program.options if k in ("key", "compile") and v != "False"],
        program.around,
    ]


def _sum_up(tally: Tally, console: Console) -> None:
    console.print(str(tally), highlight=False)
    for title, counts in (("outcome", tally.kinds), ("refused, by message", tally.refusals)):
        table = Table("programs", title, box=None)
        for name, count in counts.most_common(12):
            table.add_row(str(count), name)
        if counts:
            console.print(table, markup=False)
    table = Table("times", "finding", "script", box=None)
    for finding in tally.findings:
        table.add_row(str(finding.times), signature(finding.outcome), str(finding.file))
    if tally.findings:
        console.print(table, markup=False)
