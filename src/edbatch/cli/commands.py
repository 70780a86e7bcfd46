"""All commands but the benchmarks. Heavy imports happen inside the commands, so that help is quick."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from edbatch.cli.bench import bench, show_measured
from edbatch.cli.clear_errors import clear_errors
from edbatch.cli.options import BatchSize, Folder, Hidden, Json, PolicyName, Seed, Threads, Trees, Workload, number

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")
app.add_typer(bench, name="bench", help="Measure edbatch on this machine, side by side with what it replaces.")
policy = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(policy, name="policy", help="Look at policies that were learned and saved.")


class Encoding(StrEnum):
    signs = "signs"
    base = "base"
    max = "max"
    sort = "sort"


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"edbatch {version('edbatch')}")
        raise typer.Exit


@app.callback()
def edbatch(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Write a PyTorch model for one example, train it on mini-batches of different ones.

    Examples:

    * `edbatch demo` trains a TreeLSTM on small trees and compares policies
    * `edbatch workloads` lists models with their data; `edbatch run lattice-lstm` runs one
    * `edbatch train tree-lstm --output trees` trains one; Ctrl-C saves, `--resume` goes on
    * `edbatch learn lattice-lstm` learns a policy from word lattices, draws it and compares it with others
    * `edbatch cells` measures LSTM, GRU and tree cells as torch ops, batched inside, planned and fused
    * `edbatch bench tree-lstm --mode train` compares with plain and hand-batched PyTorch
    * `edbatch fuzz --seconds 600` looks for programs whose batched results differ
    * `edbatch bench recording --json recording.json` writes what it measured
    """


@app.command()
def demo(
    hidden: Hidden = 64,
    batch_size: Trees = 25,
    epochs: Annotated[int, number("Passes over the training trees.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the weights and the order of trees.")] = 0,
) -> None:
    """Train a TreeLSTM on the small trees that ship with edbatch, then compare policies.

    Example: `edbatch demo --hidden 128 --epochs 2`
    """
    with clear_errors():
        from edbatch.report.demo import run

        run(hidden=hidden, batch_size=batch_size, epochs=epochs, seed=seed)


@app.command()
def learn(
    workload: Workload,
    graphs: Annotated[int, number("Mini-batches to learn from, the first ones.")] = 4,
    held_out: Annotated[int, number("Mini-batches after those, to choose the machine by.", least=0)] = 2,
    unseen: Annotated[int, number("Mini-batches after those, for the comparison only.", least=0)] = 5,
    batch_size: BatchSize = 32,
    encoding: Annotated[Encoding, typer.Option(help="What the machine sees of the frontier.")] = Encoding.signs,
    seed: Annotated[int, number("Seed of the exploration and of generated data.", least=0, max=2**32 - 1)] = 0,
    episodes: Annotated[int, number("Mini-batches played at most while learning.", least=0)] = 1000,
    data: Folder = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the results. Default: WORKLOAD-policy.", show_default=False)
    ] = None,
    hidden: Annotated[
        int | None, number("Hidden size; part of the names of types.", show_default="the workload's")
    ] = None,
) -> None:
    """Learn a machine that decides what to launch next, compare it with other policies, save and draw it.

    Example: `edbatch learn lattice-lstm --graphs 8 --output lattices`
    """
    with clear_errors():
        from edbatch.report.learn import LearnSettings, run

        sizes = (graphs, held_out, unseen, batch_size)
        run(LearnSettings(workload, *sizes, encoding.value, seed, episodes, data, output, hidden))


@app.command()
def workloads(data: Folder = None) -> None:
    """List the models that can be run and trained, with their data and parameters.

    Example: `edbatch workloads`
    """
    with clear_errors():
        from edbatch.report.workloads import run

        run(data)


@app.command("run")
def run_workload(
    workload: Workload,
    batches: Annotated[int | None, number("Mini-batches to run.", show_default="all test data")] = None,
    batch_size: BatchSize = 32,
    hidden: Annotated[int | None, number("Hidden size.", show_default="the checkpoint's or the workload's")] = None,
    policy: PolicyName = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder that `edbatch train` wrote.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the guesses to this file, JSON lines.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare one mini-batch with one by one first.")] = False,
    seed: Seed = None,
    data: Folder = None,
) -> None:
    """Run a workload's model on its test data: how many batches, how fast, and how right.

    Example: `edbatch run lattice-lstm --batches 5 --policy agenda --check`
    """
    with clear_errors():
        from edbatch.report.run import RunOptions, run

        run(RunOptions(workload, batches, batch_size, hidden, policy, seed, data, checkpoint, output, check))


@app.command()
def train(
    workload: Workload,
    epochs: Annotated[
        int | None, number("Passes over the training data, in all.", show_default="the workload's")
    ] = None,
    batch_size: Annotated[int | None, number("Examples in a mini-batch, of all processes.", show_default="32")] = None,
    hidden: Annotated[int | None, number("Hidden size.", show_default="the workload's")] = None,
    learning_rate: Annotated[float | None, number("Of Adam.", least=0.0, show_default="the workload's")] = None,
    limit: Annotated[int | None, number("Train and test on so many examples at most.", show_default="all")] = None,
    policy: PolicyName = None,
    seed: Seed = None,
    data: Folder = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="WORKLOAD-training")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in that folder.")] = False,
    save_every: Annotated[int | None, number("Save also after so many steps.", show_default="after each epoch")] = None,
    one_by_one: Annotated[int, number("At the end, time one-by-one training on so many examples.", least=0)] = 0,
) -> None:
    """Train a workload's model; Ctrl-C saves, --resume goes on.

    Examples: `edbatch train tree-lstm --epochs 3 --output trees`, `torchrun --nproc-per-node 2 -m edbatch train
    tree-lstm`
    """
    with clear_errors():
        from edbatch.report.train import TrainOptions, run
        from edbatch.workloads.ranks import join, leave

        ranks = join()
    options = TrainOptions(
        workload, epochs, hidden, batch_size, seed, learning_rate, limit, policy, data, output, resume,
        save_every, one_by_one,
    )  # fmt: skip
    try:
        with clear_errors():
            run(options, ranks)
    except typer.Exit as error:
        leave(ranks, error.exit_code)
        raise
    leave(ranks, 0)


@app.command()
def cells(
    hidden: Hidden = 128,
    batch_sizes: Annotated[str, typer.Option(help="Rows in a batch, several with commas between.")] = "1,8,64,256",
    repeats: Annotated[int, number("Rounds in which a cell runs at every batch size.")] = 30,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """The seven cells of the paper as torch ops, batched inside, on planned memory, and fused: launches, copies, times.

    For a cell of your own, call the batched model and `print(*batched.cell_plans.values())`.

    Example: `edbatch cells --hidden 256 --batch-sizes 1,64`
    """
    with clear_errors():
        from edbatch.bench.kernels import cells as benchmark

        settings = benchmark.Settings(hidden, benchmark.parse_batch_sizes(batch_sizes), repeats, threads)
        settings.check()
        show_measured(benchmark, json, lambda: benchmark.run(settings))


@app.command()
def fuzz(
    seconds: Annotated[float | None, number("Go on for so long.", show_default="60, or as --programs says")] = None,
    seed: Annotated[int, number("Seed of the programs; the same seed gives the same ones.", least=0)] = 0,
    programs: Annotated[int | None, number("Run so many programs at most.", show_default="no limit")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the scripts of findings.")] = Path("fuzz-findings"),
    include: Annotated[
        list[str] | None, typer.Option(help="A feature that is switched off by default; may be repeated, or `all`.")
    ] = None,
) -> None:
    """Look for faults: random programs run batched and one by one, and what differs becomes a small script.

    Compared are values, dtypes, shapes, gradients, what calls leave behind, and how they end: a crash and a hang are
    findings, a refusal with a clear message is none. Ctrl-C ends with the summary; exit code 1 says there are findings.

    Example: `edbatch fuzz --seconds 600 --seed 7 --output findings`
    """
    with clear_errors():
        from edbatch.fuzz.run import FuzzSettings, run
        from edbatch.fuzz.surroundings import EXCLUDED

        unknown = set(include or ()) - {*EXCLUDED, "all"}
        if unknown:
            raise typer.BadParameter(f"{', '.join(sorted(unknown))}: none of {', '.join([*EXCLUDED, 'all'])}")
        excluded = frozenset() if "all" in (include or ()) else frozenset(EXCLUDED) - set(include or ())
        limit = 60.0 if seconds is None and programs is None else seconds
        if run(FuzzSettings(seed, limit, programs, output, excluded)).findings:
            raise typer.Exit(1)


@policy.command("show")
def policy_show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A policy.json of `edbatch learn`, or what policy.save wrote.")
    ],
    limit: Annotated[int, number("States to show, the most visited ones.")] = 20,
) -> None:
    """Print a saved policy: what it was learned from, and what it launches in which state.

    Example: `edbatch policy show lattice-lstm-policy/policy.json --limit 50`
    """
    with clear_errors():
        from edbatch.report.learn import show

        show(file, limit)
