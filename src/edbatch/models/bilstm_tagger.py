"""BiLSTM tagger: a sentence of any length comes in, the loss and the guess of the tag of every word go out.

Two layers of two chains each. `nn.LSTM` would run one sentence at a time; written as a loop over a cell, the steps of
all sentences run together, and the forward and the backward chain of a sentence need not wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss


class ChainStep(nn.Module):
    """One step of an LSTM. The parts of its input are concatenated inside the cell, which saves a call before it."""

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.lstm = nn.LSTMCell(inputs, dim)

    def forward(self, state: tuple[Tensor, Tensor], *parts: Tensor) -> tuple[Tensor, Tensor]:
        h, c = self.lstm(torch.cat(parts), state)
        return h, c


class Chain(nn.Module):
    """An LSTM from a learned initial state along a list of inputs."""

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.step = edbatch.cell(ChainStep(inputs, dim))
        self.h0, self.c0 = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))

    def forward(self, inputs: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
        state, hs = (self.h0, self.c0), []
        for parts in inputs:
            state = self.step(state, *parts)
            hs.append(state[0])
        return hs


class TagLoss(nn.Module):
    """The loss and the guess of a word's tag, from the states of both chains at the word."""

    def __init__(self, dim: int, tags: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * dim, dim, bias=False)
        self.loss = LabelLoss(dim, tags, bias=False)

    def forward(self, forward: Tensor, backward: Tensor, tag: Tensor) -> tuple[Tensor, Tensor]:
        loss, guess = self.loss(self.hidden(torch.cat((forward, backward))).tanh(), tag)
        return loss, guess


class BiLSTMTagger(nn.Module):
    """A sentence has `words` and `tags`, ints, one tag for each word."""

    def __init__(self, *, words: int, tags: int, dim: int) -> None:
        super().__init__()
        self.embedding = edbatch.cell(nn.Embedding(words, dim))
        self.forwards = nn.ModuleList([Chain(dim, dim), Chain(2 * dim, dim)])  # a chain for each layer
        self.backwards = nn.ModuleList([Chain(dim, dim), Chain(2 * dim, dim)])
        self.out = edbatch.cell(TagLoss(dim, tags))

    def forward(self, sentence: Any) -> tuple[Tensor, Tensor]:
        layer: list[tuple[Tensor, ...]] = [(self.vector(word),) for word in sentence.words]
        for forward, backward in zip(self.forwards, self.backwards, strict=True):
            layer = list(zip(forward(layer), reversed(backward(reversed(layer))), strict=True))
        outputs = [self.out(f, b, tag) for (f, b), tag in zip(layer, sentence.tags, strict=True)]
        return torch.stack([loss for loss, _ in outputs]).sum(), torch.stack([guess for _, guess in outputs])

    def vector(self, word: Any) -> Tensor:
        vector: Tensor = self.embedding(word)
        return vector
