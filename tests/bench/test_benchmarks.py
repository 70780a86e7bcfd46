"""Every benchmark with tiny settings: what it reports is complete, and wrong results are never timed."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

import edbatch
from edbatch.bench import recorded_ops, recording, scale, tree_lstm
from edbatch.bench.measure import BenchError
from edbatch.datasets import random_trees
from edbatch.models import TreeLSTM


@pytest.fixture(autouse=True)
def shipped_data(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)


def printed(tables) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(*tables)
    return console.file.getvalue()


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_tree_lstm(mode):
    settings = tree_lstm.Settings(4, 8, mode, "bound-greedy", rounds=4, one_by_one_rounds=2, threads=1)
    result = json.loads(json.dumps(tree_lstm.run(settings)))
    assert {name: ms["rounds"] for name, ms in result["ms"].items()} == {
        "one by one": 2, "hand-batched": 4, "edbatch": 4, "products alone": 4,
    }  # fmt: skip
    assert {"record", "schedule", "plan", "run"} <= result["stages_ms"].keys()
    assert ("backward" in result["stages_ms"]) == (mode == "train")
    assert result["ratio_to_hand_batched"]["edbatch"]["rounds"] == 4
    assert result["speedup_over_one_by_one"]["edbatch"]["rounds"] == 2
    assert result["machine"]["torch_threads"] == 1
    text = printed(tree_lstm.tables(result))
    assert "products alone" in text
    assert "shipped with edbatch" in text


def test_products_cover_every_tree_node():
    trees = random_trees(5, seed=0, num_words=100).trees
    sizes = tree_lstm.TreeLSTMRace(TreeLSTM(words=101, classes=5, dim=4), trees, "depth", "infer").batch_sizes()
    nodes = [node.is_leaf for tree in trees for node in tree.nodes()]
    assert {name: sum(batches) for name, batches in sizes.items()} == {
        "leaf": sum(nodes), "node": len(nodes) - sum(nodes), "out": len(nodes),
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_wrong_results_are_not_timed(mode):
    trees = random_trees(3, seed=0, num_words=100).trees
    race = tree_lstm.TreeLSTMRace(TreeLSTM(words=101, classes=5, dim=4), trees, "depth", mode)
    race.check()
    with torch.no_grad():
        race.hand_batched.model.out.linear.bias[0] += 1
    with pytest.raises(BenchError, match="nothing was timed, because results differ: losses of hand-batched"):
        race.check()


def test_tree_lstm_refuses(monkeypatch):
    with pytest.raises(BenchError, match="one by one can run in 1 to 30 of the rounds, not in 31"):
        tree_lstm.Settings(one_by_one_rounds=31).check()
    with pytest.raises(BenchError, match=r"there are only 600 trees in generated trees .*; ask for a smaller batch"):
        tree_lstm.run(tree_lstm.Settings(batch_size=601))


def test_recording():
    result = json.loads(json.dumps(recording.run(batch_size=2, rounds=2)))
    rows = result["microseconds_per_call"]
    assert list(rows) == ["TreeLSTM, marked cells", "nn.LSTMCell", "nn.Linear", *recorded_ops.STEPS]
    assert rows["nn.Linear"]["calls"] == 80
    assert {"recorded", "same Python, constants", "recording adds", "known keys"} < rows["nn.LSTMCell"].keys()
    assert "nn.LSTMCell" in printed(recording.tables(result))


def test_repeated_tree_graph_is_the_graph_of_repeated_trees():
    trees = random_trees(3, seed=0, num_words=100).trees
    once = scale.tree_graph(trees, 1)
    repeated, expected = scale.tree_graph(trees, 2 * once.num_nodes), scale.tree_graph(trees + trees, 1)
    repeated.check()
    for field in ("types", "inputs", "offsets"):
        np.testing.assert_array_equal(getattr(repeated, field), getattr(expected, field))
    assert edbatch.schedule(repeated, "depth").num_batches == edbatch.schedule(once, "depth").num_batches


def test_scale(monkeypatch):
    monkeypatch.setattr(scale, "_in_fresh_process", lambda code, environment=None: 0.5)
    result = json.loads(json.dumps(scale.run(num_nodes=100, num_steps=20, num_leaves=100, repeats=1)))
    assert set(result["schedule"]) == set(scale.POLICIES)
    assert result["import_seconds_beyond_torch"]["median"] == 0.5
    assert "a chain of 20 cells" in printed(scale.tables(result))
    assert "a PQ tree of 100 leaves" in printed(scale.tables(result))


def test_fresh_processes():
    assert scale._in_fresh_process("print('noise'); import os; print(os.environ['A'])", {"A": "1.5"}) == 1.5
    with pytest.raises(BenchError, match=r"a fresh process failed: .*nonsense"):
        scale._in_fresh_process("import nonsense")
