"""Checkpoints: what is written is read back; whatever is wrong with a file is said."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from edbatch.workloads import checkpoint as checkpoints
from edbatch.workloads.checkpoint import FILE, Checkpoint, CheckpointError, CheckpointSettings, Data, Epoch, Progress


@pytest.fixture
def saved() -> Checkpoint:
    bias = torch.arange(3.0)
    tensors = {
        "model.linear.weight": torch.randn(3, 4)[:, 1:].t(),  # neither contiguous nor alone in its memory
        "model.linear.bias": bias,
        "model.tied.bias": bias,
        "optimizer.linear.bias.step": torch.tensor(7.0),
        "random": torch.get_rng_state(),
    }
    progress = Progress([Epoch(0.1, 2.5, 10, 0.75)], step=3, loss_sum=1 / 3, num_examples=12, seconds=0.5)
    return Checkpoint(CheckpointSettings("tree-lstm", 8, limit=20), Data({"words": 5}, 20, "trees"), progress, tensors)


def test_round_trip(saved, tmp_path):
    checkpoints.save(saved, tmp_path)
    found = checkpoints.load(tmp_path)
    assert (found.settings, found.data, found.progress) == (saved.settings, saved.data, saved.progress)
    assert found.tensors.keys() == saved.tensors.keys()
    assert all(torch.equal(found.tensors[name], saved.tensors[name]) for name in saved.tensors)
    assert found.part("model").keys() == {"linear.weight", "linear.bias", "tied.bias"}
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_file_cut_anywhere_is_damaged(saved, tmp_path):
    checkpoints.save(saved, tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        (tmp_path / FILE).write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"checkpoint.safetensors is damaged or no checkpoint of edbatch"):
            checkpoints.load(tmp_path)


def test_a_failed_save_leaves_the_one_before(saved, tmp_path, monkeypatch):
    checkpoints.save(saved, tmp_path)
    before = (tmp_path / FILE).read_bytes()
    monkeypatch.setattr("edbatch.storage.atomic.os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(saved, tmp_path)
    assert (tmp_path / FILE).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "is damaged or no checkpoint of edbatch"),
        ({"other": "1"}, "is damaged or no checkpoint of edbatch"),
        ({"edbatch": json.dumps({"format": "edbatch checkpoint", "version": 2})}, "of version 2, and this edbatch"),
        ({"edbatch": json.dumps({"format": "another", "version": 1})}, "is 'another' of version 1"),
        ({"edbatch": json.dumps({"format": "edbatch checkpoint", "version": 1})}, "is damaged.*settings"),
    ],
)
def test_other_files(tmp_path, metadata, message):
    save_file({"x": torch.zeros(1)}, tmp_path / FILE, metadata)
    with pytest.raises(CheckpointError, match=message):
        checkpoints.load(tmp_path)


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*checkpoint.safetensors does not exist"):
        checkpoints.load(tmp_path)
    assert not checkpoints.exists(tmp_path)
