"""A step of an LSTM that reads a token: the embedding and the `nn.LSTMCell` as one cell.

For edbatch, `nn.Embedding` and `nn.LSTMCell` are each a cell. Marked together they are one call per token, not two.
"""

from __future__ import annotations

from torch import Tensor, nn


class TokenLSTM(nn.Module):
    """A token id and the state before it become the state after it."""

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, dim)
        self.lstm = nn.LSTMCell(dim, dim)

    def forward(self, token: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = self.lstm(self.embedding(token), state)
        return h, c
