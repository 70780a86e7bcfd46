"""Trains a workload's model: settings and examples come in; the loss of each step, evaluations and checkpoints go out.

The part that a user would write is `Trainer._step`: a mini-batch, its losses, backward, an optimizer. The rest is there
so that training can go on from a checkpoint, with the same losses, and several processes (ranks) compute what one
would.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

import edbatch
from edbatch.datasets.corpora import Corpus
from edbatch.errors import EdbatchError
from edbatch.scheduling.schedule import Policy
from edbatch.workloads.checkpoint import Checkpoint, CheckpointSettings, Data, Epoch, Progress
from edbatch.workloads.ranks import Ranks
from edbatch.workloads.registry import Workload, WorkloadError, find
from edbatch.workloads.sampler import mini_batches, shares

MAX_NORM = 5.0  # gradients are clipped to this norm


class TrainingError(EdbatchError, ArithmeticError):
    """Training cannot go on."""


class TrainingStep(NamedTuple):
    """A training step: its number in the epoch, how many steps there are, and the mean loss per example."""

    number: int
    num_steps: int
    loss: float


class Score(NamedTuple):
    """How many guesses were right, of how many, and the mean loss per example."""

    right: int
    num_labels: int
    loss: float

    @property
    def accuracy(self) -> float:
        return self.right / self.num_labels


class Trainer:
    """A model in training: new, or from a checkpoint."""

    def __init__(
        self,
        settings: CheckpointSettings,
        corpus: Corpus,
        policy: str | Policy = "learned",
        ranks: Ranks | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.settings, self.corpus, self.ranks = settings, corpus, ranks or Ranks()
        self.workload: Workload = find(settings.workload)
        self.model = self.workload.make(corpus, settings.hidden, settings.seed)
        torch.manual_seed(settings.seed)
        self.batched = edbatch.batch(self.model, policy=policy, stack="cat")
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=settings.learning_rate, fused=True)
        self.progress = Progress()
        if checkpoint is not None:
            self._restore(checkpoint)
        self.num_steps = [self.workload.num_steps(example) for example in corpus.train]
        self._check_ranks()
        self.parallel: nn.Module = self.batched
        if self.ranks.size > 1:
            self.parallel = nn.parallel.DistributedDataParallel(self.batched)

    def epoch(self) -> Iterator[TrainingStep]:
        """Runs the rest of the present epoch, step by step; between two steps, a checkpoint may be saved."""
        number = len(self.progress.epochs)
        plan = mini_batches(len(self.corpus.train), self.settings.batch_size, self.settings.seed, number)
        if self.progress.step < len(plan):
            self._share_policy(plan[self.progress.step])
        for step in range(self.progress.step, len(plan)):
            begin = time.perf_counter()
            loss = self._step(plan[step])
            self.progress.step = step + 1
            self.progress.loss_sum += loss * len(plan[step])
            self.progress.num_examples += len(plan[step])
            self.progress.seconds += time.perf_counter() - begin
            yield TrainingStep(step + 1, len(plan), loss)

    def end_epoch(self) -> Epoch:
        """Evaluates the model and adds the epoch to the progress."""
        done = self.progress
        accuracy = self.evaluate(self.corpus.dev).accuracy
        epoch = Epoch(done.loss_sum / done.num_examples, done.seconds, done.num_examples, accuracy)
        self.progress = Progress([*done.epochs, epoch])
        return epoch

    def evaluate(self, examples: Sequence[Any]) -> Score:
        """The score of the present model, computed by all ranks together."""
        size = self.settings.batch_size
        right, num_labels, loss = 0.0, 0.0, 0.0
        self.batched.eval()
        for begin in range(0, len(examples), size)[self.ranks.rank :: self.ranks.size]:
            some = examples[begin : begin + size]
            with torch.no_grad():
                (losses, _), (guesses, _) = self.batched(some)
            labels = torch.tensor([label for example in some for label in self.workload.labels(example)])
            right += int((guesses.cpu() == labels).sum())
            num_labels += len(labels)
            loss += losses.sum().item()
        right, num_labels, loss = self.ranks.sum_of(right, num_labels, loss)
        return Score(int(right), int(num_labels), loss / len(examples))

    def checkpoint(self) -> Checkpoint:
        """The present state, for training to go on from."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{name}.{key}"] = value
        tensors["random"] = torch.get_rng_state()
        data = Data(self.corpus.sizes, len(self.corpus.train), self.corpus.source)
        return Checkpoint(self.settings, data, self.progress, tensors)

    def _step(self, indices: list[int]) -> float:
        """One step on a mini-batch, of which this rank runs its share; returns the mean loss per example."""
        mine = shares(indices, self.num_steps, self.ranks.size)[self.ranks.rank]
        self.parallel.train()
        (losses, _), _ = self.parallel([self.corpus.train[i] for i in mine])
        total = losses.sum()
        self.optimizer.zero_grad()
        (total * (self.ranks.size / len(indices))).backward()  # gradients are averaged over ranks
        for parameter in self.model.parameters():
            if parameter.grad is None:  # no example used it; zero, as DDP on several ranks gives
                parameter.grad = torch.zeros_like(parameter)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM).item()
        loss = self.ranks.sum_of(total.item())[0] / len(indices)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingError(
                f"after {self.progress.step} steps of epoch {len(self.progress.epochs) + 1} the loss is {loss} and the "
                f"norm of its gradient {norm}; the weights were left as they were. Try a lower --learning-rate"
            )
        self.optimizer.step()
        return loss

    def _share_policy(self, indices: list[int]) -> None:
        """Gives all ranks the policy of rank 0, which first learns it from this mini-batch."""
        if self.ranks.size == 1:
            return
        if self.ranks.is_first:
            graph = edbatch.record(self.batched, [self.corpus.train[i] for i in indices])
            edbatch.schedule(graph, self.batched.policy)
        self.batched.policy = self.ranks.from_first(self.batched.policy)

    def _restore(self, checkpoint: Checkpoint) -> None:
        checkpoint.load_weights(self.model, self.corpus)
        for name, parameter in self.model.named_parameters():
            state = checkpoint.part(f"optimizer.{name}")
            if state:
                self.optimizer.state[parameter] = state
        torch.set_rng_state(checkpoint.tensors["random"])
        self.progress = checkpoint.progress

    def _check_ranks(self) -> None:
        num_examples, size = len(self.corpus.train), min(self.settings.batch_size, len(self.corpus.train))
        smallest = num_examples // -(-num_examples // size)
        if smallest < self.ranks.size:
            raise WorkloadError(
                f"a mini-batch of {smallest} examples cannot be divided among {self.ranks.size} processes; raise "
                "--batch-size, or start fewer processes"
            )
