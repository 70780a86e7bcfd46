"""Memory of a mini-batch: arenas leased from a pool, because fresh memory costs more than the copies into it."""

from __future__ import annotations

import bisect
import math
import threading

import torch

from edbatch.spec import Spec


def _round_up(size: int) -> int:
    """A size at most an eighth larger, so that mini-batches of similar size share buffers."""
    step = 1 << max(size.bit_length() - 4, 9)
    return -(-size // step) * step


class Pool:
    """Free buffers of bytes by device; safe to use from several threads."""

    def __init__(self) -> None:
        self._free: dict[torch.device, list[torch.Tensor]] = {}
        self._lock = threading.RLock()  # a collection of garbage inside may return buffers
        self._largest = 0  # bytes that one mini-batch has returned

    def take(self, size: int, device: torch.device) -> torch.Tensor:
        """A buffer of at least `size` bytes, and not more than twice as many."""
        size = _round_up(size)
        with self._lock:
            free = self._free.get(device, [])
            at = bisect.bisect_left(free, size, key=torch.Tensor.numel)
            if at < len(free) and free[at].numel() <= 2 * size:
                return free.pop(at)
        with torch.inference_mode(False):  # a tensor made in inference mode could not be written outside it
            return torch.empty(size, dtype=torch.uint8, device=device)

    def give(self, buffers: list[torch.Tensor]) -> None:
        """Take buffers back; at most twice what the largest mini-batch needed is kept, the larger buffers first."""
        with self._lock:
            self._largest = max(self._largest, sum(map(torch.Tensor.numel, buffers)))
            for buffer in buffers:
                bisect.insort(self._free.setdefault(buffer.device, []), buffer, key=torch.Tensor.numel)
            for free in list(self._free.values()):
                excess = sum(map(torch.Tensor.numel, free)) - 2 * self._largest
                while excess > 0:
                    excess -= free.pop(0).numel()

    def __reduce__(self) -> tuple[type[Pool], tuple[()]]:
        return Pool, ()


class Lease:
    """The buffers of one mini-batch.

    They return to the pool by `release`, or when nothing refers to the lease any more.
    """

    def __init__(self, pool: Pool):
        self.pool = pool
        self._buffers: list[torch.Tensor] = []
        # Under a dispatch mode (fake tensors) memory is not ours to keep.
        self._pooled = torch._C._len_torch_dispatch_stack() == 0
        self.num_bytes = 0

    def take(self, spec: Spec, rows: int) -> torch.Tensor:
        """An uninitialised tensor [rows, *spec.shape]."""
        count = rows * math.prod(spec.shape)
        size = count * spec.dtype.itemsize
        self.num_bytes += size
        if not self._pooled or size == 0:
            return spec.empty(rows)
        buffer = self.pool.take(size, spec.device)
        self._buffers.append(buffer)
        return buffer[:size].view(spec.dtype).view(rows, *spec.shape)

    def release(self) -> None:
        buffers, self._buffers = self._buffers, []
        self.pool.give(buffers)

    def __del__(self) -> None:
        self.release()
