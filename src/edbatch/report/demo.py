"""`edbatch demo`: trains a TreeLSTM on the trees that ship with edbatch, then shows what batching gained.

Everything a user would write is in `train_epoch` and `accuracy`: a model for one tree, `edbatch.batch`, an optimizer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress
from rich.table import Table

import edbatch
from edbatch.datasets import NUM_LABELS, Tree, Vocabulary, read_trees
from edbatch.datasets.trees import SHIPPED
from edbatch.models import TreeLSTM

NEXT_STEPS = """What next:
  README.md              batch a model of your own
  batched.explain()      what was batched, what was copied, and why
  edbatch bench --help   measure this machine, against plain and hand-batched PyTorch"""


def run(hidden: int, batch_size: int, epochs: int, seed: int, console: Console | None = None) -> None:
    """Trains, prints the dev accuracy after each epoch, then compares policies on one mini-batch of dev trees."""
    console = console or Console()
    train, vocabulary, _ = read_trees(SHIPPED / "train.txt")
    dev = read_trees(SHIPPED / "dev.txt", vocabulary).trees
    console.print(f"TreeLSTM with hidden size {hidden}: {len(train)} trees to train on, {len(dev)} to test on.")
    console.print("Kernels are compiled at first use; after that they come from a cache on disk.")
    torch.manual_seed(seed)
    model = _model(vocabulary, hidden)
    batched = edbatch.batch(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, epochs + 1):
        begin = time.perf_counter()
        loss = train_epoch(batched, optimizer, _mini_batches(train, batch_size, Random(seed + epoch)), epoch, console)
        seconds, right = time.perf_counter() - begin, accuracy(batched, dev)
        console.print(f"epoch {epoch}: loss {loss:.3f} a node, {right:.0%} of dev roots right, {seconds:.1f} s")
    console.print(compare_policies(model, dev[:batch_size]))
    console.print(NEXT_STEPS, highlight=False)


def _model(vocabulary: Vocabulary, hidden: int) -> TreeLSTM:
    return TreeLSTM(len(vocabulary), hidden, NUM_LABELS)


def _mini_batches(trees: list[Tree], batch_size: int, rng: Random) -> list[list[Tree]]:
    trees = rng.sample(trees, len(trees))
    return [trees[i : i + batch_size] for i in range(0, len(trees), batch_size)]


def train_epoch(
    batched: Any, optimizer: torch.optim.Optimizer, mini_batches: list[list[Tree]], epoch: int, console: Console
) -> float:
    """One pass over the mini-batches; returns the mean loss of a tree node."""
    total, num_nodes = 0.0, 0
    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), "loss {task.fields[loss]:.3f}"
    with Progress(*columns, console=console, transient=True) as progress:
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
        _, logits = batched(trees)
    labels = torch.tensor([tree.label for tree in trees])
    return float((logits.argmax(dim=1) == labels).float().mean())


def compare_policies(model: TreeLSTM, trees: list[Tree], rounds: int = 5) -> Table:
    """Inference on the same trees, by one after the other and by each policy."""
    policies = {name: edbatch.batch(model, policy=name) for name in ("depth", "agenda", "bound-greedy")}
    table = Table("", "launches", "ms", "speed-up", title=f"Inference on {len(trees)} trees")
    with torch.inference_mode():
        one_by_one = _median_ms(lambda: [model(tree) for tree in trees], rounds)
        num_calls = sum(2 for tree in trees for _ in tree.nodes())
        table.add_row("one by one", f"{num_calls} cells", f"{one_by_one:.1f}", "1.0×")
        for name, batched in policies.items():
            ms = _median_ms(lambda batched=batched: batched(trees), rounds)  # type: ignore[misc]
            assert batched.stats is not None
            launches = f"{batched.stats.num_batches} batches"
            table.add_row(f"edbatch, {name}", launches, f"{ms:.1f}", f"{one_by_one / ms:.1f}×")
    return table


def _median_ms(function: Callable[[], object], rounds: int) -> float:
    function()  # compiles
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(seconds)
