"""`edbatch train`: trains a workload's model. Options come in; a checkpoint, the policy and a picture of the losses go
out as files.

Ctrl-C finishes the step and saves; `--resume` goes on from there, with the same losses as without the interruption.
"""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

from edbatch.report.options import policy_of
from edbatch.report.output import OutputError, output_folder, say, write_files
from edbatch.report.training_curve import draw_training
from edbatch.report.words import counted
from edbatch.scheduling.policies import Learned
from edbatch.scheduling.schedule import Policy
from edbatch.workloads import checkpoint as checkpoints
from edbatch.workloads.checkpoint import POLICY, Checkpoint, CheckpointError, CheckpointSettings, Epoch
from edbatch.workloads.interrupts import Interrupts
from edbatch.workloads.one_by_one import OneByOne
from edbatch.workloads.ranks import Ranks
from edbatch.workloads.registry import find
from edbatch.workloads.training import Trainer

FILES = (checkpoints.FILE, POLICY, "training.svg", "training.png")
GIVEN = ("hidden", "batch_size", "seed", "learning_rate", "limit", "policy")  # must be those of the checkpoint


@dataclass(frozen=True)
class TrainOptions:
    """The options of the command; None means the value of the checkpoint, or the default of the workload."""

    workload: str
    epochs: int | None = None
    hidden: int | None = None
    batch_size: int | None = None
    seed: int | None = None
    learning_rate: float | None = None
    limit: int | None = None
    policy: str | None = None
    data: Path | None = None
    output: Path | None = None
    resume: bool = False
    save_every: int | None = None
    one_by_one: int = 0

    @property
    def folder(self) -> Path:
        return self.output or Path(f"{self.workload}-training")


def run(options: TrainOptions, ranks: Ranks | None = None, console: Console | None = None) -> None:
    """Trains until all epochs are done.

    Raises:
        KeyboardInterrupt: Ctrl-C, or SIGTERM; everything up to the last step is saved.
    """
    ranks = ranks or Ranks()
    console = console or Console(quiet=not ranks.is_first)
    before = _checkpoint(options)
    settings = _settings(options, before)
    corpus = find(options.workload).load(options.data, settings.seed, settings.limit)
    with output_folder(options.folder, FILES) if ranks.is_first else nullcontext():
        trainer = Trainer(settings, corpus, _policy(settings, options), ranks, before)
        say(console, _beginning(trainer, options))
        _train(trainer, options, console)
    for line in _ending(trainer, options):
        say(console, line)


def _train(trainer: Trainer, options: TrainOptions, console: Console) -> None:
    with Interrupts() as interrupts:
        while len(trainer.progress.epochs) < trainer.settings.epochs:
            if not _steps(trainer, options, console, interrupts):
                _save(trainer, options.folder)
                trainer.ranks.wait()  # torchrun stops all when one ends, and rank 0 may still be saving
                say(console, f"Stopped and saved; go on by:\n  {_command(options)}")
                raise KeyboardInterrupt("saved")
            epoch = trainer.end_epoch()
            _save(trainer, options.folder)
            say(console, _line(len(trainer.progress.epochs), epoch))


def _steps(trainer: Trainer, options: TrainOptions, console: Console, interrupts: Interrupts) -> bool:
    """Runs the rest of the epoch, with a progress bar; returns whether it was completed."""
    columns = (
        "{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[note]}", TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"epoch {len(trainer.progress.epochs) + 1}", total=None, note="capturing cells")
        for step in trainer.epoch():
            _show(bar, task, trainer, step.num_steps)
            if trainer.ranks.any_of(interrupts.wanted):
                return False
            if options.save_every and step.number % options.save_every == 0:
                _save(trainer, options.folder)
    return True


def _show(bar: Progress, task: TaskID, trainer: Trainer, num_steps: int) -> None:
    done = trainer.progress
    note = f"loss {done.loss_sum / done.num_examples:.3f}, {done.num_examples / done.seconds:.0f} examples/s"
    bar.update(task, total=num_steps, completed=done.step, note=note)


def _checkpoint(options: TrainOptions) -> Checkpoint | None:
    """The checkpoint to go on from, if any. A new training does not overwrite a folder that has a checkpoint."""
    if options.resume:
        return checkpoints.load(options.folder)
    if checkpoints.exists(options.folder):
        raise OutputError(
            f"{options.folder} holds a checkpoint; add --resume to go on from it, or give another folder by --output"
        )
    return None


def _settings(options: TrainOptions, before: Checkpoint | None) -> CheckpointSettings:
    given = {name: getattr(options, name) for name in GIVEN if getattr(options, name) is not None}
    if before is None:
        workload = find(options.workload)
        usual = {"hidden": workload.hidden, "learning_rate": workload.learning_rate}
        return CheckpointSettings(workload.name, epochs=options.epochs or workload.epochs, **(usual | given))
    if before.settings.workload != options.workload:
        raise CheckpointError(f"{options.folder} holds a checkpoint of {before.settings.workload}; name that workload")
    for name, value in given.items():
        saved = getattr(before.settings, name)
        if saved != value:
            flag = name.replace("_", "-")
            raise CheckpointError(f"{options.folder} was trained with --{flag} {saved}, not {value}; leave it out")
    settings = msgspec.structs.replace(before.settings, epochs=options.epochs or before.settings.epochs)
    done = len(before.progress.epochs)
    if done >= settings.epochs:
        raise CheckpointError(f"all epochs in {options.folder} are done: give more than {done} by --epochs")
    return settings


def _policy(settings: CheckpointSettings, options: TrainOptions) -> Policy:
    """The policy of the settings; a learned one continues with what it has learned before."""
    saved = options.folder / POLICY
    is_learned = settings.policy == Learned.name or settings.policy.endswith(".json")
    return policy_of(str(saved) if options.resume and is_learned and saved.is_file() else settings.policy)


def _save(trainer: Trainer, folder: Path) -> None:
    if not trainer.ranks.is_first:
        return
    checkpoints.save(trainer.checkpoint(), folder)
    policy = trainer.batched.policy
    if isinstance(policy, Learned) and policy.machine is not None:
        policy.save(folder / POLICY)
    epochs = trainer.progress.epochs
    if epochs and not trainer.progress.step:
        settings = trainer.settings
        title = f"{settings.workload}: hidden size {settings.hidden}, mini-batches of {settings.batch_size}"
        write_files(folder, {f"training.{kind}": data for kind, data in draw_training(epochs, title).items()})


def _beginning(trainer: Trainer, options: TrainOptions) -> str:
    settings, corpus, done = trainer.settings, trainer.corpus, trainer.progress
    parameters = sum(p.numel() for p in trainer.model.parameters())
    text = (
        f"{settings.workload}: hidden size {settings.hidden}, {parameters:,} parameters, {corpus.source}\n"
        f"{len(corpus.train):,} examples to train on in mini-batches of {settings.batch_size}, {len(corpus.dev):,} to "
        "test on. The first step captures and compiles cells, which takes some seconds."
    )
    if trainer.ranks.size > 1:
        text += f"\n{trainer.ranks.size} processes divide every mini-batch by its nodes."
    if options.resume:
        text += f"\nGoing on after {counted(len(done.epochs), 'epoch')} and {counted(done.step, 'step')}."
    return text


def _line(number: int, epoch: Epoch) -> str:
    speed = epoch.num_examples / epoch.seconds
    return (
        f"epoch {number}: loss {epoch.loss:.3f} an example, {epoch.accuracy:.1%} right on dev, "
        f"{epoch.seconds:.1f} s, {speed:.0f} examples/s"
    )


def _ending(trainer: Trainer, options: TrainOptions) -> list[str]:
    lines = [f"Wrote {', '.join(name for name in FILES if (options.folder / name).exists())} into {options.folder}"]
    if options.one_by_one and trainer.ranks.is_first and trainer.progress.epochs:
        lines.append(_one_by_one(trainer, options.one_by_one))
    data = f" --data {shlex.quote(str(options.data))}" if options.data else ""
    lines.append(f"Use it:\n  edbatch run {options.workload} --checkpoint {shlex.quote(str(options.folder))}{data}")
    return lines


def _one_by_one(trainer: Trainer, num_examples: int) -> str:
    """A line with the seconds of an epoch, and those of training one by one, estimated from some of the examples."""
    train = trainer.corpus.train
    sample = Random(0).sample(train, min(num_examples, len(train)))
    theirs = OneByOne(trainer.model).seconds_per_example(sample) * len(train)
    ours = min(epoch.seconds for epoch in trainer.progress.epochs)
    return (
        f"One by one an epoch would take {theirs:.0f} s (forward and backward of {len(sample)} random examples, "
        f"scaled); the quickest epoch took {ours:.1f} s, optimizer included: {theirs / ours:.1f} times faster"
    )


def _command(options: TrainOptions) -> str:
    given = {"data": options.data, "output": options.output, "save-every": options.save_every,
             "one-by-one": options.one_by_one or None}  # fmt: skip
    flags = (f" --{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None)
    return f"edbatch train {options.workload}{''.join(flags)} --resume"
