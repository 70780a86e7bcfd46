"""The building blocks of the models, gate by gate from the weights, for one example."""

from __future__ import annotations

from typing import Any

import torch
from model_cases import CASE_OF
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


def model_of(name: str) -> Any:
    return CASE_OF[name].make()


def example_of(name: str) -> Any:
    """Of some examples the one with the most in it."""
    return max(CASE_OF[name].examples(8), key=lambda example: len(repr(example)))


def s(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def parts(linear: nn.Linear, number: int) -> list[tuple[Tensor, Tensor]]:
    """The weights and biases of the gates that a layer computes together."""
    size = linear.out_features // number
    return [(linear.weight[k * size : (k + 1) * size], linear.bias[k * size : (k + 1) * size]) for k in range(number)]


def lstm(cell: nn.LSTMCell, x: Tensor, state: State) -> State:
    (h, c), size = state, cell.hidden_size

    def gate(k: int) -> Tensor:
        rows = slice(k * size, (k + 1) * size)
        return cell.weight_ih[rows] @ x + cell.bias_ih[rows] + cell.weight_hh[rows] @ h + cell.bias_hh[rows]

    c = s(gate(1)) * c + s(gate(0)) * torch.tanh(gate(2))
    return s(gate(3)) * torch.tanh(c), c


def gru(cell: nn.GRUCell, x: Tensor, h: Tensor) -> Tensor:
    size = cell.hidden_size
    rows = [slice(k * size, (k + 1) * size) for k in range(3)]
    of_x = [cell.weight_ih[k] @ x + cell.bias_ih[k] for k in rows]
    of_h = [cell.weight_hh[k] @ h + cell.bias_hh[k] for k in rows]
    r, z = s(of_x[0] + of_h[0]), s(of_x[1] + of_h[1])
    return (1 - z) * torch.tanh(of_x[2] + r * of_h[2]) + z * h


def token_step(cell: Any, token: int, state: State) -> State:
    """Of a `TokenLSTM`."""
    return lstm(cell.lstm, cell.embedding.weight[token], state)


def label_loss(out: Any, h: Tensor, label: int) -> tuple[Tensor, int]:
    """Of a `LabelLoss`: minus the logarithm of the label's probability, and the label of the largest logit."""
    logits = out.linear.weight @ h
    if out.linear.bias is not None:
        logits = logits + out.linear.bias
    guess = max(range(len(logits)), key=logits.__getitem__)
    return -torch.log(torch.exp(logits[label]) / torch.exp(logits).sum()), guess


def assert_same(result: tuple[Tensor, Tensor], expected: list[tuple[Tensor, int]]) -> None:
    """Of a model with a guess for each of its losses."""
    loss, guesses = result
    torch.testing.assert_close(loss, sum(one for one, _ in expected), rtol=1e-12, atol=1e-12)
    assert loss.shape == ()
    assert guesses.dtype == torch.int64
    assert guesses.tolist() == [guess for _, guess in expected]


def assert_same_root(result: tuple[Tensor, Tensor], expected: list[tuple[Tensor, int]]) -> None:
    """Of a model with losses at every node and the guess of the last one."""
    loss, guess = result
    torch.testing.assert_close(loss, sum(one for one, _ in expected), rtol=1e-12, atol=1e-12)
    assert (loss.shape, guess.shape, guess.dtype) == ((), (), torch.int64)
    assert guess.item() == expected[-1][1]
