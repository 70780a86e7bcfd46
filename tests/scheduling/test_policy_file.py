from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from mutations import MUTATIONS

import edbatch
from edbatch.errors import PolicyError
from edbatch.scheduling.fsm import ENCODINGS, Fsm
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.learning import learn_policy
from edbatch.scheduling.learning_record import QLearning
from edbatch.scheduling.policy_file import load_policy
from strategies import words

GRAPH = Graph.from_lists(*words("abcabca", "bcacbab", "cabbcac", "ccabacb"))
OTHER = Graph.from_lists(*words("acbacb", "bacbac", "cbabca"))


def learn(encoding: str = "sort") -> Fsm:
    return learn_policy([GRAPH], held_out=[OTHER], encoding=encoding, settings=QLearning(episodes=100, stop=0.0))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_loaded_is_what_was_saved(encoding: str, tmp_path: Path) -> None:
    saved = learn(encoding)
    saved.save(tmp_path / "policy.json")
    loaded = load_policy(tmp_path / "policy.json")
    assert (loaded.types, loaded.encoding, loaded.training) == (saved.types, saved.encoding, saved.training)
    assert loaded.states() == saved.states()
    for graph in (GRAPH, OTHER):
        assert loaded.run(graph).batches == saved.run(graph).batches
        assert loaded.run(graph).unseen_states == saved.run(graph).unseen_states
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "policy.json").read_bytes()


def test_the_file_is_for_people(tmp_path: Path) -> None:
    learn().save(tmp_path / "policy.json")
    text = (tmp_path / "policy.json").read_text()
    assert all(len(line) < 400 for line in text.splitlines() if '"training"' not in line)
    content = json.loads(text)
    assert list(content) == ["format", "version", "encoding", "crowd", "types", "states", "training"]
    assert (content["format"], content["version"]) == ("edbatch policy", 1)
    assert content["types"] == ["a", "b", "c"]
    assert set(content["states"][0]) == {"state", "launch", "visits"}
    assert content["training"]["settings"]["learning_rate"] == 0.4


def test_types_may_be_numbers_but_nothing_json_does_not_know(tmp_path: Path) -> None:
    graph = Graph.from_lists([1, "1", 1], [[], [0], [1]])
    learn_policy([graph]).save(tmp_path / "policy.json")
    assert load_policy(tmp_path / "policy.json").run(graph).batches == ((1, [0]), ("1", [1]), (1, [2]))
    odd = learn_policy([Graph.from_lists([("a",), "b"], [[], [0]])])
    with pytest.raises(PolicyError, match=r"types that are strings or ints, and \('a',\) is neither"):
        odd.save(tmp_path / "odd.json")
    with pytest.raises(PolicyError, match=r"and True is neither"):
        learn_policy([Graph.from_lists([True, "b"], [[], [0]])]).save(tmp_path / "odd.json")
    with pytest.raises(PolicyError, match=r"a name that JSON does not know"):
        learn_policy([Graph.from_lists(["\ud800"], [[]])]).save(tmp_path / "odd.json")
    assert not (tmp_path / "odd.json").exists()


def edit(path: Path, change: dict[str, Any]) -> None:
    learn().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


STATE = {"state": [["a", ""]], "launch": "a", "visits": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, r"policy of version 2, and this edbatch reads versions up to 1; upgrade edbatch"),
        ({"format": "recipe"}, r"says that its format is 'recipe', not 'edbatch policy'"),
        ({"encoding": "best"}, r"is damaged: its encoding 'best' is none of base, max, sort, signs"),
        ({"types": ["a", "b", "c", "a"]}, r"a type is listed twice"),
        ({"types": ["a", "b"]}, r"state \d+ .*'c'"),
        ({"types": "abc"}, r"is damaged or no policy \(Expected `array`.*types"),
        ({"states": [{**STATE, "state": [["a", "great"]]}]}, r"state 0 has the type 'a' marked 'great'"),
        ({"states": [{**STATE, "launch": "z"}]}, r"state 0 launches 'z', which is not ready in it"),
        ({"states": [{**STATE, "launch": "b"}]}, r"state 0 launches 'b', which is not ready in it"),
        ({"states": [{**STATE, "visits": -1}]}, r"Expected `int` >= 0.*visits"),
        ({"states": [{**STATE, "visits": 2**63}]}, r"is damaged or no policy"),
        ({"crowd": -5.0}, r"Expected `float` >= 0"),
        ({"crowd": 1e300}, r"Expected `float` <= "),
        ({"version": 0}, r"Expected `int` >= 1"),
        ({"states": [STATE, STATE]}, r"state 1 is there twice"),
        ({"states": [{**STATE, "state": [["a", ""]] * 4}]}, r"state 0 has a type twice"),
        ({"states": [{"state": []}]}, r"missing required field `launch`"),
        ({"training": {"settings": {"steps": 0}}}, r"cannot learn with steps=0"),
        ({"extra": 1}, r"unknown field `extra`"),
    ],
)
def test_bad_files(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    edit(path, change)
    with pytest.raises(PolicyError, match=message) as caught:
        load_policy(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", "\x00\xff", '{"format": 3}'])
def test_files_that_are_no_policy(text: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(PolicyError, match=r"damaged or no policy .*; learn the policy again"):
        load_policy(path)


def test_a_file_cut_short_anywhere_is_found(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    learn().save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 97):
        path.write_bytes(whole[:length])
        with pytest.raises(PolicyError, match="damaged or no policy"):
            load_policy(path)


@pytest.mark.parametrize("text", [b'{"format": "\xc3(", "version": 1}', b"[" * 100_000, b'{"a":' * 100_000])
def test_files_that_no_reader_gets_through(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(text)
    with pytest.raises(PolicyError, match=rf"{path} is damaged or no policy .*; learn the policy again"):
        load_policy(path)


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("encoding", ["sort", "signs"])
def test_a_broken_file_is_a_policy_or_says_that_it_is_none(encoding: str, mutation: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    learn(encoding).save(path)
    whole, refused = path.read_bytes(), 0
    for seed in range(60):
        path.write_bytes(mutation(random.Random(seed), whole))
        try:
            policy = load_policy(path)
        except PolicyError as error:
            assert str(path) in str(error)  # noqa: PT017
            refused += 1
            continue
        try:
            policy.run(GRAPH).check(GRAPH)
        except PolicyError as error:
            assert "was learned for other types" in str(error)  # noqa: PT017
    assert refused > 20


def test_a_state_with_the_key_of_another_launches_nothing_that_is_not_ready() -> None:
    """As if two states had the same key: the machine launches b where only a is ready."""
    graph, nothing = Graph.from_lists("ab", [[], [0]]), np.zeros(1, np.int64)
    machine = Fsm(
        ("a", "b"), "base", np.array([0], np.int32), np.array([0, 1]), nothing + 1, nothing, 0.0, learn().training
    )
    assert machine.run(graph).batches == (("a", [0]), ("b", [1]))


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_policy(tmp_path / "nowhere.json")


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.json"
    learn("sort").save(path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(KeyboardInterrupt):
        learn().save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


OTHER_PROCESS = """
import sys, edbatch
from edbatch.scheduling.graph import Graph
types, inputs = {lists}
policy = edbatch.load_policy(sys.argv[1])
print(policy.run(Graph.from_lists(types, inputs)).batches)
policy = edbatch.learn_policy([Graph.from_lists(types, inputs)], encoding="sort", seed=5)
policy.save(sys.argv[2])
"""


def test_another_process_loads_and_learns_the_same(tmp_path: Path) -> None:
    lists = words("abcabca", "bcacbab", "cabbcac", "ccabacb")
    learn().save(tmp_path / "here.json")
    code = OTHER_PROCESS.format(lists=lists)
    arguments = [sys.executable, "-c", code, str(tmp_path / "here.json"), str(tmp_path / "there.json")]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(learn().run(GRAPH).batches)
    edbatch.learn_policy([GRAPH], encoding="sort", seed=5).save(tmp_path / "same.json")
    assert (tmp_path / "same.json").read_bytes() == (tmp_path / "there.json").read_bytes()


def test_saved_arrays_are_complete(tmp_path: Path) -> None:
    policy = learn()
    policy.save(tmp_path / "policy.json")
    loaded = load_policy(tmp_path / "policy.json")
    assert loaded.num_states == policy.num_states == len(loaded.starts) - 1
    np.testing.assert_array_equal(np.sort(loaded.visits), np.sort(policy.visits))
    assert msgspec.json.decode((tmp_path / "policy.json").read_bytes())["version"] == 1
