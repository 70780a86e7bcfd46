"""States that each read several earlier ones: the hardest graphs to batch, since hardly any structure recurs.

As in `lattice_lstm`, every arc is a step of one of two LSTMs. A state is the mean over its arcs, because a sum of four
would grow with every state. Like sums, `torch.stack(xs).mean(0)` of different numbers of arcs runs in one batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss
from edbatch.models.cells.token_lstm import TokenLSTM


class RandomDag(nn.Module):
    """A DAG has `tags`, an int for each state, and `arcs`: for each state triples of an earlier state, a kind and a
    token id. A state without arcs, such as the first one, is the learned initial state.
    """

    def __init__(self, *, tokens: int, tags: int, dim: int) -> None:
        super().__init__()
        self.h0, self.c0 = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))
        self.kinds = nn.ModuleList(edbatch.cell(TokenLSTM(tokens, dim)) for _ in range(2))
        self.out = edbatch.cell(LabelLoss(dim, tags))

    def forward(self, dag: Any) -> tuple[Tensor, Tensor]:
        states: list[tuple[Tensor, Tensor]] = []
        for arcs in dag.arcs:
            steps = [self.kinds[kind](token, states[source]) for source, kind, token in arcs]
            states.append(self.join(steps) if steps else (self.h0, self.c0))
        outputs = [self.out(h, tag) for (h, _), tag in zip(states, dag.tags, strict=True)]
        return torch.stack([loss for loss, _ in outputs]).sum(), torch.stack([guess for _, guess in outputs])

    def join(self, steps: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """A state from the states that its arcs give."""
        hs, cs = zip(*steps, strict=True)
        return torch.stack(hs).mean(0), torch.stack(cs).mean(0)
