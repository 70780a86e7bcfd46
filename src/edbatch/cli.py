"""The command `edbatch`: a demo, workloads to run and train, learned policies and the benchmarks.

Heavy imports happen inside the commands, so that help is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from edbatch.errors import EdbatchError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")
bench = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(bench, name="bench", help="Measure edbatch on this machine, side by side with what it replaces.")
policy = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(policy, name="policy", help="Look at policies that were learned and saved.")


class Mode(StrEnum):
    infer = "infer"
    train = "train"


class Encoding(StrEnum):
    signs = "signs"
    base = "base"
    max = "max"
    sort = "sort"


MIN_TABLE_WIDTH = 150  # of benchmarks: cut numbers would be worse than lines that the terminal wraps


@contextmanager
def _clear_errors() -> Iterator[None]:
    """A user's mistake is one sentence on stderr and exit code 1; Ctrl-C is exit code 130. Neither is a traceback."""
    try:
        yield
    except (KeyboardInterrupt, SystemError) as error:
        if not _is_interrupt(error):
            raise
        if not (isinstance(error, KeyboardInterrupt) and error.args):  # else it was said already
            typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except (EdbatchError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it comes from Ctrl-C; inside a kernel, numba makes a SystemError of it, caused by another one or two."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


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
    * `edbatch cells` shows what is batched and copied inside LSTM, GRU and tree cells
    * `edbatch bench tree-lstm --mode train` compares with plain and hand-batched PyTorch
    * `edbatch bench recording --json recording.json` writes what it measured
    """


Hidden = Annotated[int, typer.Option(min=1, help="Hidden size of the model.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Trees in a mini-batch.")]
Workload = Annotated[str, typer.Argument(metavar="WORKLOAD", help="One that `edbatch workloads` lists.")]
PolicyName = Annotated[
    str | None,
    typer.Option(
        help="learned, bound-greedy, agenda, depth, …, or the file of a saved policy.", show_default="learned"
    ),
]
Folder = Annotated[Path | None, typer.Option(help="Folder of real data. Default: EDBATCH_DATA, or generated data.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of weights, order and generated data.", show_default="0")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds in which every contender runs once; at least 30.")]
Data = Annotated[Path | None, typer.Option(help="Folder of trees/train.txt. Default: EDBATCH_DATA, or shipped trees.")]
Json = Annotated[Path | None, typer.Option(help="Also write all numbers to this file.")]


@app.command()
def demo(
    hidden: Hidden = 64,
    batch_size: BatchSize = 25,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training trees.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the weights and the order of trees.")] = 0,
) -> None:
    """Train a TreeLSTM on the small trees that ship with edbatch, then compare policies.

    Example: `edbatch demo --hidden 128 --epochs 2`
    """
    with _clear_errors():
        from edbatch.report.demo import run

        run(hidden=hidden, batch_size=batch_size, epochs=epochs, seed=seed)


@app.command()
def learn(
    workload: Workload,
    graphs: Annotated[int, typer.Option(min=1, help="Mini-batches to learn from, the first ones.")] = 4,
    held_out: Annotated[int, typer.Option(min=0, help="Mini-batches after those, to choose the machine by.")] = 2,
    unseen: Annotated[int, typer.Option(min=0, help="Mini-batches after those, for the comparison only.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a mini-batch.")] = 32,
    encoding: Annotated[Encoding, typer.Option(help="What the machine sees of the frontier.")] = Encoding.signs,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the exploration and of generated data.")] = 0,
    episodes: Annotated[int, typer.Option(min=0, help="Mini-batches played at most while learning.")] = 1000,
    data: Folder = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the results. Default: WORKLOAD-policy.", show_default=False)
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(min=1, help="Hidden size; part of the names of types.", show_default="the workload's")
    ] = None,
) -> None:
    """Learn a machine that decides what to launch next, compare it with other policies, save and draw it.

    Example: `edbatch learn lattice-lstm --graphs 8 --output lattices`
    """
    with _clear_errors():
        from edbatch.report.learn import Settings, run

        sizes = (graphs, held_out, unseen, batch_size)
        run(Settings(workload, *sizes, encoding.value, seed, episodes, data, output, hidden))


@app.command()
def workloads(data: Folder = None) -> None:
    """List the models that can be run and trained, with their data and parameters.

    Example: `edbatch workloads`
    """
    with _clear_errors():
        from edbatch.report.workloads import run

        run(data)


@app.command("run")
def run_workload(
    workload: Workload,
    batches: Annotated[
        int | None, typer.Option(min=1, help="Mini-batches to run.", show_default="all test data")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a mini-batch.")] = 32,
    hidden: Annotated[
        int | None, typer.Option(min=1, help="Hidden size.", show_default="the checkpoint's or the workload's")
    ] = None,
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
    with _clear_errors():
        from edbatch.report.run import Options, run

        run(Options(workload, batches, batch_size, hidden, policy, seed, data, checkpoint, output, check))


@app.command()
def train(
    workload: Workload,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the training data, in all.", show_default="the workload's")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Examples in a mini-batch, of all processes.", show_default="32")
    ] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Hidden size.", show_default="the workload's")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(min=0.0, help="Of Adam.", show_default="the workload's")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Train and test on so many examples at most.", show_default="all")
    ] = None,
    policy: PolicyName = None,
    seed: Seed = None,
    data: Folder = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="WORKLOAD-training")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in that folder.")] = False,
    save_every: Annotated[
        int | None, typer.Option(min=1, help="Save also after so many steps.", show_default="after each epoch")
    ] = None,
    one_by_one: Annotated[
        int, typer.Option(min=0, help="At the end, time one-by-one training on so many examples.")
    ] = 0,
) -> None:
    """Train a workload's model; Ctrl-C saves, --resume goes on.

    Examples: `edbatch train tree-lstm --epochs 3 --output trees`, `torchrun --nproc-per-node 2 -m edbatch train
    tree-lstm`
    """
    with _clear_errors():
        from edbatch.report.train import Options, run
        from edbatch.workloads.ranks import join, leave

        ranks = join()
    options = Options(
        workload, epochs, hidden, batch_size, seed, learning_rate, limit, policy, data, output, resume,
        save_every, one_by_one,
    )  # fmt: skip
    try:
        with _clear_errors():
            run(options, ranks)
    except typer.Exit as error:
        leave(ranks, error.exit_code)
        raise
    leave(ranks, 0)


@app.command()
def cells(
    hidden: Hidden = 128,
    batch_sizes: Annotated[str, typer.Option(help="Rows in a batch, several with commas between.")] = "1,8,64,256",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds in which a cell runs at every batch size.")] = 30,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch. Default: torch's own choice.")] = None,
    json: Json = None,
) -> None:
    """Look inside the seven cells of the paper: ops, batches, copies without and with planning, latency.

    For a cell of your own, call the batched model and `print(*batched.cell_plans.values())`.

    Example: `edbatch cells --hidden 256 --batch-sizes 1,64`
    """
    with _clear_errors():
        from edbatch.bench import cells as benchmark

        settings = benchmark.Settings(hidden, benchmark.parse_batch_sizes(batch_sizes), repeats, threads)
        settings.check()
        _measure(benchmark, json, lambda: benchmark.run(settings))


@policy.command("show")
def policy_show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A policy.json of `edbatch learn`, or what policy.save wrote.")
    ],
    limit: Annotated[int, typer.Option(min=1, help="States to show, the most visited ones.")] = 20,
) -> None:
    """Print a saved policy: what it was learned from, and what it launches in which state.

    Example: `edbatch policy show lattice-lstm-policy/policy.json --limit 50`
    """
    with _clear_errors():
        from edbatch.report.learn import show

        show(file, limit)


@bench.command("tree-lstm")
def tree_lstm(
    batch_size: BatchSize = 64,
    hidden: Hidden = 256,
    mode: Annotated[Mode, typer.Option(help="Forward only, or forward and backward.")] = Mode.infer,
    policy: Annotated[str | None, typer.Option(help="agenda, depth, bound-greedy, … Default: edbatch's own.")] = None,
    rounds: Rounds = 30,
    one_by_one_rounds: Annotated[
        int | None, typer.Option(min=1, help="Let the slow one-by-one loop run in only so many of the rounds.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch. Default: torch's own choice.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights.")] = 0,
    data: Data = None,
    json: Json = None,
) -> None:
    """TreeLSTM: one by one, batched by hand, by edbatch, and the matrix products alone, in turns.

    Example: `edbatch bench tree-lstm --batch-size 64 --hidden 256 --mode train --one-by-one-rounds 5`
    """
    with _clear_errors():
        from edbatch.bench import tree_lstm as benchmark

        settings = benchmark.Settings(batch_size, hidden, mode.value, policy, rounds, one_by_one_rounds, threads, seed)
        settings.check()
        _measure(benchmark, json, lambda: benchmark.run(settings, data))


@bench.command()
def recording(batch_size: BatchSize = 64, rounds: Rounds = 30, data: Data = None, json: Json = None) -> None:
    """Microseconds that recording adds to a call of a marked cell, nn.LSTMCell and nn.Linear; and with known keys.

    Example: `edbatch bench recording --rounds 50`
    """
    with _clear_errors():
        from edbatch.bench import measure
        from edbatch.bench import recording as benchmark

        measure.check_rounds(rounds)
        _measure(benchmark, json, lambda: benchmark.run(batch_size, rounds, data))


@bench.command()
def scale(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the graph that is scheduled.")] = 1_000_000,
    steps: Annotated[int, typer.Option(min=1, help="Cells in the chain.")] = 20_000,
    repeats: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 5,
    json: Json = None,
) -> None:
    """A large graph, a long chain, and fresh processes: import and first call.

    Example: `edbatch bench scale --nodes 100000 --steps 2000`
    """
    with _clear_errors():
        from edbatch.bench import scale as benchmark

        _measure(benchmark, json, lambda: benchmark.run(nodes, steps, repeats))


@bench.command()
def policies(
    workload: Annotated[list[str] | None, typer.Option(help="A workload; may be repeated. Default: all.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a mini-batch.")] = 32,
    small_graphs: Annotated[int, typer.Option(min=0, help="Small graphs to compare with the optimum on.")] = 500,
    hidden: Hidden = 128,
    rounds: Rounds = 30,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    data: Folder = None,
    json: Json = None,
) -> None:
    """Batches of every policy on unseen mini-batches, the time to schedule and to learn, and what it is worth.

    Example: `edbatch bench policies --workload lattice-lstm --workload module-net --small-graphs 50`
    """
    with _clear_errors():
        from edbatch.bench import policies as benchmark

        settings = benchmark.Settings(
            tuple(workload or ()), batch_size, small_graphs=small_graphs, hidden=hidden, rounds=rounds, threads=threads
        )
        settings.check()
        _measure(benchmark, json, lambda: benchmark.run(settings, data))


@bench.command("workloads")
def bench_workloads(
    workload: Annotated[list[str] | None, typer.Option(help="A workload; may be repeated. Default: all.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a mini-batch.")] = 32,
    hidden: Annotated[int, typer.Option(min=2, help="Hidden size; MV-RNN has half of it.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which edbatch runs once; at least 10.")] = 30,
    one_by_one_rounds: Annotated[int, typer.Option(min=1, help="Rounds in which one by one runs, too.")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch. Default: torch's own choice.")] = None,
    data: Folder = None,
    json: Json = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the tables to this file, as Markdown.")] = None,
) -> None:
    """Every workload, inference and training: batches by policy, time by stage, speed-up over one by one.

    Example: `edbatch bench workloads --workload lattice-lstm --batch-size 64 --hidden 256`
    """
    with _clear_errors():
        from edbatch.atomic import write_atomically
        from edbatch.bench import workloads as benchmark
        from edbatch.bench.measure import check_output

        settings = benchmark.Settings(
            tuple(workload or ()), batch_size, hidden, rounds, threads, one_by_one_rounds=one_by_one_rounds
        )
        settings.check()
        check_output(markdown)
        result = _measure(benchmark, json, lambda: benchmark.run(settings, data))
        if markdown is not None:
            write_atomically(markdown, benchmark.markdown(result).encode())


@bench.command()
def segments(
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a mini-batch.")] = 32,
    hidden: Hidden = 128,
    rounds: Rounds = 30,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch. Default: torch's own choice.")] = None,
    data: Folder = None,
    json: Json = None,
) -> None:
    """Lattices and DAGs with segment reductions, and with a join cell for each number of arcs.

    Example: `edbatch bench segments --batch-size 16`
    """
    with _clear_errors():
        from edbatch.bench import segments as benchmark

        settings = benchmark.Settings(batch_size, hidden, rounds, threads)
        settings.check()
        _measure(benchmark, json, lambda: benchmark.run(settings, data))


@bench.command("dynet")
def bench_dynet(
    workload: Annotated[
        list[str] | None, typer.Argument(metavar="[WORKLOAD]...", help="Of the paper's nine.", show_default="all")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a mini-batch.")] = 32,
    hidden: Annotated[int, typer.Option(min=2, help="Hidden size; MV-RNN has half of it.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which both run once; at least 10.")] = 30,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch. Default: torch's own choice.")] = None,
    data: Folder = None,
    json: Json = None,
) -> None:
    """The paper's workloads, inference and training, against DyNet with autobatch (pip install dyNET38).

    Example: `edbatch bench dynet tree-lstm lattice-lstm --batch-size 64 --hidden 256`
    """
    with _clear_errors():
        from edbatch.bench import dynet as benchmark

        settings = benchmark.Settings(tuple(workload or ()), batch_size, hidden, rounds, threads)
        settings.check()
        _measure(benchmark, json, lambda: benchmark.run(settings, data))


@bench.command("floor")
def bench_floor(
    workload: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD]...",
            help="Some that `edbatch workloads` lists.",
            show_default="tree-lstm lattice-lstm bilstm-tagger",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a mini-batch.")] = 64,
    hidden: Annotated[int, typer.Option(min=2, help="Hidden size; MV-RNN has half of it.")] = 256,
    mode: Annotated[Mode, typer.Option(help="Forward only, or forward and backward.")] = Mode.infer,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which every contender runs once; at least 3.")] = 30,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch. Default: torch's own choice.")] = None,
    compile_time: Annotated[
        bool, typer.Option("--compile-time", help="Also time the first call in fresh processes; takes minutes.")
    ] = False,
    data: Folder = None,
    json: Json = None,
) -> None:
    """How close mini-batches come to their matrix products alone: run, end to end with key, and when recording.

    Also what a launch costs when there is nothing to compute.

    Example: `edbatch bench floor tree-lstm --batch-size 32 --hidden 128 --mode train --threads 2`
    """
    with _clear_errors():
        from edbatch.bench import floor as benchmark

        settings = benchmark.Settings(
            tuple(workload or ()), batch_size, hidden, rounds, threads, mode=mode.value, compile_time=compile_time
        )
        settings.check()
        _measure(benchmark, json, lambda: benchmark.run(settings, data))


def _measure(benchmark: Any, json: Path | None, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    from rich.console import Console

    from edbatch.bench.measure import check_output, write_json

    check_output(json)
    result = run()
    console = Console()
    console.width = max(console.width, MIN_TABLE_WIDTH)
    for table in benchmark.tables(result):
        console.print(table)
    if json is not None:
        write_json(json, result)
        console.print(f"All numbers are in {json}")
    return result


def main() -> None:
    """The entry point of the command."""
    app()
