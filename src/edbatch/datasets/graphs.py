"""Graphs of mini-batches straight from the data, without a model: a structure's name comes in, a `Graph` per mini-batch
goes out.

A structure is named like the workload whose model has it. Nodes are the calls of cells that the model would make,
outputs included. So policies can be compared and tested on real structures in milliseconds. The names of node types
mean the same in every graph of a structure; their ids are, as in every graph, in order of first appearance.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edbatch.datasets.files import DatasetError, data_folder
from edbatch.datasets.lattices import Lattice, load_lattices
from edbatch.datasets.programs import Call, Feature, random_programs
from edbatch.datasets.synthetic.random_lattices import random_lattices
from edbatch.datasets.synthetic.random_sentences import random_sentences
from edbatch.datasets.synthetic.random_trees import random_trees
from edbatch.datasets.tags import Sentence, load_tags
from edbatch.datasets.trees import Tree, load_trees
from edbatch.scheduling.graph import Graph


class Nodes:
    """The types and inputs of a graph, which grow node by node, and the random generator of its mini-batch."""

    def __init__(self, dice: random.Random) -> None:
        self.types: list[str] = []
        self.inputs: list[tuple[int, ...]] = []
        self.dice = dice

    def add(self, type_: str, *producers: int) -> int:
        self.types.append(type_)
        self.inputs.append(producers)
        return len(self.types) - 1


@dataclass(frozen=True)
class GraphFamily:
    """Where the examples of a model are from, and which nodes one example adds to the graph of its mini-batch.

    `examples(number, folder, seed)` gives the first examples of the real data in the folder or, if that is None,
    generated ones; `add(nodes, example)` adds an example's nodes.
    """

    name: str
    description: str
    examples: Callable[[int, Path | None, int], Sequence[Any]]
    add: Callable[[Nodes, Any], None]

    def graphs(self, count: int, batch_size: int, folder: Path | None, seed: int) -> list[Graph]:
        """The first `count` mini-batches in the order of the data."""
        examples = self.examples(count * batch_size, folder, seed)
        if len(examples) < count * batch_size:
            raise DatasetError(
                f"{count} mini-batches of {batch_size} need {count * batch_size} examples, and the data of "
                f"{self.name!r} in {folder} has {len(examples)}; ask for fewer"
            )
        graphs = []
        for number in range(count):
            nodes = Nodes(random.Random(seed * 1_000_003 + number))
            for example in examples[number * batch_size : (number + 1) * batch_size]:
                self.add(nodes, example)
            graphs.append(Graph.from_lists(nodes.types, nodes.inputs))
        return graphs


def mini_batch_graphs(
    workload: str, count: int, batch_size: int = 32, data: str | os.PathLike[str] | None = None, seed: int = 0
) -> list[Graph]:
    """The graphs of a workload's first mini-batches, from the start of its training data and in its order.

    >>> [graph.num_nodes for graph in mini_batch_graphs("module-net", count=2)]
    [814, 823]

    Args:
        workload: A name in `STRUCTURES`.
        count: How many mini-batches.
        batch_size: How many examples are in each.
        data: The folder of real data; by default the environment variable EDBATCH_DATA, and without that the data is
            generated.
        seed: Of generated data and of random types.

    Raises:
        DatasetError: The workload is not known, or the data is missing, malformed or too small.
    """
    if workload not in STRUCTURES:
        raise DatasetError(f"unknown workload {workload!r}; there are {', '.join(STRUCTURES)}")
    if count < 1 or batch_size < 1:
        raise DatasetError(f"count and batch_size must be at least 1, not {count} and {batch_size}")
    return STRUCTURES[workload].graphs(count, batch_size, data_folder(data), seed)


def _trees(number: int, folder: Path | None, seed: int) -> list[Tree]:
    if folder is None:
        return random_trees(number, seed, num_words=1000).trees
    return load_trees("train", folder=folder, limit=number).trees


def _sentences(number: int, folder: Path | None, seed: int) -> list[Sentence]:
    if folder is None:
        return random_sentences(number, seed).sentences
    return load_tags("dev", folder=folder, limit=number).sentences


def _lattices(number: int, folder: Path | None, seed: int) -> list[Lattice]:
    if folder is None:
        return random_lattices(number, seed).lattices
    return load_lattices("train", folder, limit=number).lattices


def _programs(number: int, folder: Path | None, seed: int) -> list[Call]:
    return random_programs(number, seed).programs  # there is no real data


def _add_tree(nodes: Nodes, tree: Tree, two_types: bool = False) -> None:
    """A leaf or internal node for each tree node, children first, and an output for each."""
    states: list[int] = []
    for node in tree.nodes():
        if node.is_leaf:
            state = nodes.add("leaf")
        else:
            right, left = states.pop(), states.pop()
            type_ = "node"
            if two_types:
                type_ = "node a" if nodes.dice.random() < 0.5 else "node b"
            state = nodes.add(type_, left, right)
        states.append(state)
        nodes.add("out", state)


def _add_sentence(nodes: Nodes, sentence: Sentence) -> None:
    """An embedding and an output for each word; between them two layers of a chain in each direction."""
    layer: Sequence[tuple[int, ...]] = [(nodes.add("embedding"),) for _ in sentence.words]
    for number in (1, 2):
        forward = _add_chain(nodes, f"forward {number}", layer)
        backward = _add_chain(nodes, f"backward {number}", layer[::-1])[::-1]
        layer = list(zip(forward, backward, strict=True))
    for states in layer:
        nodes.add("out", *states)


def _add_chain(nodes: Nodes, type_: str, layer: Sequence[tuple[int, ...]]) -> list[int]:
    states: list[int] = []
    for inputs in layer:
        states.append(nodes.add(type_, *states[-1:], *inputs))
    return states


def _add_lattice(nodes: Nodes, lattice: Lattice) -> None:
    """A char or word node for each arc and an output for each lattice node; arcs that meet are added by a sum node."""
    states: list[int] = []
    for i, arcs in enumerate(lattice.arcs):
        ends = [nodes.add("char" if source == i - 1 else "word", states[source]) for source, _ in arcs]
        if not ends:
            ends = [nodes.add("start")]
        states.append(ends[0] if len(ends) == 1 else nodes.add("sum", *ends))
    for state in states:
        nodes.add("out", state)


def _add_program(nodes: Nodes, program: Call) -> None:
    """A node for each feature and each call, and an output at the root."""

    def add(part: Call | Feature) -> int:  # programs are at most 24 calls deep, so recursion is safe
        if isinstance(part, Feature):
            return nodes.add("feature")
        return nodes.add(f"module {part.module}", *map(add, part.arguments))

    nodes.add("out", add(program))


STRUCTURES: dict[str, GraphFamily] = {
    workload.name: workload
    for workload in (
        GraphFamily("tree-lstm", "TreeLSTM on sentiment trees, an output at every tree node", _trees, _add_tree),
        GraphFamily("tree-gru", "TreeGRU on sentiment trees, an output at every tree node", _trees, _add_tree),
        GraphFamily("mv-rnn", "matrix-vector RNN on sentiment trees, an output at every tree node", _trees, _add_tree),
        GraphFamily(
            "tree-lstm-2type",
            "TreeLSTM on sentiment trees, each internal node one of two cells by a fair coin",
            _trees,
            partial(_add_tree, two_types=True),
        ),
        GraphFamily("bilstm-tagger", "two-layer bidirectional LSTM on tagged sentences", _sentences, _add_sentence),
        GraphFamily("lattice-lstm", "LSTM on word lattices", _lattices, _add_lattice),
        GraphFamily("lattice-gru", "GRU on word lattices", _lattices, _add_lattice),
        GraphFamily("module-net", "generated programs over 40 modules, an output at the root", _programs, _add_program),
    )
}
