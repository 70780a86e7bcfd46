"""The command `edbatch`: a demo and the benchmarks. Heavy imports happen inside the commands, so that help is quick."""

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


class Mode(StrEnum):
    infer = "infer"
    train = "train"


@contextmanager
def _clear_errors() -> Iterator[None]:
    """A user's mistake is one sentence on stderr and exit code 1; Ctrl-C is exit code 130. Neither is a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except (EdbatchError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


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

    * `edbatch demo` trains a TreeLSTM on small trees, in under a minute
    * `edbatch bench tree-lstm --mode train` compares with plain and hand-batched PyTorch
    * `edbatch bench recording --json recording.json` writes what it measured
    """


Hidden = Annotated[int, typer.Option(min=1, help="Hidden size of the model.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Trees in a mini-batch.")]
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
    """Microseconds that recording adds to a call of a marked cell, an nn.LSTMCell and an nn.Linear.

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


def _measure(benchmark: Any, json: Path | None, run: Callable[[], dict[str, Any]]) -> None:
    from rich.console import Console

    from edbatch.bench.measure import check_output, write_json

    check_output(json)
    result = run()
    console = Console()
    for table in benchmark.tables(result):
        console.print(table)
    if json is not None:
        write_json(json, result)
        console.print(f"All numbers are in {json}")


def main() -> None:
    """The entry point of the command."""
    app()
