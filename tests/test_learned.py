"""The learned policy of a batched model: when it learns, and what its file is good for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import edbatch
from edbatch.datasets import random_trees
from edbatch.errors import BatchError, PolicyError
from edbatch.models import TreeLSTM

BANK = random_trees(8, seed=0, num_words=100)


def make(dim: int = 4) -> edbatch.Batched:
    torch.manual_seed(0)
    return edbatch.batch(TreeLSTM(words=len(BANK.vocabulary), classes=5, dim=dim))


def test_learns_on_the_first_mini_batch_and_never_again() -> None:
    batched = make()
    assert isinstance(batched.policy, edbatch.policies.Learned)
    assert batched.policy.machine is None
    losses, _ = batched(BANK.trees)
    losses.sum().backward()
    machine = batched.policy.machine
    assert machine is not None
    assert batched.stats.num_batches == batched.stats.graph.lower_bound()
    batched.eval()
    with torch.no_grad():  # neither the mode nor the examples make other types
        batched(BANK.trees[::-1])
    assert batched.policy.machine is machine
    assert "by policy learned" in batched.explain()


def test_unseen_states_are_counted() -> None:
    batched = make()
    batched(BANK.trees)
    assert batched.stats.unseen_states == 0
    assert "unseen" not in batched.explain()
    graph = batched.stats.graph
    no_states = edbatch.learn_policy([graph], settings=edbatch.policies.QLearning(episodes=0, demonstrate=False))
    batched.policy = no_states
    batched(BANK.trees)
    assert batched.stats.unseen_states == batched.stats.num_batches
    assert f"{batched.stats.num_batches} of its states were new and left to its rule" in batched.explain()


def test_a_saved_policy_serves_another_model_of_the_same_types(tmp_path: Path) -> None:
    batched = make()
    batched(BANK.trees)
    batched.policy.save(tmp_path / "tree.policy.json")
    loaded = edbatch.load_policy(tmp_path / "tree.policy.json")
    other = edbatch.batch(TreeLSTM(words=len(BANK.vocabulary), classes=5, dim=4), policy=loaded)
    other(BANK.trees)
    assert other.stats.num_batches == batched.stats.num_batches
    assert other.stats.unseen_states == 0
    larger = edbatch.batch(TreeLSTM(words=len(BANK.vocabulary), classes=5, dim=6), policy=loaded)
    with pytest.raises(PolicyError, match=r"for other types: it does not know 'out\(f32\[6\], int\)'.* use policy="):
        larger(BANK.trees)
    anew = edbatch.batch(
        TreeLSTM(words=len(BANK.vocabulary), classes=5, dim=6), policy=edbatch.policies.Learned(loaded)
    )
    anew(BANK.trees)
    assert len(anew.policy.lessons) == 1


OTHER_PROCESS = """
import sys, edbatch
from edbatch.datasets import random_trees
from edbatch.models import TreeLSTM
bank = random_trees(8, seed=0, num_words=100)
batched = edbatch.batch(TreeLSTM(words=len(bank.vocabulary), classes=5, dim=4))
batched(bank.trees[::-1])[0].sum().backward()
batched.policy.save(sys.argv[1])
"""


def test_a_policy_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "tree.policy.json"
    subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(path)], check=True)
    batched = edbatch.batch(
        TreeLSTM(words=len(BANK.vocabulary), classes=5, dim=4).eval(), policy=edbatch.load_policy(path)
    )
    with torch.no_grad():
        batched(BANK.trees)
    assert batched.stats.num_batches == batched.stats.graph.lower_bound()
    assert batched.stats.unseen_states == 0


@pytest.mark.parametrize("wrong", [edbatch.policies.BoundGreedy, 3, None])
def test_what_is_no_policy_is_refused_at_once(wrong: object) -> None:
    with pytest.raises(BatchError, match=r"is no policy; give one like edbatch.policies.BoundGreedy\(\), or its name"):
        edbatch.batch(torch.nn.Linear(2, 2), policy=wrong)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match=r"no policy is called 'model.json'; .* by edbatch.load_policy\(path\)"):
        edbatch.batch(torch.nn.Linear(2, 2), policy="model.json")
