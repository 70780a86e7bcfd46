"""The graphs of every workload are well formed, wired as its model is, and have the known sizes on the real data."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest

from edbatch.datasets import DatasetError
from edbatch.datasets.graphs import STRUCTURES, mini_batch_graphs
from edbatch.errors import EdbatchError
from edbatch.scheduling.graph import Graph

TREES, TAGS = "(3 (2 a) (3 (2 b) (4 c)))\n(1 d)\n", "a|O b|O c|O\nd|O\n"
LATTICES = "2\n3\n0 3 3\n0\n1 0 7\n2 1 8 0 9\n\n2\n0 3\n0\n1 0 7\n"


@pytest.fixture
def folder(tmp_path):
    for name, text in {"trees/train": TREES, "tags/dev": TAGS, "lattice/train": LATTICES}.items():
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir()
        path.write_text(text)
    return tmp_path


@pytest.fixture
def _no_data(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)


def nodes(graph: Graph) -> list[tuple]:
    """The type and the inputs of each node."""
    types = [graph.type_names[type_] for type_ in graph.types]
    return [
        (type_, *inputs.tolist())
        for type_, inputs in zip(types, np.split(graph.inputs, graph.offsets[1:-1]), strict=True)
    ]


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.usefixtures("_no_data")
def test_generated_graphs(name):
    workload = STRUCTURES[name]
    assert workload.name == name
    assert "\n" not in workload.description
    graphs = mini_batch_graphs(name, count=3, batch_size=8, seed=5)
    assert len(graphs) == 3
    for graph in graphs:
        graph.check()
        assert all(isinstance(type_, str) for type_ in graph.type_names)
        is_read = np.zeros(graph.num_nodes, bool)
        is_read[graph.inputs] = True
        is_out = np.array([graph.type_names[type_] == "out" for type_ in graph.types])
        assert (is_read ^ is_out).all()  # everything is used, and outputs are ends
    again = mini_batch_graphs(name, count=2, batch_size=8, seed=5)
    assert [nodes(graph) for graph in again] == [nodes(graph) for graph in graphs[:2]]
    assert nodes(mini_batch_graphs(name, count=1, batch_size=8, seed=6)[0]) != nodes(graphs[0])


@pytest.mark.parametrize("name", ["tree-lstm", "tree-gru", "mv-rnn"])
def test_trees(folder, name):
    first, second = mini_batch_graphs(name, count=2, batch_size=1, data=folder)
    assert nodes(first) == [
        ("leaf",), ("out", 0), ("leaf",), ("out", 2), ("leaf",), ("out", 4), ("node", 2, 4), ("out", 6), ("node", 0, 6),
        ("out", 8),
    ]  # fmt: skip
    assert nodes(second) == [("leaf",), ("out", 0)]


@pytest.mark.usefixtures("_no_data")
def test_trees_of_two_types():
    one, two = (mini_batch_graphs(name, count=1)[0] for name in ("tree-lstm", "tree-lstm-2type"))
    assert [(type_.split()[0], *inputs) for type_, *inputs in nodes(two)] == nodes(one)
    counts = Counter(type_ for type_, *_ in nodes(two))
    assert counts["node a"] / (counts["node a"] + counts["node b"]) == pytest.approx(0.5, abs=0.06)


def test_types_of_trees_depend_on_seed_and_mini_batch(folder):
    (folder / "trees" / "train.txt").write_text(20 * (9 * "(2 (2 a) " + "(2 b)" + 9 * ")" + "\n"))
    graphs = mini_batch_graphs("tree-lstm-2type", count=2, batch_size=10, data=folder)
    graphs += mini_batch_graphs("tree-lstm-2type", count=1, batch_size=10, data=folder, seed=1)
    assert len({str(nodes(graph)) for graph in graphs}) == 3


def test_sentences(folder):
    (graph,) = mini_batch_graphs("bilstm-tagger", count=1, batch_size=1, data=folder)
    assert nodes(graph) == [
        ("embedding",), ("embedding",), ("embedding",),
        ("forward 1", 0), ("forward 1", 3, 1), ("forward 1", 4, 2),
        ("backward 1", 2), ("backward 1", 6, 1), ("backward 1", 7, 0),
        ("forward 2", 3, 8), ("forward 2", 9, 4, 7), ("forward 2", 10, 5, 6),
        ("backward 2", 5, 6), ("backward 2", 12, 4, 7), ("backward 2", 13, 3, 8),
        ("out", 9, 14), ("out", 10, 13), ("out", 11, 12),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["lattice-lstm", "lattice-gru"])
def test_lattices(folder, name):
    (graph,) = mini_batch_graphs(name, count=1, batch_size=2, data=folder)
    assert nodes(graph) == [
        ("start",), ("char", 0), ("char", 1), ("word", 0), ("sum", 2, 3), ("out", 0), ("out", 1), ("out", 4),
        ("start",), ("char", 8), ("out", 8), ("out", 9),
    ]  # fmt: skip


def test_programs_have_one_arity_per_module(folder):
    arity_of = {"out": {1}, "feature": {0}}
    for graph in mini_batch_graphs("module-net", count=2, data=folder):  # generated even where there is real data
        for type_, *inputs in nodes(graph):
            arity_of.setdefault(type_, set()).add(len(inputs))
        assert sum(type_ == "out" for type_, *_ in nodes(graph)) == 32
    assert len(arity_of) == 42
    assert all(len(arities) == 1 for arities in arity_of.values())


def test_what_cannot_be_had_is_refused(folder):
    with pytest.raises(EdbatchError, match=r"unknown workload 'tree'; there are tree-lstm, tree-gru, .*, module-net"):
        mini_batch_graphs("tree", count=1)
    with pytest.raises(
        DatasetError, match=r"2 mini-batches of 2 need 4 examples, and the data of 'tree-lstm' .* has 2"
    ):
        mini_batch_graphs("tree-lstm", count=2, batch_size=2, data=folder)
    with pytest.raises(DatasetError, match="count and batch_size must be at least 1, not 1 and 0"):
        mini_batch_graphs("tree-lstm", count=1, batch_size=0)
    with pytest.raises(DatasetError, match=r"train\.txt is no file"):
        mini_batch_graphs("lattice-gru", count=1, data=folder / "missing")
    (folder / "trees" / "train.txt").write_text("(3 a)\n(3 b\n")
    with pytest.raises(DatasetError, match=r"train\.txt, line 2: expected '\)', found the end of the line"):
        mini_batch_graphs("tree-lstm", count=1, batch_size=2, data=folder)


@pytest.mark.skipif(not os.environ.get("EDBATCH_DATA"), reason="EDBATCH_DATA does not name the folder of real data")
@pytest.mark.parametrize(
    ("name", "num_nodes", "first_bound", "bound_of_the_others"),
    [
        ("tree-lstm", 2112, 19, 111),
        ("tree-gru", 2112, 19, 111),
        ("mv-rnn", 2112, 19, 111),
        ("bilstm-tagger", 4842, 222, 1378),
        ("lattice-lstm", 4670, 209, 859),
        ("lattice-gru", 4670, 209, 859),
    ],
)
def test_real_graphs(name, num_nodes, first_bound, bound_of_the_others):
    graphs = mini_batch_graphs(name, count=6)
    for graph in graphs:
        graph.check()
    assert graphs[0].num_nodes == num_nodes
    bounds = [graph.lower_bound() for graph in graphs]
    assert (bounds[0], sum(bounds[1:])) == (first_bound, bound_of_the_others)
