"""`edbatch workloads`: prints a table of the models that can be run and trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from edbatch.datasets.corpora import Corpus
from edbatch.datasets.files import DatasetError, data_folder
from edbatch.report.output import progress_bar
from edbatch.workloads.registry import GENERATED, WORKLOADS, Workload


def run(data: Path | None = None, console: Console | None = None) -> None:
    """Lists the workloads with their family, data and number of parameters."""
    console = console or Console()
    folder = data_folder(data)
    if folder and not folder.is_dir():
        raise DatasetError(f"{folder} is no folder; give (or set EDBATCH_DATA to) a folder of data")
    caption = f"real data from {folder}" if folder else "generated data; set EDBATCH_DATA to a folder of real data"
    heads = ("workload", "family", "data", "hidden", "parameters", "")
    table = Table(*heads, title="Workloads", caption=caption, box=SIMPLE, pad_edge=False)
    table.columns[0].no_wrap = True
    for number in (3, 4):
        table.columns[number].justify = "right"
    loaded: dict[Any, Corpus] = {}  # several workloads read the same data, and reading takes time
    with progress_bar("reading", len(WORKLOADS)) as update:
        for number, workload in enumerate(WORKLOADS.values()):
            update(number, workload.name)
            parameters = _num_parameters(workload, data, loaded)
            source = workload.data if folder else "generated"
            table.add_row(
                workload.name, workload.family, source, str(workload.hidden), parameters, workload.description
            )
    console.print(table)
    console.print("Run one: edbatch run WORKLOAD. Train one: edbatch train WORKLOAD.", highlight=False)


def _num_parameters(workload: Workload, data: Path | None, loaded: dict[Any, Corpus]) -> str:
    if workload.corpus not in loaded:
        limit = 1 if workload.data == GENERATED else None  # only real data decides on sizes of models
        try:
            loaded[workload.corpus] = workload.load(data, limit=limit)
        except DatasetError:
            return "no data"
    model = workload.make(loaded[workload.corpus])  # not on device "meta", for which torch imports its compiler
    return f"{sum(parameter.numel() for parameter in model.parameters()):,}"
