"""Training: it goes on where it stopped with the very same losses, and refuses what does not fit."""

from __future__ import annotations

import signal

import pytest
import torch

from edbatch.workloads import WORKLOADS, WorkloadError, find
from edbatch.workloads import checkpoint as checkpoints
from edbatch.workloads.checkpoint import CheckpointError, CheckpointSettings
from edbatch.workloads.interrupts import Interrupts
from edbatch.workloads.one_by_one import OneByOne
from edbatch.workloads.ranks import Ranks
from edbatch.workloads.training import Trainer, TrainingError

SETTINGS = CheckpointSettings("tree-lstm", hidden=6, batch_size=8, learning_rate=0.01, limit=40)


@pytest.fixture(scope="module")
def corpus():
    return find("tree-lstm").corpus(None, 0, SETTINGS.limit)


def train(trainer: Trainer, num_steps: int) -> list[float]:
    """So many steps, across epochs."""
    losses: list[float] = []
    while True:
        for step in trainer.epoch():
            losses.append(step.loss)
            if len(losses) == num_steps:
                return losses
        trainer.end_epoch()


def test_resuming_gives_the_losses_of_not_stopping(corpus, tmp_path):
    whole = Trainer(SETTINGS, corpus)
    losses = train(whole, 13)
    first = Trainer(SETTINGS, corpus)
    assert train(first, 7) == losses[:7]  # in the middle of the second epoch
    checkpoints.save(first.checkpoint(), tmp_path)
    torch.manual_seed(12345)
    second = Trainer(SETTINGS, corpus, checkpoint=checkpoints.load(tmp_path))
    assert (len(second.progress.epochs), second.progress.step) == (1, 2)
    assert train(second, 6) == losses[7:]
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True))
    assert [e.loss for e in second.progress.epochs] == [e.loss for e in whole.progress.epochs]


def test_it_learns(corpus):
    trainer = Trainer(SETTINGS, corpus)
    before = trainer.evaluate(corpus.train)
    train(trainer, 25)
    after = trainer.evaluate(corpus.train)
    assert after.loss < 0.8 * before.loss
    assert after.num_labels == len(corpus.train)


def test_other_data_is_refused(corpus):
    checkpoint = Trainer(SETTINGS, corpus).checkpoint()
    other = find("tree-lstm").corpus(None, 0, 20)
    with pytest.raises(
        CheckpointError, match=r"was trained on 40 examples \(generated .* here are 20 .*; give the same data by --data"
    ):
        Trainer(SETTINGS, other, checkpoint=checkpoint)


def test_a_loss_that_is_no_number_stops_before_the_weights_are_lost(corpus):
    trainer = Trainer(SETTINGS, corpus)
    train(trainer, 2)
    with torch.no_grad():
        trainer.model.out.linear.bias[0] = float("inf")
    before = trainer.model.node.f1.weight.clone()
    with pytest.raises(
        TrainingError, match=r"after 2 steps of epoch 1 the loss is (inf|nan) .* a lower --learning-rate"
    ):
        train(trainer, 1)
    assert torch.equal(trainer.model.node.f1.weight, before)
    assert trainer.progress.step == 2


def test_too_many_processes_are_refused(corpus):
    with pytest.raises(WorkloadError, match="a mini-batch of 8 examples cannot be divided among 9 processes"):
        Trainer(SETTINGS, corpus, ranks=Ranks(0, 9))


def test_one_by_one_is_the_same_model(corpus):
    trainer = Trainer(SETTINGS, corpus)
    ours = trainer.batched(corpus.train)[0][0]
    plain = OneByOne(trainer.model)
    torch.testing.assert_close(torch.stack([loss for loss, _ in plain.infer(corpus.train)]), ours.detach())
    ours.sum().backward()
    plain.train(corpus.train)
    for a, b in zip(trainer.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad.to_dense(), rtol=1e-4, atol=1e-5)
    assert plain.seconds_per_example(corpus.train[:2]) > 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_runs_in_plain_pytorch(name):
    """No model needs edbatch to be called."""
    workload = WORKLOADS[name]
    corpus = workload.corpus(None, 0, 2)
    losses = [loss for loss, _ in OneByOne(workload.make(corpus, hidden=4)).infer(corpus.train)]
    assert torch.stack(losses).isfinite().all()


def test_unknown_workload():
    with pytest.raises(WorkloadError, match="no workload is called 'tree'; choose one of tree-lstm, "):
        find("tree")


def test_the_second_interrupt_does_not_wait():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interrupts() as interrupts:
            assert not interrupts.wanted
            signal.raise_signal(signal.SIGINT)
            assert interrupts.wanted
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):  # as before
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
