"""The last cell of most models here: a state and its label come in, the loss and the guess go out.

It is called once per label, and calls that are ready run as one matrix product. The label is a plain int of the
example; inside the cell it is a 0-d tensor, batched or not.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class LabelLoss(nn.Module):
    """The cross entropy of one label, and the label that the model would have said."""

    def __init__(self, dim: int, classes: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, classes, bias)

    def forward(self, h: Tensor, label: Tensor | int) -> tuple[Tensor, Tensor]:
        logits = self.linear(h)
        if isinstance(label, int):  # without a mark
            return -F.log_softmax(logits, -1)[label], logits.argmax(-1)
        return F.cross_entropy(logits, label), logits.argmax(-1)
