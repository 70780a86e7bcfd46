"""`edbatch bench unfavourable`: models for which batching cannot pay, against a plain loop over their examples.

In: settings. Out: for each case, inference and training, the time of a batched call as a multiple of the loop's. Before
anything is timed, results are compared. From the third call on nothing should be slower than the loop.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.box import SIMPLE
from rich.table import Table
from torch import Tensor, nn

import edbatch
from edbatch.bench import measure
from edbatch.bench.measure import BenchError

EDBATCH, LOOP = "edbatch", "loop"
MODES = "infer", "train"
FIRST_CALLS = 2  # before anything is timed


@dataclass(frozen=True)
class Settings:
    """What to measure: some cases, by name; all, if there is none."""

    cases: tuple[str, ...] = ()
    rounds: int = 30
    threads: int | None = None

    def check(self) -> None:
        measure.check_rounds(self.rounds, 3)
        unknown = [name for name in self.cases if name not in CASES]
        if unknown:
            raise BenchError(f"there is no case {unknown[0]!r}; choose some of {', '.join(CASES)}")


class Case(NamedTuple):
    """A function of one example, which returns one tensor, and a mini-batch."""

    model: nn.Module
    columns: tuple[Sequence[Any], ...]


class WordChain(nn.Module):
    """A word after the other through an LSTM cell."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(50, dim), nn.LSTMCell(dim, dim)

    def forward(self, sentence: Sequence[int]) -> Tensor:
        h = c = torch.zeros(self.cell.hidden_size)
        for word in sentence:
            h, c = self.cell(self.words(word if isinstance(word, Tensor) else torch.tensor(word)), (h, c))
        return h


class EveryCallDiffers(nn.Module):
    """Example i runs through layers of its own."""

    def __init__(self, number: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim + i), nn.Tanh()) for i in range(number))

    def forward(self, x: Tensor, i: int) -> Tensor:
        total: Tensor = self.layers[i](x).sum()
        return total


class Of(nn.Module):
    """A function as a module, with the modules that it needs."""

    def __init__(self, function: Callable[..., Tensor], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.function = function

    def forward(self, *example: Any) -> Tensor:
        result: Tensor = self.function(self, *example)
        return result


def _attention(self: Any, x: Tensor) -> Tensor:
    scores = self.q(x) @ self.k(x).T / 8
    result: Tensor = (torch.softmax(scores, -1) @ self.v(x)).mean(0)
    return result


def _conv(self: Any, x: Tensor) -> Tensor:
    return self.body(x[None]).mean((0, 2, 3))  # type: ignore[no-any-return]


def _sorted(self: Any, x: Tensor) -> Tensor:
    return torch.cumsum(torch.sort(self.layer(x), 0).values, 0)[-1]


def _graph(self: Any, x: Tensor, edges: Tensor) -> Tensor:
    for layer in (self.first, self.second):
        x = torch.relu(layer(x + torch.zeros_like(x).index_add(0, edges[0], x[edges[1]])))
    return x.sum(0)


def _sequences(rng: random.Random, number: int, dim: int) -> list[Tensor]:
    return [torch.randn(rng.randint(5, 60), dim) for _ in range(number)]


def _edges(rng: random.Random, nodes: Tensor) -> Tensor:
    return torch.tensor([[rng.randrange(len(nodes)) for _ in range(3 * len(nodes))] for _ in range(2)])


def _cases(rng: random.Random) -> dict[str, Callable[[], Case]]:
    def linear(dim: int, out: int) -> nn.Module:
        return Of(lambda self, x: torch.tanh(self.layer(x)), layer=nn.Linear(dim, out))

    def graphs() -> Case:
        nodes = _sequences(rng, 32, 64)
        model = Of(_graph, first=nn.Linear(64, 64), second=nn.Linear(64, 64))
        return Case(model, (nodes, [_edges(rng, x) for x in nodes]))

    def heads() -> nn.Module:
        return Of(_attention, **{name: nn.Linear(64, 64) for name in "qkv"})

    def images(number: int, low: int, high: int) -> Case:
        body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
        sizes = [(rng.randint(low, high), rng.randint(low, high)) for _ in range(number)]
        return Case(Of(_conv, body=body), ([torch.randn(3, *size) for size in sizes],))

    def sentence(number: int, words: int) -> list[list[int]]:
        return [[rng.randrange(50) for _ in range(words)] for _ in range(number)]

    return {
        "one example, one op": lambda: Case(linear(64, 64), ([torch.randn(64)],)),
        "one example, a chain": lambda: Case(WordChain(64), (sentence(1, 30),)),
        "one example, large layers": lambda: Case(linear(2048, 2048), ([torch.randn(2048)],)),
        "two examples, tiny": lambda: Case(linear(4, 4), ([torch.randn(4), torch.randn(4)],)),
        "two short chains": lambda: Case(WordChain(16), (sentence(2, 3),)),
        "all types different": lambda: Case(EveryCallDiffers(16, 16), (list(torch.randn(16, 16)), range(16))),
        "one huge product": lambda: Case(
            Of(lambda self, x: (x @ x).sum(0)), ([torch.randn(400, 400) for _ in range(8)],)
        ),
        "large elementwise": lambda: Case(
            Of(lambda self, x: torch.tanh(x).mean(0)), ([torch.randn(1000, 300) for _ in range(8)],)
        ),
        "images of many sizes": lambda: images(16, 16, 40),
        "large images": lambda: images(4, 96, 128),
        "attention over [T, D]": lambda: Case(heads(), (_sequences(rng, 32, 64),)),
        "graphs with index_add": graphs,
        "sort and cumsum of [T, D]": lambda: Case(Of(_sorted, layer=nn.Linear(16, 16)), (_sequences(rng, 16, 16),)),
        "new sizes in every example": lambda: Case(
            Of(lambda self, x: torch.softmax(x, 0).square().sum()), ([torch.randn(n) for n in range(3, 35)],)
        ),
    }


CASES = tuple(_cases(random.Random(0)))


def run(settings: Settings) -> dict[str, Any]:
    """Measures and returns the result, ready for JSON."""
    torch.manual_seed(0)
    makers = _cases(random.Random(0))
    names = settings.cases or CASES
    total = len(names) * len(MODES) * settings.rounds
    with measure.num_threads(settings.threads), measure.progress("measuring", total) as advance:
        found = {name: {mode: _race(makers[name](), mode, settings, advance) for mode in MODES} for name in names}
        return {"settings": asdict(settings), "machine": measure.machine_facts(), "cases": found}


def _race(case: Case, mode: str, settings: Settings, advance: Callable[[], object]) -> dict[str, Any]:
    batched = edbatch.batch(case.model, stack=False)
    loop = PlainLoop(case.model)
    edbatch.check(edbatch.batch(case.model, stack=False), *case.columns)
    call = _infer if mode == "infer" else _train
    for _ in range(FIRST_CALLS):
        call(batched, case)
    contenders: dict[str, Callable[[], object]] = {
        EDBATCH: partial(call, batched, case),
        LOOP: partial(call, loop, case),
    }
    rounds = measure.interleave(contenders, settings.rounds, fair=True, advance=advance)
    return {
        "ms": {name: rounds.spread(name).scaled(1e3)._asdict() for name in contenders},
        "ratio": rounds.ratio(EDBATCH, LOOP)._asdict(),
        "runs": "one by one" if batched.runs_alone else "batched",
    }


class PlainLoop:
    """The model called on one example after the other."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, *columns: Sequence[Any]) -> list[Tensor]:
        return [self.model(*example) for example in zip(*columns, strict=True)]


def _infer(call: Callable[..., Any], case: Case) -> None:
    with torch.no_grad():
        call(*case.columns)


def _train(call: Callable[..., Any], case: Case) -> None:
    case.model.zero_grad(set_to_none=True)
    total = torch.stack([result.sum() for result in call(*case.columns)]).sum()
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    settings, machine = result["settings"], result["machine"]
    caption = (f"medians (quartiles) of {settings['rounds']} rounds, from the third call on\n"
               f"{machine['cpu']}, {machine['torch_threads']} threads, torch {machine['torch']}")  # fmt: skip
    heads = ("", "mode", "runs", "edbatch, ms", "loop, ms", "edbatch / loop")
    table = Table(*heads, title="Where batching cannot pay", caption=caption, box=SIMPLE, pad_edge=False)
    for column in table.columns[3:]:
        column.justify = "right"
    for name, row in result["cases"].items():
        for mode in MODES:
            ms = (measure.text(row[mode]["ms"][contender]) for contender in (EDBATCH, LOOP))
            table.add_row(name, mode, row[mode]["runs"], *ms, measure.text(row[mode]["ratio"]))
    return [table]
