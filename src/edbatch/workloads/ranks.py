"""Several processes (ranks) that train one model, as `torchrun` starts them: they exchange sums and decisions here.

With a single process nothing is sent. On the CPU the backend is gloo.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from edbatch.workloads.registry import WorkloadError


@dataclass(frozen=True)
class Ranks:
    """How many processes there are, and which of them this one is."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum_of(self, *numbers: float) -> list[float]:
        """The sums over all ranks."""
        if self.size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums)
        return sums.tolist()

    def any_of(self, flag: bool) -> bool:
        """Whether the flag is set on any rank, so that all decide alike."""
        return self.sum_of(float(flag))[0] > 0

    def wait(self) -> None:
        """Wait until all ranks have called this."""
        self.any_of(False)

    def from_first(self, value: Any) -> Any:
        """The value that rank 0 gives, on all ranks."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


def join() -> Ranks:
    """The ranks that torchrun started, or only this process."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        raise WorkloadError(
            f"WORLD_SIZE is {size}, but no RANK and MASTER_ADDR are set; start by torchrun, or unset it"
        )
    dist.init_process_group("gloo")
    return Ranks(dist.get_rank(), size)


def leave(ranks: Ranks, code: int) -> None:
    """Ends this process with an exit code, if it is one of several, without shutting the interpreter down.

    Gloo's threads outlive their process group, and one that needs the interpreter during its shutdown would abort the
    process.
    """
    if ranks.size == 1:
        return
    if code == 0:  # after a failure, other ranks may never come here
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
