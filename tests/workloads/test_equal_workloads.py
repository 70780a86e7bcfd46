"""Every workload is the same batched and one by one: values, gradients of all parameters, and losses while training."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

import edbatch
from edbatch.datasets import Dag
from edbatch.scheduling.policies import from_name
from edbatch.workloads import WORKLOADS

POLICIES = ["depth", "agenda", "agenda-remaining", "ratio-greedy", "ratio-greedy-backward", "bound-greedy", "learned"]
DIM, NUM_EXAMPLES, NUM_STEPS = 4, 4, 20
every_run = pytest.mark.parametrize(  # policies know nothing of how cells run: without kernels one is enough
    ("case", "policy"),
    [
        pytest.param((name, how), policy, id=f"{name}-{how}-{policy}")
        for name in WORKLOADS
        for how, policies in (("compiled", POLICIES), ("plain", ["learned"]))
        for policy in policies
    ],
    indirect=["case"],
)


@dataclass
class Case:
    """A model with a mini-batch, and what one by one makes of it."""

    batched: edbatch.Batched
    examples: list[Any]
    losses: torch.Tensor
    guesses: torch.Tensor
    gradients: list[torch.Tensor | None]


@pytest.fixture
def case(request) -> Case:
    return make_case(*request.param)


@cache
def make_case(name: str, how: str) -> Case:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        workload = WORKLOADS[name]
        corpus = workload.corpus(None, 0, NUM_EXAMPLES)
        examples = [shortened(example) for example in corpus.train]
        model = workload.make(corpus, hidden=DIM)
    finally:
        torch.set_default_dtype(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDBATCH_COMPILE", "1")
        batched = edbatch.batch(model, stack="cat", compile=how == "compiled")
    (losses, _), (guesses, lengths) = batched.one_by_one(examples)
    labels = [workload.labels(example) for example in examples]
    assert lengths.tolist() == list(map(len, labels))  # a guess for every label
    return Case(batched, examples, losses.detach(), guesses, gradients(losses, model))


def shortened(example: Any) -> Any:
    """The first states of a DAG: all of them one by one would take most of the time of these tests."""
    return Dag(example.tags[:40], example.arcs[:40]) if isinstance(example, Dag) else example


def gradients(losses: torch.Tensor, model: torch.nn.Module) -> list[torch.Tensor | None]:
    """None where no example uses a parameter, as happens with 40 modules."""
    weights = torch.linspace(0.5, 1.5, len(losses), dtype=losses.dtype)
    return list(torch.autograd.grad((losses * weights).sum(), list(model.parameters()), allow_unused=True))


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9 * float(theirs.abs().max()))


@every_run
def test_training(case, policy):
    case.batched.train().policy = from_name(policy)
    (losses, _), (guesses, _) = case.batched(case.examples)
    assert_equal(losses, case.losses)
    assert torch.equal(guesses, case.guesses)
    for ours, theirs in zip(gradients(losses, case.batched), case.gradients, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert_equal(ours, theirs)
    assert [t for t in case.batched.stats.types if t.reason] == []


@every_run
def test_inference(case, policy):
    case.batched.eval().policy = from_name(policy)
    with torch.inference_mode():
        (losses, _), (guesses, _) = case.batched(case.examples)
    assert_equal(losses, case.losses)
    assert torch.equal(guesses, case.guesses)
    assert not losses.requires_grad


@pytest.mark.parametrize("case", [(name, "compiled") for name in WORKLOADS], indirect=True, ids="-".join)
def test_losses_of_training_steps(case):
    """The same weights, optimizer and mini-batches: after 20 steps the losses are still the same."""
    case.batched.train().policy = from_name("learned")
    weights = copy.deepcopy(case.batched.state_dict())
    histories = []
    for run in (case.batched, case.batched.one_by_one):
        case.batched.load_state_dict(weights)
        optimizer = torch.optim.SGD(case.batched.parameters(), lr=0.05)
        history = []
        for step in range(NUM_STEPS):
            (losses, _), _ = run(case.examples[step % 2 :: 2])
            optimizer.zero_grad()
            losses.mean().backward()
            torch.nn.utils.clip_grad_norm_(case.batched.parameters(), 1.0)
            optimizer.step()
            history.append(losses.mean().detach())
        histories.append(torch.stack(history))
    case.batched.load_state_dict(weights)
    assert_equal(*histories)
    assert histories[0][-2:].mean() < histories[0][:2].mean()  # it learns
