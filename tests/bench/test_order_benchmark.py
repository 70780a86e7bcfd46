"""`edbatch bench order`: what it reports is complete, its bound is one, and wrong orders are never timed."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

import edbatch
from edbatch.bench import order
from edbatch.bench.measure import BenchError


@pytest.fixture(autouse=True)
def torch_ops_and_generated_data(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)
    monkeypatch.setattr(order, "FORMS", {"fused": False, "torch ops": False})  # compiling takes a minute


def test_order():
    settings = order.Settings(("lattice-lstm",), batch_size=4, hidden=8, rounds=3, threads=1)
    settings.check()
    result = json.loads(json.dumps(order.run(settings)))
    for row in result["workloads"].values():
        assert list(row["reads"]) == ["today's", "as scheduled", "PQ trees", "possible"]
        views = {name: reads["views"] for name, reads in row["reads"].items()}
        assert views["as scheduled"] < min(views["today's"], views["PQ trees"])
        assert views["possible"] == max(views.values())
        assert {reads["views"] + reads["gathers"] for reads in row["reads"].values()} == {
            views["today's"] + row["reads"]["today's"]["gathers"]
        }
        least = row["reads"]["possible"]["bytes_copied"]
        assert least == min(reads["bytes_copied"] for reads in row["reads"].values())
        assert row["planning_ms"]["PQ trees"]["median"] > row["planning_ms"]["today's"]["median"]
        for form in order.FORMS:
            for mode in ("infer", "train"):
                names = ["today's", "today's, again", "as scheduled", "PQ trees", "PQ trees, known"]
                assert list(row[form][mode]["ms"]) == names
                assert list(row[form][mode]["ratio_to_today"]) == names[1:]
                assert {spread["rounds"] for spread in row[form][mode]["ms"].values()} == {3}
    console = Console(width=170, file=io.StringIO())
    console.print(*order.tables(result))
    for text in ("possible", "MB gathered", "PQ trees, known", "torch ops, train"):
        assert text in console.file.getvalue()
    lines = [line for line in order.markdown(result).splitlines() if line]
    assert all(line.startswith("|") for line in lines)
    assert len(lines) == 2 + 4 + 2 + 2 * 2


def test_an_order_that_is_kept_is_not_looked_for_again(monkeypatch):
    found, order_by_pq_trees = [], order.order_by_pq_trees
    monkeypatch.setattr(order, "order_by_pq_trees", lambda *a: found.append(a) or order_by_pq_trees(*a))
    neither = np.zeros(2, np.bool_)
    facts = order.Facts(neither, neither, np.zeros(2, np.int64))
    graphs = [edbatch.Graph.from_lists("aabb", [[], [], *inputs]) for inputs in ([[0], [1]], [[1], [0]], [[0], [1]])]
    for keeps, runs in ((True, 2), (False, 3)):
        policy = order.InPqOrder(edbatch.policies.Depth(), facts, keeps)
        schedules = [edbatch.schedule(graph, policy) for graph in graphs]
        assert len(found) == runs
        orders = [s.order.tolist() for s in schedules]
        assert orders[0] == orders[2] != orders[1]
        found.clear()


def test_wrong_results_are_not_timed(monkeypatch):
    calls_of = order._calls_of

    def spoiled(*arguments):
        found = calls_of(*arguments)
        with torch.no_grad():
            found["PQ trees"].race.one_by_one.model.out.linear.bias[0] += 1
        return found

    monkeypatch.setattr(order, "_calls_of", spoiled)
    with pytest.raises(BenchError, match=r"nothing was timed, because .*: losses of tree-lstm, fused, PQ trees, known"):
        order.run(order.Settings(("tree-lstm",), batch_size=2, hidden=4, rounds=3))


def test_what_is_refused():
    with pytest.raises(BenchError, match="2 rounds are too few for a median to trust; ask for 3 or more"):
        order.Settings(rounds=2).check()
