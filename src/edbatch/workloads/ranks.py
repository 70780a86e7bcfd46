"""Several processes that train one model: what `torchrun` started comes in, sums and decisions of all ranks go out.

With a single process nothing is sent. On CPU the backend is gloo.
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
        """Whether it is true on any rank, so that all do the same."""
        return self.sum_of(float(flag))[0] > 0

    def wait(self) -> None:
        """Until all ranks are here."""
        self.any_of(False)

    def from_first(self, value: Any) -> Any:
        """What rank 0 has."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


def join() -> Ranks:
    """The ranks that torchrun started, or this process alone."""
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
    """Ends a process of several with an exit code, without shutting the interpreter down.

    Gloo's threads outlive their group, and one that asks for the interpreter while that shuts down aborts the process.
    """
    if ranks.size == 1:
        return
    if code == 0:  # else the others may wait for this one elsewhere
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
