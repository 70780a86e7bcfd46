"""Checkpoints: a folder with `checkpoint.safetensors`, from which training goes on, and `policy.json`.

The tensors are `model.<name>`, the weights; `optimizer.<name>.<what>`; and `random`, the state of torch's generator.
What else there is to know is JSON in the file's metadata. One file, written atomically: it is never of two moments.
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
    """A checkpoint is missing, damaged, or of something else."""


class Settings(msgspec.Struct, frozen=True):
    """What is trained, and how."""

    workload: str
    hidden: int
    batch_size: int = 32
    seed: int = 0
    learning_rate: float = 1e-3
    limit: int | None = None  # train on so many examples only
    policy: str = "learned"  # its name, or the file that it began with
    epochs: int = 3


class Data(msgspec.Struct, frozen=True):
    """What it is trained on: the sizes of a model for it, how many examples there are, and from where, in words."""

    sizes: dict[str, int]
    num_examples: int
    source: str


class Epoch(msgspec.Struct, frozen=True):
    """One pass over the training data: the mean loss of an example, its seconds, and the share of right dev guesses."""

    loss: float
    seconds: float
    num_examples: int
    accuracy: float


class Progress(msgspec.Struct):
    """How far training is: the epochs that are done, and of the next one the mini-batches and the sums over them."""

    epochs: list[Epoch] = []
    step: int = 0
    loss_sum: float = 0.0
    num_examples: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """A moment of training."""

    settings: Settings
    data: Data
    progress: Progress
    tensors: dict[str, Tensor]

    def load_weights(self, model: nn.Module, corpus: Corpus) -> None:
        """Gives a model for these examples the weights of this moment."""
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


class _Header(msgspec.Struct):
    format: str
    version: int


class _Record(_Header):
    settings: Settings
    data: Data
    progress: Progress


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Write all of the checkpoint or, if anything fails, nothing; the one before stays until then."""
    record = _Record(FORMAT, VERSION, checkpoint.settings, checkpoint.data, checkpoint.progress)
    # Weights may be shared or parts of each other, which the format does not know: each is written by itself.
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
        header = msgspec.json.decode(text, type=_Header)
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
