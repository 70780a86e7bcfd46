from __future__ import annotations

import numpy as np
import pytest

from edbatch.errors import GraphError, PolicyError
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.policies import BoundGreedy
from edbatch.scheduling.schedule import Schedule, schedule

GRAPH = Graph.from_lists(["leaf", "leaf", "node", "node"], [[], [], [0, 1], [2, 0]])


def arrays(**changed: object) -> Schedule:
    """The legal schedule of GRAPH, some arrays changed."""
    fields: dict[str, object] = {
        "order": np.array([0, 1, 2, 3]),
        "starts": np.array([0, 2, 3, 4]),
        "batch_types": np.array([0, 1, 1]),
        "type_names": ("leaf", "node"),
    }
    return Schedule(**(fields | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"order": np.array([0, 1, 2, 2])}, r"node 2 runs 2 times; every node must run exactly once"),
        ({"order": np.array([0, 1, 2]), "starts": np.array([0, 1, 2, 3])}, r"node 3 runs 0 times"),
        ({"order": np.array([0, 1, 2, 4])}, r"node 4 runs but the graph has nodes 0..3"),
        ({"order": np.array([0, 1, 2, -1])}, r"node -1 runs but the graph has nodes 0..3"),
        (
            {"order": np.array([0, 1, 3, 2])},
            r"node 3 runs in batch 1 but its input 2",
        ),
        (
            {"starts": np.array([0, 2, 4]), "batch_types": np.array([0, 1])},
            r"node 3 runs in batch 1 but its input 2 in batch 1; inputs must run earlier",
        ),
        (
            {"batch_types": np.array([0, 1, 0])},
            r"node 3 of type 'node' runs in batch 2 of type 'leaf'; a batch must hold",
        ),
        ({"batch_types": np.array([0, 1, 2])}, r"a batch has a type id outside 0..1"),
        (
            {"starts": np.array([0, 2, 4])},
            r"3 batches of 4 nodes have starts \[0, 2, 4\]; there must be 4, from 0 to 4",
        ),
        ({"starts": np.array([0, 2, 3, 3])}, r"there must be 4, from 0 to 4"),
        ({"starts": np.array([0, 2, 2, 4])}, r"batch 1 is empty; starts must rise"),
        ({"type_names": ("leaf", "out")}, r"other type_names than the graph; make it from this graph"),
    ],
)
def test_check_catches(changed: dict[str, object], message: str) -> None:
    arrays().check(GRAPH)
    with pytest.raises(GraphError, match=message):
        arrays(**changed).check(GRAPH)


def test_batches_carry_types_as_given() -> None:
    assert arrays().batches == (("leaf", [0, 1]), ("node", [2]), ("node", [3]))
    assert arrays().num_batches == 3


def test_prints_shortly() -> None:
    assert repr(arrays()) == str(arrays()) == "Schedule(3 batches of 4 nodes: leaf×2, node×1, node×1)"
    chain = schedule(Graph.from_lists("a" * 10, [[], *([i] for i in range(9))]), "depth")
    assert repr(chain) == f"Schedule(10 batches of 10 nodes: {', '.join(['a×1'] * 8)}, … 2 more)"
    assert repr(schedule(Graph.from_lists([], []), "depth")) == "Schedule(0 batches of 0 nodes)"


def test_schedule_takes_a_policy_or_its_name() -> None:
    assert schedule(GRAPH, "bound_greedy").batches == schedule(GRAPH, BoundGreedy()).batches == arrays().batches
    with pytest.raises(PolicyError, match="no policy is called 'fastest'"):
        schedule(GRAPH, "fastest")
