"""`edbatch bench recording`: microseconds that recording adds to a call of a cell, or to an op.

To record is to run the user's function on values without numbers, to learn which cells it calls. Each model is
recorded, and then run with its cells replaced by functions that return a constant. The latter is the time of the user's
own Python; the difference is what edbatch costs per call. Ops are in `recorded_ops.py`. Then each model is run on
examples that are known by their keys, as in a second epoch: this is the time to join what was recorded of them before,
everything included.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table
from torch import Tensor, nn

import edbatch
from edbatch.bench import measure
from edbatch.bench.measure import MIN_ROUNDS, Spread
from edbatch.bench.recorded_ops import STEPS, Repeated, bare_of
from edbatch.datasets import NUM_LABELS, load_trees
from edbatch.models import TreeLSTM


class LSTMChain(nn.Module):
    """An LSTM cell, not marked, called `steps` times on the same input."""

    def __init__(self, dim: int, steps: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(dim, dim)
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        h = c = x
        for _ in range(self.steps):
            h, c = self.cell(x, (h, c))
        return h


class LinearChain(nn.Module):
    """A linear layer, not marked, called `steps` times on its own result."""

    def __init__(self, dim: int, steps: int) -> None:
        super().__init__()
        self.layer = nn.Linear(dim, dim)
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = self.layer(x)
        return x


class Cells(TreeLSTM):
    """A TreeLSTM that calls its cells and does nothing else: the losses are not added up."""

    def forward(self, tree: Any) -> Any:
        outputs: list[tuple[Tensor, Tensor]] = []
        self.encode(tree, outputs)
        return outputs[-1]


@dataclass(frozen=True)
class RecordingCase:
    """A model, its examples, how many cell calls they make, and the constants that cells are replaced by."""

    name: str
    model: nn.Module
    batched: edbatch.Batched
    examples: Any
    num_calls: int
    constants: dict[str, Any]

    def record(self) -> object:
        return self.batched.pipeline.record_examples([self.examples], {})

    def record_known(self) -> Callable[[], object]:
        """A call that records examples which were recorded before, by their keys."""
        batched = edbatch.batch(self.model, key=id)
        return lambda: batched.pipeline.record_examples([self.examples], {})

    def run_bare(self) -> Callable[[], object]:
        """A call of the model's own Python, with every cell replaced by a function that returns a constant."""
        if isinstance(self.model, Repeated):
            return bare_of(self.model, len(self.examples))
        bare = object.__new__(type(self.model))
        bare.__dict__.update(self.model.__dict__)
        for name, constant in self.constants.items():
            bare.__dict__[name] = _returning(constant)
        return lambda: [bare.forward(example) for example in self.examples]


def _returning(constant: Any) -> Callable[..., Any]:
    return lambda *_: constant


def run(batch_size: int = 64, rounds: int = MIN_ROUNDS, data: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Measures and returns the result, ready for JSON."""
    bank = load_trees("train", folder=data)
    cases = _cases(bank.trees[:batch_size], len(bank.vocabulary), batch_size)
    contenders: dict[str, Callable[[], object]] = {}
    for case in cases:
        ways = {"recorded": case.record, "bare": case.run_bare(), "known": case.record_known()}
        contenders |= {f"{case.name}, {what}": way for what, way in ways.items()}
    with measure.progress("measuring", rounds) as advance:
        times = measure.interleave(contenders, rounds, advance=advance).seconds
    microseconds = {}
    for case in cases:
        recorded, bare, known = (list(times[f"{case.name}, {what}"].values()) for what in ("recorded", "bare", "known"))
        beyond = [a - b for a, b in zip(recorded, bare, strict=True)]
        columns = {"recorded": recorded, "same Python, constants": bare, "recording adds": beyond, "known keys": known}
        microseconds[case.name] = {"calls": case.num_calls} | {
            name: Spread.of(seconds).scaled(1e6 / case.num_calls)._asdict() for name, seconds in columns.items()
        }
    source = measure.without_folder(bank.source, data)
    return {"data": source, "machine": measure.machine_facts(), "microseconds_per_call": microseconds}


def _cases(trees: list[Any], words: int, batch_size: int, dim: int = 8, steps: int = 40) -> list[RecordingCase]:
    calls_of_trees = sum(2 for tree in trees for _ in tree.nodes())  # a state and a loss at every node
    state = None, None
    columns = list(torch.zeros(batch_size, dim))
    tree_lstm, lstm_chain, linear_chain = (
        Cells(words=words, classes=NUM_LABELS, dim=dim),
        LSTMChain(dim, steps),
        LinearChain(dim, steps),
    )
    constants = {"leaf": state, "node": state, "out": state}
    ops = {name: Repeated(step, dim, steps) for name, step in STEPS.items()}
    return [
        RecordingCase("TreeLSTM, marked cells", tree_lstm, edbatch.batch(tree_lstm), trees, calls_of_trees, constants),
        RecordingCase(
            "nn.LSTMCell", lstm_chain, edbatch.batch(lstm_chain), columns, batch_size * steps, {"cell": state}
        ),
        RecordingCase(
            "nn.Linear", linear_chain, edbatch.batch(linear_chain), columns, batch_size * steps, {"layer": None}
        ),
        *[RecordingCase(n, op, edbatch.batch(op), columns, batch_size * steps, {}) for n, op in ops.items()],
    ]


def tables(result: dict[str, Any]) -> list[Table]:
    """The result as tables for people."""
    caption = f"µs per call, medians (quartiles); {result['machine']['cpu']}, python {result['machine']['python']}"
    columns = "recorded", "same Python, constants", "recording adds", "known keys"
    table = Table("", "calls", *columns, title="Recording", caption=caption, box=SIMPLE)
    for name, row in result["microseconds_per_call"].items():
        table.add_row(name, str(row["calls"]), *(measure.text(row[column]) for column in columns))
    return [table]
