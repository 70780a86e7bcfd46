"""A picture of losses and accuracies during training: epochs come in, the bytes of SVG and PNG files go out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edbatch.report.pictures import rendered
from edbatch.workloads.checkpoint import Epoch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOSS, _ACCURACY = "#1f77b4", "#d95f02"


def draw_training(epochs: Sequence[Epoch], title: str) -> dict[str, bytes]:
    """`svg` and `png`: the loss of each epoch on the left axis, the dev accuracy after it on the right one."""
    return rendered(lambda: _curve(epochs, title))


def _curve(epochs: Sequence[Epoch], title: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(7, 4.4), layout="constrained")
    left = figure.add_subplot()
    right = left.twinx()
    numbers = range(1, len(epochs) + 1)
    left.plot(numbers, [epoch.loss for epoch in epochs], "o-", color=_LOSS)
    right.plot(numbers, [epoch.accuracy for epoch in epochs], "s-", color=_ACCURACY)
    left.set_ylim(bottom=0)
    right.set_ylim(0, 1)
    left.set_xlabel("epoch")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_ylabel("loss of a training example", color=_LOSS)
    right.set_ylabel("right guesses on dev", color=_ACCURACY)
    right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    left.set_title(title, fontsize=11, parse_math=False)
    return figure
