"""Neural module network: every question brings its own program, which calls modules on the question's features.

The program is data, so running it is an ordinary recursion. Calls of different modules never run in one batch, and few
calls of a module are ready at a time, so the order of launches decides how many batches there are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.models.cells.label_loss import LabelLoss


class Module(nn.Module):
    """Combines its arguments into one vector."""

    def __init__(self, arity: int, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(arity * dim, dim)

    def forward(self, *arguments: Tensor) -> Tensor:
        return torch.tanh(self.linear(torch.cat(arguments)))


class ModuleNet(nn.Module):
    """A question has a `program`, `features` (a tuple of float vectors) and a `label`, an int.

    A program is a call, with `module` (an int) and `arguments` (programs), or a feature, with its `index`. Modules
    0, 2, … take one argument, 1, 3, … take two.
    """

    def __init__(self, *, modules: int, features: int, classes: int, dim: int) -> None:
        super().__init__()
        self.input = edbatch.cell(nn.Linear(features, dim))
        self.library = nn.ModuleList(edbatch.cell(Module(1 + m % 2, dim)) for m in range(modules))
        self.out = edbatch.cell(LabelLoss(dim, classes))

    def forward(self, question: Any) -> tuple[Tensor, Tensor]:
        answer = self.run(question.program, question.features)
        loss, guess = self.out(answer, question.label)
        return loss, guess

    def run(self, program: Any, features: tuple[Tensor, ...]) -> Tensor:
        """The result of the program on the features."""
        value: Tensor
        if hasattr(program, "arguments"):
            arguments = [self.run(argument, features) for argument in program.arguments]
            value = self.library[program.module](*arguments)
        else:
            value = self.input(features[program.index])
        return value
