"""Several processes train what one would, and launch by one policy."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch

from edbatch.workloads import checkpoint as checkpoints

OPTIONS = ["--limit", "24", "--batch-size", "8", "--hidden", "6", "--learning-rate", "0.01"]

PROGRAM = """
import torch.distributed as dist
from edbatch.workloads import find
from edbatch.workloads.checkpoint import CheckpointSettings
from edbatch.workloads.ranks import join, leave
from edbatch.workloads.training import Trainer

ranks = join()
corpus = find("tree-lstm-2type").corpus(None, 0, 24)
trainer = Trainer(CheckpointSettings("tree-lstm-2type", hidden=4, batch_size=12), corpus, ranks=ranks)
steps = list(trainer.epoch())
found = [None] * ranks.size
dist.all_gather_object(found, [trainer.batched.policy.machine.states(), trainer.batched.stats.num_nodes])
if ranks.is_first:
    print("policies", found[0][0] == found[1][0] and len(found[0][0]) > 0, "nodes", found[0][1], found[1][1])
leave(ranks, 0)
"""


LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TRAIN = ["-m", "edbatch", "train"]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")


def torchrun(*arguments: object) -> str:
    done = subprocess.run([*LAUNCHER, *map(str, arguments)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", ["tree-lstm", "module-net"])  # of 40 modules a mini-batch does not use all
def test_two_processes_train_what_one_does(tmp_path, workload):
    output = torchrun(*TRAIN, workload, *OPTIONS, "--epochs", 2, "--output", tmp_path / "two")
    assert "2 processes divide every mini-batch by its nodes" in output
    assert output.count("epoch 2: ") == 1  # one of them talks
    command = [sys.executable, *TRAIN, workload, *OPTIONS, "--epochs", "2", "--output", str(tmp_path / "one")]
    subprocess.run(command, check=True, capture_output=True)
    two, one = checkpoints.load(tmp_path / "two"), checkpoints.load(tmp_path / "one")
    for ours, theirs in zip(two.progress.epochs, one.progress.epochs, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
    for name, tensor in two.tensors.items():
        if name != "random":
            torch.testing.assert_close(tensor, one.tensors[name], rtol=1e-3, atol=1e-3)


@pytest.mark.timeout(600)
def test_all_have_the_policy_of_rank_0_and_equal_work(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    words = torchrun(tmp_path / "program.py").split()
    assert words[:2] == ["policies", "True"]
    most, least = sorted(map(int, words[3:]), reverse=True)
    assert least > 0.8 * most


@pytest.mark.timeout(600)
def test_ctrl_c_saves(tmp_path):
    command = [*LAUNCHER, *TRAIN, "tree-lstm", *OPTIONS, "--epochs", "100000", "--output", str(tmp_path / "trees")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while "epoch 1:" not in process.stdout.readline():
            assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=100)
    assert "Stopped and saved; go on by:" in output
    assert checkpoints.load(tmp_path / "trees").progress.epochs
