"""Every Python block of the README runs as it stands; a test says what it needs around it and what comes out."""

import pathlib
import re

import pytest
import torch
from torch import nn

import edbatch
from edbatch.models import BinaryTreeLSTM

ROOT = pathlib.Path(__file__).parent.parent
DIM = 4
TREES = [(1, (2, 3)), ((4, 5), (6, 7)), 8]


def blocks():
    """The Python blocks by the headings that they stand under."""
    found = {}
    for section in re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.MULTILINE):
        for code in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
            found.setdefault(section.partition("\n")[0], []).append(code)
    return found


def run(heading, **scope):
    """What is defined after the block under a heading has run in a scope."""
    (code,) = blocks()[heading]
    exec(code, scope)
    return scope


@pytest.fixture
def first():
    return run("# edbatch")


def test_all_blocks_are_run_here():
    headings = ["# edbatch", "Cells", "Recorded once", "Fused kernels", "Policies", "Workloads to start from"]
    assert {heading: len(found) for heading, found in blocks().items()} == dict.fromkeys(headings, 1)


def test_first_example(capsys):
    scope = run("# edbatch")
    assert scope["roots"].shape == (3, 64)
    assert scope["batched"].leaf.weight.grad is not None
    assert "lower bound" in capsys.readouterr().out


def test_cells():
    model = nn.Module()
    scope = run("Cells", edbatch=edbatch, self=model, dim=DIM, BinaryTreeLSTM=BinaryTreeLSTM)
    assert type(model.node) is BinaryTreeLSTM
    batched = edbatch.batch(model.node)
    batched(*torch.randn(4, 3, DIM))
    assert (batched.stats.num_nodes, batched.stats.num_batches) == (3, 1)
    scope["score"](torch.ones(DIM), 1, mode="sum")


def test_recorded_once(first):
    class Tree(tuple):
        number = 7

    batched = run("Recorded once", edbatch=edbatch, model=first["batched"].fn)["batched"]
    trees = [Tree(TREES[0])]
    assert torch.equal(batched(trees), batched(trees))
    assert "1 of 1 examples were known" in batched.explain()


def test_plan_of_a_cell(first, capsys):
    run("Fused kernels", batched=first["batched"])
    assert "addmm" in capsys.readouterr().out


def test_policies(first, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = run("Policies", edbatch=edbatch, model=first["batched"].fn, examples=TREES)
    assert isinstance(scope["saved"], edbatch.policies.Fsm)
    (graph,) = scope["graphs"]
    assert edbatch.schedule(graph, scope["policy"]).num_batches >= graph.lower_bound() > 0


def test_workloads(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)
    scope = run("Workloads to start from")
    assert len(scope["losses"]) == len(scope["guesses"]) == 32
    assert scope["losses"].requires_grad
