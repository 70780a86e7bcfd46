"""The comparison with DyNet: the same losses and gradients in both, and nothing else is timed."""

from __future__ import annotations

import io
import json
import sys
from importlib.util import find_spec

import pytest
import torch
from rich.console import Console

from edbatch.bench.dynet import contender as dynet
from edbatch.bench.dynet.models import LOSSES
from edbatch.bench.measure import BenchError
from edbatch.workloads import find

needs_dynet = pytest.mark.skipif(find_spec("dynet") is None, reason="DyNet is optional: pip install dyNET38")


@pytest.fixture(autouse=True)
def generated_data(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)


def race_of(name: str) -> dynet.DyNetRace:
    """Every parameter is random, so that no initial zero or identity hides a mistake."""
    workload = find(name)
    corpus = workload.load(limit=4)
    model = workload.make(corpus, hidden=6)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4, generator=generator)
    return dynet.DyNetRace(dynet.load(), name, model, corpus.train)


@needs_dynet
@pytest.mark.parametrize("name", LOSSES)
def test_same_loss_and_gradients(name):
    race = race_of(name)
    for _ in range(2):  # what the first round left in DyNet must not be added to the second
        race.check()
    compared = sum(expected.numel() for _, expected in race.in_dynet.copies.gradients())
    ours = sum(parameter.numel() for parameter in race.model.parameters())
    second_biases = sum(p.numel() for key, p in race.model.named_parameters() if key.endswith("lstm.bias_hh"))
    assert compared == ours - second_biases  # torch's LSTMs have two biases that are added, DyNet's have the sum


@needs_dynet
def test_batched_by_dynet():
    assert dynet.load().__name__ == "dynet"
    assert sys.modules["dynet_config"].get()["autobatch"] == 1


@needs_dynet
def test_different_losses_are_not_timed():
    race = race_of("lattice-gru")
    with torch.no_grad():
        race.model.word.gru.bias_hh[-1] += 1
    with pytest.raises(BenchError, match=r"nothing was timed, because the loss of lattice-gru is .* and .* in DyNet"):
        race.check()


@needs_dynet
def test_different_gradients_are_not_timed(monkeypatch):
    race = race_of("mv-rnn")
    monkeypatch.setattr(race.in_dynet, "train", lambda: None)
    with pytest.raises(BenchError, match="nothing was timed, because gradients of mv-rnn differ"):
        race.check()


@needs_dynet
def test_complete():
    settings = dynet.Settings(("tree-gru", "mv-rnn"), 3, 8, rounds=2, threads=1)
    result = json.loads(json.dumps(dynet.run(settings)))
    assert [(name, found["hidden"]) for name, found in result["workloads"].items()] == [("tree-gru", 8), ("mv-rnn", 4)]
    for found in result["workloads"].values():
        for mode in dynet.MODES:
            spreads = [*found[mode]["ms"].values(), found[mode]["speedup"]]
            assert [spread["rounds"] for spread in spreads] == [2, 2, 2]
            assert all(0 < spread["lower"] <= spread["median"] <= spread["upper"] for spread in spreads)
    console = Console(width=200, file=io.StringIO())
    console.print(*dynet.tables(result))
    text = console.file.getvalue()
    assert all(word in text for word in ("tree-gru", "mv-rnn", "infer", "train", "DyNet uses one"))


@needs_dynet
def test_too_large_mini_batches_are_refused():
    with pytest.raises(BenchError, match=r"there are only 600 examples in .*; ask for a smaller batch"):
        dynet.run(dynet.Settings(("tree-lstm",), batch_size=601))


def test_what_is_refused():
    with pytest.raises(BenchError, match="9 rounds are too few for a median to trust; ask for 10 or more"):
        dynet.Settings(rounds=9).check()
    with pytest.raises(BenchError, match="attention-nmt is not written in DyNet; choose one of tree-lstm, "):
        dynet.Settings(("attention-nmt",)).check()
