"""`edbatch cells` with tiny settings: all seven cells, complete numbers, and no wrong cell is timed."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from edbatch.bench.kernels import cells
from edbatch.bench.kernels.cells_of_paper import CELLS
from edbatch.bench.measure import BenchError
from edbatch.cli import app


def test_command(tmp_path):
    file = tmp_path / "cells.json"
    arguments = ["cells", "--hidden", "4", "--batch-sizes", "1,3", "--repeats", "2", "--json", str(file)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())["cells"]
    assert list(found) == list(CELLS)
    for name, row in found.items():
        assert name in result.output
        assert row["hidden"] == (2 if name == "MV" else 4)
        for mode in cells.MODES:
            forms = row[mode]
            assert list(forms) == list(cells.FORMS)
            assert name == "MV" or forms["planned"]["launches"] < forms["one by one"]["launches"]
            assert forms["planned"]["bytes_copied"] <= forms["unplanned"]["bytes_copied"]
            for form in forms.values():
                assert form["copies"] <= form["launches"]
                assert {size: spread["rounds"] for size, spread in form["microseconds"].items()} == {"1": 2, "3": 2}
    assert "training, forward and backward" in result.output


@pytest.mark.parametrize("form", ["one by one", "unplanned", "planned"])
def test_wrong_cells_are_not_timed(form):
    module = CELLS["GRU"].make(4)
    cells.check("GRU", module, 4, form)
    with pytest.raises(BenchError, match="nothing was timed, because GRU on three rows differs from one by one"):
        cells.check("GRU", module, 4, form, CELLS["GRU"].make(4))


@pytest.mark.parametrize("name", CELLS)
def test_cells_take_what_they_say(name):
    module = CELLS[name].make(6)
    results = module(*[torch.randn(shape) for shape in CELLS[name].shapes(6)])
    assert all(r.isfinite().all() for r in (results if isinstance(results, tuple) else (results,)))
