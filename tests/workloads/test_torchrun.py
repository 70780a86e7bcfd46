"""Several processes train what one would, and launch by one policy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from edbatch.workloads import checkpoint as checkpoints

OPTIONS = ["--limit", "24", "--batch-size", "8", "--hidden", "6", "--epochs", "2", "--learning-rate", "0.01"]

PROGRAM = """
import torch.distributed as dist
from edbatch.workloads import find
from edbatch.workloads.checkpoint import Settings
from edbatch.workloads.ranks import join, leave
from edbatch.workloads.training import Trainer

ranks = join()
corpus = find("tree-lstm-2type").corpus(None, 0, 24)
trainer = Trainer(Settings("tree-lstm-2type", hidden=4, batch_size=12), corpus, ranks=ranks)
steps = list(trainer.epoch())
found = [None] * ranks.size
dist.all_gather_object(found, [trainer.batched.policy.machine.states(), trainer.batched.stats.num_nodes])
if ranks.is_first:
    print("policies", found[0][0] == found[1][0] and len(found[0][0]) > 0, "nodes", found[0][1], found[1][1])
leave(ranks, 0)
"""


def torchrun(*arguments: object, folder: Path) -> str:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {k: v for k, v in os.environ.items() if k != "EDBATCH_DATA"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, *map(str, arguments)], capture_output=True, text=True, cwd=folder, env=environment, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_two_processes_train_what_one_does(tmp_path, monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)
    output = torchrun("-m", "edbatch", "train", "tree-lstm", *OPTIONS, "--output", tmp_path / "two", folder=tmp_path)
    assert "2 processes divide every mini-batch by its nodes" in output
    assert output.count("epoch 2: ") == 1  # one of them talks
    command = [sys.executable, "-m", "edbatch", "train", "tree-lstm", *OPTIONS, "--output", str(tmp_path / "one")]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    two, one = checkpoints.load(tmp_path / "two"), checkpoints.load(tmp_path / "one")
    for ours, theirs in zip(two.progress.epochs, one.progress.epochs, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
    for name, tensor in two.tensors.items():
        if name != "random":
            torch.testing.assert_close(tensor, one.tensors[name], rtol=1e-3, atol=1e-3)


@pytest.mark.timeout(600)
def test_all_have_the_policy_of_rank_0_and_equal_work(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    words = torchrun(tmp_path / "program.py", folder=tmp_path).split()
    assert words[:2] == ["policies", "True"]
    most, least = sorted(map(int, words[3:]), reverse=True)
    assert least > 0.8 * most
