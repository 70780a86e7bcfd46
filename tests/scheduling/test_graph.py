from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import naive
import numpy as np
import pytest
from hypothesis import given

from edbatch.errors import GraphError
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.learning import learn_policy
from edbatch.scheduling.schedule import schedule
from strategies import Lists, graphs


def arrays(**changed: object) -> Graph:
    """A legal graph b <- a, a <- b; a, a as arrays, some of them changed."""
    fields: dict[str, object] = {
        "types": np.array([0, 0, 1]),
        "inputs": np.array([0, 1]),
        "offsets": np.array([0, 0, 0, 2]),
        "type_names": ("a", "b"),
    }
    return Graph(**(fields | changed))  # type: ignore[arg-type]


@given(graphs())
def test_from_lists_keeps_the_lists(lists: Lists) -> None:
    types, inputs = lists
    graph = Graph.from_lists(types, inputs)
    graph.check()
    assert [graph.type_names[t] for t in graph.types] == types
    assert [part.tolist() for part in np.split(graph.inputs, graph.offsets[1:-1])][: len(inputs)] == inputs
    assert graph.type_names == tuple(dict.fromkeys(types))
    assert (graph.num_nodes, graph.num_types) == (len(types), len(set(types)))


@given(graphs())
def test_depths_and_lower_bound_are_their_definitions(lists: Lists) -> None:
    graph = Graph.from_lists(*lists)
    assert graph.depths().tolist() == naive.depths(lists[1])
    assert graph.lower_bound() == naive.bound(*lists, done=())


@given(graphs())
def test_reversed_turns_every_edge(lists: Lists) -> None:
    graph = Graph.from_lists(*lists)
    back = graph.reversed()
    back.check()

    def edges(g: Graph) -> list[tuple[int, int]]:
        return sorted(
            zip(g.inputs.tolist(), np.repeat(np.arange(g.num_nodes), np.diff(g.offsets)).tolist(), strict=True)
        )

    last = graph.num_nodes - 1
    assert edges(back) == sorted((last - c, last - p) for p, c in edges(graph))
    assert back.types.tolist() == graph.types.tolist()[::-1]
    assert back.lower_bound() == graph.lower_bound()


def test_types_may_be_any_hashable_and_inputs_any_ints() -> None:
    graph = Graph.from_lists([("cell", 3), None, ("cell", 3)], ((), [np.int64(0)], np.array([1, 1])))
    assert graph.type_names == (("cell", 3), None)
    assert graph.inputs.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("types", "inputs", "message"),
    [
        ("ab", [[]], r"2 types has 1 lists of inputs; give one list of inputs per node"),
        ("ab", [[], [1]], r"node 1 of type 'b' has input 1; inputs must be earlier nodes, 0 or more and below 1"),
        ("ab", [[], [-1]], r"node 1 of type 'b' has input -1"),
        ("ab", [[], [0.5]], r"inputs hold values of float64; give the ids of earlier nodes"),
        ([[], "b"], [[], []], r"unhashable type: 'list'; the type of a node must be hashable"),
    ],
)
def test_from_lists_says_what_is_wrong(types: list[str], inputs: list[list[int]], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph.from_lists(types, inputs)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"offsets": np.array([0, 2])}, r"3 nodes has 2 offsets; give one more"),
        ({"offsets": np.array([1, 1, 1, 2])}, r"offsets run from 1 to 2 over 2 inputs; they must start at 0"),
        ({"offsets": np.array([0, 0, 0, 1])}, r"offsets run from 0 to 1 over 2 inputs"),
        ({"offsets": np.array([0, 1, 0, 2])}, r"never fall"),
        ({"types": np.array([0, 2, 1])}, r"node 1 has type id 2; ids must be at least 0 and below 2"),
        ({"types": np.array([-1, 0, 1])}, r"node 0 has type id -1"),
        ({"inputs": np.array([0, 2])}, r"node 2 of type 'b' has input 2"),
        ({"inputs": np.array([-1, 1])}, r"node 2 of type 'b' has input -1"),
    ],
)
def test_check_catches(changed: dict[str, object], message: str) -> None:
    arrays().check()
    with pytest.raises(GraphError, match=message):
        arrays(**changed).check()


@pytest.mark.parametrize("use", [lambda graph: schedule(graph, "bound-greedy"), lambda graph: learn_policy([graph])])
@pytest.mark.parametrize("inputs", [[0, 2**40], [-(2**40), 1]])
def test_arrays_that_are_no_graph_are_not_followed(use: Callable[[Graph], object], inputs: list[int]) -> None:
    with pytest.raises(GraphError, match=r"node 2 of type 'b' has input"):
        use(arrays(inputs=np.array(inputs)))


def test_offsets_that_fall_further_than_int64_reaches() -> None:
    with pytest.raises(GraphError, match=r"never fall"):
        arrays(offsets=np.array([0, 2**63 - 1, -2, 2])).check()


def test_prints_counts_per_type() -> None:
    assert repr(arrays()) == str(arrays()) == "Graph(3 nodes, 2 edges: a×2, b×1)"
    assert repr(Graph.from_lists([], [])) == "Graph(0 nodes, 0 edges)"
    many = Graph.from_lists(range(10), [[]] * 10)
    assert repr(many) == "Graph(10 nodes, 0 edges: 0×1, 1×1, 2×1, 3×1, 4×1, 5×1, 6×1, 7×1, … 2 more types)"


def test_numba_is_not_imported_before_it_is_used() -> None:
    code = "import sys, edbatch.scheduling.policies; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
