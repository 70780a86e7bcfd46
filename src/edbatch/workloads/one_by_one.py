"""What a workload's model is compared with: the same model in plain PyTorch, one example after the other."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class OneByOne:
    """A copy of the model, called on one example at a time.

    To be fair to it, embeddings have sparse gradients (a dense gradient of the whole table for every word would take
    most of the time), and the autograd graph of an example is freed before the next one runs.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)
        for module in self.model.modules():
            if isinstance(module, nn.Embedding):
                module.sparse = True

    def infer(self, examples: Sequence[Any]) -> list[Any]:
        """The loss and the guesses of each example."""
        with torch.inference_mode():
            return [self.model(example) for example in examples]

    def train(self, examples: Sequence[Any]) -> None:
        """Forward and backward of every example."""
        self.model.zero_grad(set_to_none=True)
        for example in examples:
            self.model(example)[0].backward()

    def seconds_per_example(self, examples: Sequence[Any]) -> float:
        """Seconds of training per example, without the optimizer."""
        self.train(examples[:1])
        begin = time.perf_counter()
        self.train(examples)
        return (time.perf_counter() - begin) / len(examples)
