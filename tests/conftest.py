import os

import pytest
import torch
from hypothesis import settings

from edbatch import checking, pipeline
from edbatch.cells.torch_ops import cell as torch_cell
from edbatch.paying import Ways
from edbatch.runtime import compilation as stage
from stage_checks import checked_rewrite, checking_prepare

settings.register_profile("edbatch", deadline=None, derandomize=True)  # the first example may compile kernels
settings.load_profile("edbatch")
os.environ.setdefault("EDBATCH_COMPILE", "0")  # kernels are compiled where a test asks for it, not by all tests
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _checked():
    """Every value that a stage hands to the next one is checked, in all batched calls of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (checking, pipeline):
            patch.setattr(module, "rewrite", checked_rewrite)
        patch.setattr(pipeline.Pipeline, "prepare", checking_prepare(pipeline.Pipeline.prepare))
        patch.setattr(torch_cell, "STRICT", True)
        yield


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def double():
    """Tensors are float64 where a test does not say what they are."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def as_recorded(monkeypatch):
    """No cells are found: every op that is recorded stays a node."""
    monkeypatch.setattr(pipeline.Pipeline, "_find_cells", lambda *args: None)


class NoFallback:
    """Kernels that cannot be made are an error in tests, not a warning."""

    def warning(self, text, name, error, exc_info):
        raise AssertionError(text % (name, error)) from error


@pytest.fixture(params=["compiled", "plain"])
def compilation(request, monkeypatch):
    """Runs a test twice: with cells as fused kernels, and as torch ops."""
    monkeypatch.setenv("EDBATCH_COMPILE", "1" if request.param == "compiled" else "0")
    monkeypatch.setattr(stage, "log", NoFallback())
    return request.param


@pytest.fixture(autouse=True)
def always_batched(request, monkeypatch):
    """Mini-batches of tests are so small that batching would hardly ever pay; those with the fixture `judged` see."""
    if "judged" not in request.fixturenames:
        monkeypatch.setattr(Ways, "judge", lambda self, kind, found: None)


@pytest.fixture
def judged():
    """Calls for which batching does not pay run one by one."""


@pytest.fixture
def compiled(monkeypatch):
    """Cells run as fused kernels."""
    monkeypatch.setenv("EDBATCH_COMPILE", "1")
    monkeypatch.setattr(stage, "log", NoFallback())


@pytest.fixture
def small_blocks(monkeypatch, compiled):
    """Every product that may run as blocks of columns does, however small it is."""
    from edbatch.cells.fused import blocks

    monkeypatch.setattr(blocks, "SMALLEST_BLOCK", 1)
    monkeypatch.setattr(blocks, "SMALLEST_WEIGHT", 1)
