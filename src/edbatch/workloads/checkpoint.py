"""Checkpoints: folders with `checkpoint.safetensors`, from which training goes on, and `policy.json`.

The tensors are `model.<name>`, the weights; `optimizer.<name>.<what>`; and `random`, the state of torch's generator.
Everything else is JSON in the file's metadata. All is in one file, written atomically, so that its parts always belong
to the same moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import safetensors
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from edbatch.datasets.corpora import Corpus
from edbatch.errors import EdbatchError
from edbatch.storage.atomic import write_atomically

FILE, POLICY = "checkpoint.safetensors", "policy.json"
FORMAT = "edbatch checkpoint"
VERSION = 1


class CheckpointError(EdbatchError, ValueError):
    """A checkpoint is missing, damaged, or belongs to another training."""


class CheckpointSettings(msgspec.Struct, frozen=True):
    """What is trained, and how."""

    workload: str
    hidden: int
    batch_size: int = 32
    seed: int = 0
    learning_rate: float = 1e-3
    limit: int | None = None  # train only on so many examples
    policy: str = "learned"  # its name, or the file from which it was loaded first
    epochs: int = 3


class Data(msgspec.Struct, frozen=True):
    """The training data: the sizes that a model for it has, how many examples there are, and, in words, from where."""

    sizes: dict[str, int]
    num_examples: int
    source: str


class Epoch(msgspec.Struct, frozen=True):
    """One pass over the training data: the mean loss per example, the seconds, and the share of right dev guesses."""

    loss: float
    seconds: float
    num_examples: int
    accuracy: float


class Progress(msgspec.Struct):
    """How far training is: the finished epochs, and for the next one the mini-batches done and the sums over them."""

    epochs: list[Epoch] = []
    step: int = 0
    loss_sum: float = 0.0
    num_examples: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training at one moment."""

    settings: CheckpointSettings
    data: Data
    progress: Progress
    tensors: dict[str, Tensor]

    def load_weights(self, model: nn.Module, corpus: Corpus) -> None:
        """Loads the weights into a model for this corpus; raises if the checkpoint is of other data."""
        if (self.data.sizes, self.data.num_examples) != (corpus.sizes, len(corpus.train)):
            raise CheckpointError(
                f"the checkpoint was trained on {self.data.num_examples:,} examples ({self.data.source}) with "
                f"{self.data.sizes}, and here are {len(corpus.train):,} ({corpus.source}) with {corpus.sizes}; give "
                "the same data by --data or EDBATCH_DATA"
            )
        model.load_state_dict(self.part("model"))

    def part(self, name: str) -> dict[str, Tensor]:
        prefix = f"{name}."
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}


class _CheckpointHeader(msgspec.Struct):
    format: str
    version: int


class _Record(_CheckpointHeader):
    settings: CheckpointSettings
    data: Data
    progress: Progress


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the checkpoint, in place of an earlier one. If anything fails, the earlier one stays."""
    record = _Record(FORMAT, VERSION, checkpoint.settings, checkpoint.data, checkpoint.progress)
    # Weights may share memory with each other, which the format does not allow: each is copied.
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    write_atomically(folder / FILE, to_bytes(tensors, {"edbatch": msgspec.json.encode(record).decode()}))


def load(folder: Path) -> Checkpoint:
    """Read the checkpoint in a folder.

    Raises:
        CheckpointError: there is none, or it is damaged, or of a newer version.
    """
    path = folder / FILE
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint in {folder}: {path} does not exist")
    try:
        with safetensors.safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get("edbatch", "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = msgspec.json.decode(text, type=_CheckpointHeader)
        if header.format != FORMAT or header.version > VERSION:
            raise CheckpointError(
                f"{path} is {header.format!r} of version {header.version}, and this edbatch reads {FORMAT!r} up to "
                f"version {VERSION}; upgrade edbatch"
            )
        record = msgspec.json.decode(text, type=_Record)
    except (safetensors.SafetensorError, msgspec.DecodeError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or no checkpoint of edbatch ({error}); train again") from error
    return Checkpoint(record.settings, record.data, record.progress, tensors)


def exists(folder: Path) -> bool:
    return (folder / FILE).is_file()
