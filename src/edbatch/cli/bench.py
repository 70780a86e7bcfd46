"""`edbatch bench`: what edbatch costs and saves on this machine. Heavy imports happen inside the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from edbatch.cli.clear_errors import clear_errors
from edbatch.cli.options import (
    BatchSize,
    Folder,
    Hidden,
    HiddenOfWorkloads,
    Json,
    Markdown,
    Mode,
    ModesOption,
    Rounds,
    Threads,
    TreeFolder,
    Trees,
    Workloads,
    number,
)

bench = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

MIN_TABLE_WIDTH = 150  # of benchmarks: cut numbers would be worse than lines that the terminal wraps


def show_measured(
    benchmark: Any, json: Path | None, run: Callable[[], dict[str, Any]], markdown: Path | None = None
) -> None:
    """Measure, print the tables for people, and write all numbers and the tables to files if such are given."""
    from rich.console import Console

    from edbatch.bench.measure import check_output, write_json
    from edbatch.storage.atomic import write_atomically

    check_output(json)
    check_output(markdown)
    result = run()
    console = Console()
    console.width = max(console.width, MIN_TABLE_WIDTH)
    for table in benchmark.tables(result):
        console.print(table)
    if json is not None:
        write_json(json, result)
        console.print(f"All numbers are in {json}")
    if markdown is not None:
        write_atomically(markdown, benchmark.markdown(result).encode())


@bench.command("tree-lstm")
def tree_lstm(
    batch_size: Trees = 64,
    hidden: Hidden = 256,
    mode: Annotated[Mode, typer.Option(help="Forward only, or forward and backward.")] = Mode.infer,
    policy: Annotated[str | None, typer.Option(help="agenda, depth, bound-greedy, … Default: edbatch's own.")] = None,
    rounds: Rounds = 30,
    one_by_one_rounds: Annotated[
        int | None, number("Let the slow one-by-one loop run in only so many of the rounds.")
    ] = None,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights.")] = 0,
    data: TreeFolder = None,
    json: Json = None,
) -> None:
    """TreeLSTM: one by one, batched by hand, by edbatch, and the matrix products alone, in turns.

    Example: `edbatch bench tree-lstm --batch-size 64 --hidden 256 --mode train --one-by-one-rounds 5`
    """
    with clear_errors():
        from edbatch.bench import tree_lstm as benchmark

        settings = benchmark.Settings(batch_size, hidden, mode.value, policy, rounds, one_by_one_rounds, threads, seed)
        settings.check()
        show_measured(benchmark, json, lambda: benchmark.run(settings, data))


@bench.command()
def recording(batch_size: Trees = 64, rounds: Rounds = 30, data: TreeFolder = None, json: Json = None) -> None:
    """Microseconds that recording adds to a call of a marked cell, nn.LSTMCell and nn.Linear; and with known keys.

    Example: `edbatch bench recording --rounds 50`
    """
    with clear_errors():
        from edbatch.bench import measure
        from edbatch.bench import recording as benchmark

        measure.check_rounds(rounds)
        show_measured(benchmark, json, lambda: benchmark.run(batch_size, rounds, data))


@bench.command()
def scale(
    nodes: Annotated[int, number("Nodes of the graph that is scheduled.")] = 1_000_000,
    steps: Annotated[int, number("Cells in the chain.")] = 20_000,
    leaves: Annotated[int, number("Leaves of the PQ tree.", least=2)] = 100_000,
    repeats: Annotated[int, number("How often each is measured.")] = 5,
    json: Json = None,
) -> None:
    """A large graph, a long chain, a large PQ tree, and fresh processes: import and first call.

    Example: `edbatch bench scale --nodes 100000 --steps 2000`
    """
    with clear_errors():
        from edbatch.bench import scale as benchmark

        show_measured(benchmark, json, lambda: benchmark.run(nodes, steps, leaves, repeats))


@bench.command()
def policies(
    workload: Workloads = None,
    batch_size: BatchSize = 32,
    small_graphs: Annotated[int, number("Small graphs to compare with the optimum on.", least=0)] = 500,
    hidden: Hidden = 128,
    rounds: Rounds = 30,
    threads: Annotated[int, number("Threads of torch.")] = 1,
    data: Folder = None,
    json: Json = None,
) -> None:
    """Batches of every policy on unseen mini-batches, the time to schedule and to learn, and what it is worth.

    Example: `edbatch bench policies --workload lattice-lstm --workload module-net --small-graphs 50`
    """
    with clear_errors():
        from edbatch.bench import policies as benchmark

        settings = benchmark.Settings(
            tuple(workload or ()), batch_size, small_graphs=small_graphs, hidden=hidden, rounds=rounds, threads=threads
        )
        settings.check()
        show_measured(benchmark, json, lambda: benchmark.run(settings, data))


@bench.command("workloads")
def bench_workloads(
    workload: Workloads = None,
    batch_size: BatchSize = 32,
    hidden: HiddenOfWorkloads = 128,
    rounds: Annotated[int, number("Rounds in which edbatch runs once; at least 10.")] = 30,
    one_by_one_rounds: Annotated[int, number("Rounds in which one by one runs, too.")] = 3,
    threads: Threads = None,
    data: Folder = None,
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """Every workload, inference and training: batches by policy, time by stage, speed-up over one by one.

    Example: `edbatch bench workloads --workload lattice-lstm --batch-size 64 --hidden 256`
    """
    with clear_errors():
        from edbatch.bench import workloads as benchmark

        settings = benchmark.Settings(
            tuple(workload or ()), batch_size, hidden, rounds, threads, one_by_one_rounds=one_by_one_rounds
        )
        settings.check()
        show_measured(benchmark, json, lambda: benchmark.run(settings, data), markdown)


@bench.command()
def segments(
    batch_size: BatchSize = 32,
    hidden: Hidden = 128,
    rounds: Rounds = 30,
    threads: Threads = None,
    data: Folder = None,
    json: Json = None,
) -> None:
    """Lattices and DAGs with segment reductions, and with a join cell for each number of arcs.

    Example: `edbatch bench segments --batch-size 16`
    """
    with clear_errors():
        from edbatch.bench.kernels import segments as benchmark

        settings = benchmark.Settings(batch_size, hidden, rounds, threads)
        settings.check()
        show_measured(benchmark, json, lambda: benchmark.run(settings, data))


@bench.command("dynet")
def bench_dynet(
    workload: Annotated[
        list[str] | None, typer.Argument(metavar="WORKLOAD", help="Of the paper's nine.", show_default="all")
    ] = None,
    batch_size: BatchSize = 32,
    hidden: HiddenOfWorkloads = 128,
    rounds: Annotated[int, number("Rounds in which both run once; at least 10.")] = 30,
    threads: Threads = None,
    data: Folder = None,
    json: Json = None,
) -> None:
    """The paper's workloads, inference and training, against DyNet with autobatch (pip install dyNET38).

    Example: `edbatch bench dynet tree-lstm lattice-lstm --batch-size 64 --hidden 256`
    """
    with clear_errors():
        from edbatch.bench.dynet import contender as benchmark

        settings = benchmark.Settings(tuple(workload or ()), batch_size, hidden, rounds, threads)
        settings.check()
        show_measured(benchmark, json, lambda: benchmark.run(settings, data))


@bench.command("unfavourable")
def bench_unfavourable(
    case: Annotated[list[str] | None, typer.Argument(metavar="CASE", help="Some by name. Default: all.")] = None,
    rounds: Annotated[int, number("Rounds in which both run once; at least 3.")] = 30,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """Models for which batching cannot pay, against a plain loop: nothing should be slower, from the third call on.

    Example: `edbatch bench unfavourable "all types different" --threads 2`
    """
    with clear_errors():
        from edbatch.bench import unfavourable as benchmark

        settings = benchmark.Settings(tuple(case or ()), rounds, threads)
        settings.check()
        show_measured(benchmark, json, lambda: benchmark.run(settings))


@bench.command("floor")
def bench_floor(
    workload: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="Some that `edbatch workloads` lists.",
            show_default="tree-lstm lattice-lstm bilstm-tagger",
        ),
    ] = None,
    batch_size: BatchSize = 64,
    hidden: HiddenOfWorkloads = 256,
    mode: Annotated[Mode, typer.Option(help="Forward only, or forward and backward.")] = Mode.infer,
    rounds: Annotated[int, number("Rounds in which every contender runs once; at least 3.")] = 30,
    threads: Threads = None,
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
    with clear_errors():
        from edbatch.bench import floor as benchmark

        settings = benchmark.Settings(
            tuple(workload or ()), batch_size, hidden, rounds, threads, mode=mode.value, compile_time=compile_time
        )
        settings.check()
        show_measured(benchmark, json, lambda: benchmark.run(settings, data))


@bench.command("unmarked")
def bench_unmarked(
    workload: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="Some that `edbatch workloads` lists.",
            show_default="tree-lstm lattice-lstm bilstm-tagger module-net",
        ),
    ] = None,
    batch_size: BatchSize = 32,
    hidden: HiddenOfWorkloads = 128,
    rounds: Annotated[int, number("Rounds in which every contender runs once; at least 10.")] = 30,
    threads: Threads = None,
    data: Folder = None,
    json: Json = None,
) -> None:
    """Models with their marks taken off against marked ones: recording and with keys, inference and training.

    Example: `edbatch bench unmarked tree-lstm --batch-size 64 --threads 2`
    """
    with clear_errors():
        from edbatch.bench import unmarked as benchmark

        settings = benchmark.Settings(tuple(workload or ()), batch_size, hidden, rounds, threads)
        settings.check()
        show_measured(benchmark, json, lambda: benchmark.run(settings, data))


@bench.command("ablations")
def bench_ablations(
    workload: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="Some that `edbatch workloads` lists.",
            show_default="tree-lstm lattice-lstm bilstm-tagger attention-nmt module-net",
        ),
    ] = None,
    batch_size: BatchSize = 32,
    hidden: HiddenOfWorkloads = 128,
    mode: Annotated[
        ModesOption, typer.Option(help="Forward only, forward and backward, or both in turn.")
    ] = ModesOption.both,
    rounds: Annotated[int, number("Rounds in which every contender runs once; at least 3.")] = 30,
    threads: Threads = None,
    torch_ops: Annotated[
        bool, typer.Option("--torch-ops", help="Cells as torch ops: what batching inside and planned memory buy.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="float32 or, as torch ops, bfloat16.")] = "float32",
    data: Folder = None,
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """What each rewrite buys: found cells, hoisting, stacked weights, order inside batches, deferred gradients, keys.

    Example: `edbatch bench ablations lattice-lstm --mode train --threads 2`
    """
    with clear_errors():
        from edbatch.bench import ablations as benchmark

        settings = benchmark.Settings(
            tuple(workload or ()), batch_size, hidden, rounds, threads, 0, mode.value, torch_ops, dtype
        )
        settings.check()
        show_measured(benchmark, json, lambda: benchmark.run(settings, data), markdown)


@bench.command("order")
def bench_order(
    workload: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="Some that `edbatch workloads` lists.",
            show_default="tree-lstm lattice-lstm random-dag bilstm-tagger module-net",
        ),
    ] = None,
    batch_size: BatchSize = 32,
    hidden: HiddenOfWorkloads = 128,
    rounds: Annotated[int, number("Rounds in which every contender runs once; at least 3.")] = 30,
    threads: Threads = None,
    data: Folder = None,
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """The order of nodes inside batches: today's against one by PQ trees. Views, gathers, bytes, and times.

    Example: `edbatch bench order lattice-lstm --threads 2`
    """
    with clear_errors():
        from edbatch.bench import order as benchmark

        settings = benchmark.Settings(tuple(workload or ()), batch_size, hidden, rounds, threads)
        settings.check()
        show_measured(benchmark, json, lambda: benchmark.run(settings, data), markdown)
