"""`edbatch demo`: trains a TreeLSTM on the trees that ship with edbatch, then shows what batching gained.

Everything a user would write is in `train_epoch` and `accuracy`: a model for one tree, `edbatch.batch`, an optimizer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress
from rich.table import Table

import edbatch
from edbatch.datasets import NUM_LABELS, Tree, read_trees
from edbatch.datasets.trees import SHIPPED
from edbatch.models import TreeLSTM

NEXT_STEPS = """What next:
  source .venv/bin/activate, if make installed edbatch, for the command edbatch
  README.md              batch a model of your own
  batched.explain()      what was batched, what was copied, and why
  edbatch learn --help   what a policy learns, in pictures
  edbatch bench --help   measure this machine"""


def run(hidden: int, batch_size: int, epochs: int, seed: int, console: Console | None = None) -> None:
    """Trains, prints the dev accuracy after each epoch, then compares policies on one mini-batch of dev trees."""
    console = console or Console()
    train, vocabulary, _ = read_trees(SHIPPED / "train.txt")
    dev = read_trees(SHIPPED / "dev.txt", vocabulary).trees
    console.print(f"TreeLSTM with hidden size {hidden}: {len(train)} trees to train on, {len(dev)} to test on.")
    console.print("Kernels are compiled at first use; after that they come from a cache on disk.")
    torch.manual_seed(seed)
    model = TreeLSTM(words=len(vocabulary), classes=NUM_LABELS, dim=hidden)
    with _one_thread():
        batched = edbatch.batch(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(1, epochs + 1):
            begin = time.perf_counter()
            mini_batches = _mini_batches(train, batch_size, Random(seed + epoch))
            loss = train_epoch(batched, optimizer, mini_batches, epoch, console)
            seconds, right = time.perf_counter() - begin, accuracy(batched, dev)
            console.print(f"epoch {epoch}: loss {loss:.3f} a node, {right:.0%} of dev roots right, {seconds:.1f} s")
        console.print(compare_policies(model, dev[:batch_size]))
    console.print(NEXT_STEPS, highlight=False)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The matrices of the demo are so small that threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _mini_batches(trees: list[Tree], batch_size: int, rng: Random) -> list[list[Tree]]:
    trees = rng.sample(trees, len(trees))
    return [trees[i : i + batch_size] for i in range(0, len(trees), batch_size)]


def train_epoch(
    batched: Any, optimizer: torch.optim.Optimizer, mini_batches: list[list[Tree]], epoch: int, console: Console
) -> float:
    """One pass over the mini-batches; returns the mean loss of a tree node."""
    total, num_nodes = 0.0, 0
    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), "loss {task.fields[loss]:.3f}"
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"epoch {epoch}", total=len(mini_batches), loss=float("nan"))
        for trees in mini_batches:
            losses, _ = batched(trees)
            optimizer.zero_grad()
            losses.sum().div(len(trees)).backward()
            optimizer.step()
            total += losses.sum().item()
            num_nodes += sum(1 for tree in trees for _ in tree.nodes())
            progress.update(task, advance=1, loss=total / num_nodes)
    return total / num_nodes


def accuracy(batched: Any, trees: list[Tree]) -> float:
    """The share of trees whose root gets the right label."""
    with torch.no_grad():
        _, guesses = batched(trees)
    labels = torch.tensor([tree.label for tree in trees])
    return float((guesses == labels).float().mean())


def compare_policies(model: TreeLSTM, trees: list[Tree], rounds: int = 15) -> Table:
    """Inference on the same trees, one after the other and by each policy, in turns."""
    batched = {name: edbatch.batch(model, policy=name) for name in ("depth", "agenda", "bound-greedy", "learned")}
    functions: dict[str, Callable[[], object]] = {"one by one": lambda: [model(tree) for tree in trees]}
    functions |= {f"edbatch, {name}": partial(function, trees) for name, function in batched.items()}
    with torch.inference_mode():
        ms = _median_ms(functions, rounds)
    launches = [f"{sum(2 for tree in trees for _ in tree.nodes())} cells"]
    launches += [f"{function.stats.num_batches} batches" for function in batched.values() if function.stats]
    title = f"Inference on {len(trees)} trees, one thread"
    caption = f"medians of {rounds} rounds in turns; ms vary from run to run, launches do not"
    table = Table("", "launches", "ms", "speed-up", title=title, caption=caption)
    for name, launched in zip(functions, launches, strict=True):
        table.add_row(name, launched, f"{ms[name]:.1f}", f"{ms['one by one'] / ms[name]:.1f}×")
    return table


def _median_ms(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(1 + rounds):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - begin)
    return {name: 1e3 * statistics.median(times[1:]) for name, times in seconds.items()}  # the first one compiles
