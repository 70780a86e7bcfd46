"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class Mode(StrEnum):
    infer = "infer"
    train = "train"


class ModesOption(StrEnum):
    infer = "infer"
    train = "train"
    both = "both"


def number(help: str, least: float = 1, **more: Any) -> Any:
    """An option whose value is a number, at least `least`."""
    return typer.Option(min=least, metavar="X", help=help, **more)


Hidden = Annotated[int, number("Hidden size of the model.")]
HiddenOfWorkloads = Annotated[int, number("Hidden size; MV-RNN has half of it.", least=2)]
Trees = Annotated[int, number("Trees in a mini-batch.")]
BatchSize = Annotated[int, number("Examples in a mini-batch.")]
Rounds = Annotated[int, number("Rounds in which every contender runs once; at least 30.")]
Threads = Annotated[int | None, number("Threads of torch. Default: torch's own choice.")]
Workload = Annotated[str, typer.Argument(metavar="WORKLOAD", help="One that `edbatch workloads` lists.")]
Workloads = Annotated[list[str] | None, typer.Option(help="A workload; may be repeated. Default: all.")]
PolicyName = Annotated[
    str | None,
    typer.Option(
        help="learned, bound-greedy, agenda, depth, …, or the file of a saved policy.", show_default="learned"
    ),
]
Seed = Annotated[int | None, number("Seed of weights, order and generated data.", least=0, show_default="0")]
Folder = Annotated[Path | None, typer.Option(help="Folder of real data. Default: EDBATCH_DATA, or generated data.")]
TreeFolder = Annotated[
    Path | None, typer.Option(help="Folder of trees/train.txt. Default: EDBATCH_DATA, or shipped trees.")
]
Json = Annotated[Path | None, typer.Option(help="Also write all numbers to this file.")]
Markdown = Annotated[Path | None, typer.Option(help="Also write the tables to this file, as Markdown.")]
