"""The protocol of kernels: whatever answers it runs, and the runtime asks nothing else."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pytest
import torch
from torch import nn

import edbatch
from edbatch import runtime
from edbatch.cells.compiled import CompiledCell
from edbatch.cells.kernel import Programs

ROWS = 5


class Noted:
    """A program of another one's, whose launches are written down."""

    def __init__(self, program, launches):
        self.program, self.launches = program, launches

    def bind(self, x):
        launch = self.program.bind(x)

        def noted(b):
            self.launches.append(type(self.program).__name__)
            launch(b)

        return noted


class OtherForm:
    """An emitter that the runtime has never heard of: torch ops, with launches written down."""

    is_pure = True

    def __init__(self, form, launches):
        self._form, self._launches = form, launches

    @cached_property
    def infer(self):
        return self._noted(self._form.infer)

    def training(self, *needs):
        return self._noted(self._form.training(*needs))

    def _noted(self, programs: Programs) -> Programs:
        backward = programs.backward and Noted(programs.backward, self._launches)
        return replace(programs, forward=Noted(programs.forward, self._launches), backward=backward)

    def prologue(self, shared, take=torch.empty):
        return self._form.prologue(shared, take)

    def prologue_of_inference(self, shared, memory):
        return self._form.prologue(shared, memory.take_one)

    def give_up(self):
        return None


@pytest.fixture
def launches(monkeypatch):
    """Cells run in the other form; what it launches."""
    found = []
    monkeypatch.setattr(CompiledCell, "form", lambda self, reads, compiling: OtherForm(self.torch_ops, found))
    return found


@pytest.mark.usefixtures("double")
def test_another_emitter_needs_no_word_of_the_runtime(launches):
    cell = nn.LSTMCell(3, 3)

    def chain(length, x, h, c):
        for _ in range(length):
            h, c = cell(x, (h, c))
        return h

    columns = torch.arange(1, ROWS + 1).tolist(), *(torch.randn(ROWS, 3) for _ in range(3))
    edbatch.check(edbatch.batch(chain), *columns)
    assert {"PlannedForward", "PlannedBackward"} <= set(launches)
    assert launches.count("PlannedBackward") >= ROWS


def test_a_form_that_cannot_be_made_gives_way(monkeypatch, caplog):
    made = []

    class Broken(OtherForm):
        @cached_property
        def infer(self):
            raise RuntimeError("no such device")

        def give_up(self):
            made.append("given up")
            return self._form

    monkeypatch.setattr(CompiledCell, "form", lambda self, reads, compiling: Broken(self.torch_ops, made))
    linear = nn.Linear(3, 2)
    x = torch.randn(ROWS, 3)
    with torch.no_grad():
        torch.testing.assert_close(edbatch.batch(linear)(x), linear(x))
    assert made == ["given up"]
    assert "no such device" in caplog.text


def test_the_runtime_probes_no_attributes():
    """What it may ask is in the protocol."""
    folder = Path(inspect.getfile(runtime)).parent
    probes = []
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
                probes.append((path.name, ast.unparse(node)))
    assert probes == []


def test_plain_programs_are_made_when_they_are_needed(compiled):
    batched = edbatch.batch(nn.Linear(3, 2))
    batched(torch.randn(ROWS, 3)).sum().backward()
    (cell,) = batched.pipeline.kernel_of.values()
    assert cell.fused
    assert cell.torch_ops.sources == []


def test_programs_that_may_fail_are_made_at_capture(compiled):
    """Nothing but vmap knows how to batch this op, so it is tried at once."""
    batched = edbatch.batch(edbatch.cell(lambda x: torch.linalg.inv(x + 2 * torch.eye(2))))
    batched(torch.rand(ROWS, 2, 2))
    (cell,) = batched.pipeline.kernel_of.values()
    assert any("vmap" in source for source in cell.torch_ops.sources)
