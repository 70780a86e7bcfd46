"""Rounds are interleaved and counted honestly; files are written whole or not at all."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from edbatch.bench import measure
from edbatch.bench.measure import BenchError, Rounds, Spread


def test_contenders_take_turns():
    order: list[str] = []
    contenders = {name: (lambda name=name: order.append(name)) for name in "abc"}
    advanced: list[int] = []
    rounds = measure.interleave(contenders, 3, advance=lambda: advanced.append(1))
    assert order == list("abc") + list("abc") + list("bca") + list("cab")  # the first time is for warming up
    assert [rounds.spread(name).rounds for name in "abc"] == [3, 3, 3]
    assert len(advanced) == 3


@pytest.mark.parametrize("share", [1, 4, 7, 10])
def test_slow_contenders_run_in_fewer_rounds_evenly_spread(share):
    calls: Counter[str] = Counter()
    contenders = {name: (lambda name=name: calls.update(name)) for name in "ab"}
    rounds = measure.interleave(contenders, 10, fewer={"a": share})
    assert calls == {"a": share + 1, "b": 11}
    assert rounds.spread("a").rounds == rounds.ratio("a", "b").rounds == share
    gaps = [after - before for before, after in zip(rounds.seconds["a"], list(rounds.seconds["a"])[1:], strict=False)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_after_runs_outside_the_first_call():
    seen: list[str] = []
    measure.interleave({"a": lambda: seen.append("run")}, 2, after={"a": lambda: seen.append("after")})
    assert seen == ["run", "run", "after", "run", "after"]


def test_fair_turns_are_warm_and_drawn_anew():
    seen: list[str] = []
    contenders = {name: (lambda name=name: seen.append(name)) for name in "abc"}
    rounds = measure.interleave(contenders, 20, fair=True, after={"a": lambda: seen.append("-")})
    turns = ["".join(seen).replace("-", "")[3:][6 * i : 6 * i + 6] for i in range(20)]
    assert all(sorted(turn[::2]) == list("abc") and turn[::2] == turn[1::2] for turn in turns)
    assert len({turn[::2] for turn in turns}) == 6
    assert "".join(seen).count("aa-") == 20
    assert [rounds.spread(name).rounds for name in "abc"] == [20, 20, 20]


def test_spread_and_ratio():
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 1)
    assert Spread.of([1.0, 2.0, 3.0]).scaled(10) == Spread(20.0, 15.0, 25.0, 3)
    rounds = Rounds({"a": {0: 2.0, 1: 8.0}, "b": {0: 1.0, 1: 2.0, 2: 9.0}})
    assert rounds.ratio("a", "b") == Spread(3.0, 2.5, 3.5, 2)


def test_threads_are_restored():
    before = torch.get_num_threads()
    with measure.num_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_machine_facts_are_for_json():
    facts = measure.machine_facts()
    assert {"cpu", "torch_threads", "torch", "numba", "python"} <= facts.keys()
    assert json.loads(json.dumps(facts)) == facts


def test_json_replaces_the_file_or_leaves_it(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    measure.write_json(path, {"a": 1})
    measure.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    with pytest.raises(TypeError):
        measure.write_json(path, {"a": object()})

    def fail(*_):
        raise OSError("disk on fire")

    monkeypatch.setattr(measure.os, "replace", fail)
    with pytest.raises(OSError, match="disk on fire"):
        measure.write_json(path, {"a": 3})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_what_cannot_be_measured_is_refused_beforehand(tmp_path):
    measure.check_output(None)
    measure.check_output(tmp_path / "new.json")
    for path in (tmp_path, tmp_path / "missing" / "new.json"):
        with pytest.raises(BenchError, match=r"cannot write .*: give a file name in an existing folder"):
            measure.check_output(path)
    measure.check_rounds(30)
    with pytest.raises(BenchError, match="29 rounds are too few for a median to trust; ask for 30 or more"):
        measure.check_rounds(29)
