"""The benchmark of policies with tiny settings: what it reports is complete and possible."""

from __future__ import annotations

import io
import json
import random

import pytest
from rich.console import Console
from typer.testing import CliRunner

from edbatch import cli
from edbatch.bench import measure, policies, total_time
from edbatch.bench.kernels import small_graphs
from edbatch.bench.measure import BenchError
from edbatch.bench.policies import HEURISTICS, LEARNERS, Settings
from edbatch.datasets import DatasetError
from edbatch.policies import Depth, Learned, QLearning
from edbatch.scheduling.learning import learn_policy

TINY = Settings(
    ("tree-gru", "tree-lstm", "tree-lstm-2type"), batch_size=2, unseen=2, seeds=(0, 1), small_graphs=5, rounds=2,
    learning_rounds=1, hidden=4,
)  # fmt: skip
COINS = [f"tree-lstm-2type, coin {seed}" for seed in (0, 1, 2)]


@pytest.fixture(autouse=True)
def generated_data(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("EDBATCH_DATA", raising=False)
        return json.loads(json.dumps(policies.run(TINY)))


def test_graphs_that_are_the_same_are_counted_once(result):
    assert list(result["batches"]) == ["tree-gru", *COINS]
    assert result["batches"]["tree-gru"]["same_graphs"] == ["tree-lstm", "mv-rnn"]
    assert result["data"] == "generated data"


def test_no_policy_is_below_the_bound(result):
    for case in result["batches"].values():
        rows = case["policies"]
        assert list(rows) == ["lower bound", *HEURISTICS, *LEARNERS]
        for row in rows.values():
            assert row["first"] >= rows["lower bound"]["first"]
            assert row["unseen"] >= rows["lower bound"]["unseen"]
        assert case["learned_to"].keys() == {"lower bound", "beam 64", "bound-greedy", "rule alone"}


def test_of_the_seeds_the_worst_is_reported(result):
    for case in result["batches"].values():
        for name in LEARNERS:
            row = case["policies"][name]
            assert [of_seed["seed"] for of_seed in row["seeds"]] == [0, 1]
            assert row["unseen"] == max(of_seed["unseen"] for of_seed in row["seeds"])
        rule = case["policies"]["rule alone"]
        assert (rule["states"], rule["unseen_state_rate"]) == (0, 1.0)
        assert rule["crowd"] in QLearning().crowds


def test_types_that_come_later_are_no_error():
    first, *others = policies.load_cases(Settings(("module-net",), batch_size=1, unseen=3), None)[0].graphs
    assert any(set(graph.type_names) - set(first.type_names) for graph in others)
    row = policies.count_batches(learn_policy([first]), [first, *others])
    assert row["unseen"] >= sum(graph.lower_bound() for graph in others)
    learned = Learned()
    assert policies.count_batches(learned, [first, *others])["lessons"] == len(learned.lessons) > 1


def test_times_are_of_every_round(result):
    assert list(result["scheduling"]) == ["tree-gru", "tree-lstm-2type"]
    for row in result["scheduling"].values():
        assert {name: ns["rounds"] for name, ns in row["ns_per_node"].items()} == dict.fromkeys(
            ("bound-greedy", "beam 4", "machine alone", "learned"), 2
        )
        assert {name: s["rounds"] for name, s in row["seconds"].items()} == {"learning": 1, "1,000 episodes": 1}
    model = result["tree_lstm"]
    assert model["microseconds_per_launch"]["median"] > 0
    assert model["call_ms"]["learned"]["median"] > model["schedule_and_run_ms"]["learned"]["lower"]
    for key in ("call_ms", "schedule_and_run_ms", "training_ms"):
        assert {name: ms["rounds"] for name, ms in model[key].items()} == {"bound-greedy": 2, "learned": 2, "ratio": 2}
    assert model["training_ms"]["learned"]["median"] > 0
    assert result["machine"]["torch_threads"] == 1


def test_estimates_add_scheduling_and_launches(result):
    launch = result["tree_lstm"]["microseconds_per_launch"]["median"]
    assert result["estimates"].keys() == result["batches"].keys()
    for name, row in result["estimates"].items():
        batches = result["batches"][name]["policies"]["learned"]["unseen"] / TINY.unseen
        assert row["ms"]["learned"] == pytest.approx(row["scheduling_ms"]["learned"] + batches * launch / 1e3)


def test_small_graphs(result):
    small = result["small_graphs"]
    assert small["families"] == list(small_graphs.FAMILIES)
    assert list(small["policies"]) == ["lower bound", *HEURISTICS, *LEARNERS]
    for name, row in small["policies"].items():
        assert row["mean_gap"] <= 0 if name == "lower bound" else row["mean_gap"] >= 0
        assert (row["optimal"] == 1) == (row["mean_gap"] == 0)
        assert list(row["mean_gap_by_family"]) == small["families"]


@pytest.mark.parametrize("family", small_graphs.FAMILIES)
def test_families_are_seeded(family):
    make = small_graphs.FAMILIES[family]
    first, second = (make(random.Random(3)) for _ in range(2))
    first.check()
    assert (first.types.tolist(), first.inputs.tolist()) == (second.types.tolist(), second.inputs.tolist())


def test_graphs_without_a_known_optimum_are_drawn_again(monkeypatch):
    exact, limits = small_graphs.Exact, iter([0, 100_000, 100_000])
    monkeypatch.setattr(small_graphs, "Exact", lambda: exact(max_states=next(limits)))
    result = small_graphs.run({"depth": Depth()}, {}, count=2, seed=0, advance=lambda: None)
    assert (result["count"], result["redrawn"]) == (2, 1)


def test_no_small_graphs():
    result = small_graphs.run({"depth": Depth()}, {}, count=0, seed=0, advance=lambda: None)
    assert result["policies"] == {}
    assert "0 small graphs" in printed([small_graphs.table(result)])


def printed(tables) -> str:
    console = Console(width=160, file=io.StringIO())
    console.print(*tables)
    return console.file.getvalue()


def test_tables(result):
    text = printed(policies.tables(result))
    for name in ("ratio-greedy-backward", "paper's, sort", "measured", "estimated", "TreeLSTM, inference",
                 "TreeLSTM, training", "ns per node", *COINS):  # fmt: skip
        assert name in text
    assert "tree-lstm, mv-rnn: the same graphs as tree-gru" in text


def test_nothing_is_timed_if_results_differ(monkeypatch):
    train = total_time._train

    def scaled(model, batched, trees):
        train(model, batched, trees)
        if batched.policy.name == "learned":
            model.out.linear.weight.grad.mul_(2)

    monkeypatch.setattr(total_time, "_train", scaled)
    with pytest.raises(BenchError, match="results of bound-greedy and learned differ"):
        total_time.time_model(batch_size=2, hidden=4, rounds=1, data=None, advance=lambda: None)


def test_refuses():
    with pytest.raises(BenchError, match="3 rounds are too few"):
        Settings(rounds=3).check()
    with pytest.raises(DatasetError, match="unknown workload 'nonsense'"):
        policies.run(Settings(("tree-lstm", "nonsense")))


def test_command_writes_json(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "MIN_ROUNDS", 2)
    path = tmp_path / "policies.json"
    options = ["--workload", "tree-lstm", "--batch-size", "2", "--hidden", "4", "--rounds", "2", "--small-graphs", "4"]
    done = CliRunner().invoke(cli.app, ["bench", "policies", *options, "--json", str(path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    written = json.loads(path.read_text())
    assert list(written["batches"]) == ["tree-lstm"]
    assert written["settings"]["unseen"] == 5
