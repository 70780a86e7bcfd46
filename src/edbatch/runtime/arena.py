"""Memory of a mini-batch, reused from call to call, because fresh memory costs more than the copies into it.

In: sizes and specs. Out: tensors and addresses. A mini-batch takes its memory (among others the arenas, each for all
values of one spec) by a `Lease` from a `Pool`, which gets it back at the end.
"""

from __future__ import annotations

import bisect
import math
import threading
from functools import lru_cache, partial
from typing import NamedTuple

import torch

from edbatch.spec import Spec
from edbatch.torch_insides.modes import InferenceMode, num_dispatch_modes
from edbatch.torch_state.surroundings import Made, inside

ALIGNMENT = 64  # bytes: where every tensor begins
CPU = torch.device("cpu")


def _round_up(size: int) -> int:
    """A size at most an eighth larger, so that mini-batches of similar size can reuse each other's buffers."""
    step = 1 << max(size.bit_length() - 4, 9)
    return -(-size // step) * step


class Pool:
    """Free buffers of bytes by device; safe to use from several threads."""

    def __init__(self) -> None:
        self._free: dict[torch.device, list[torch.Tensor]] = {}
        self._lock = threading.RLock()  # reentrant: garbage collection inside may return buffers
        self._largest = 0  # the most bytes that came back at once
        self.expected: dict[tuple[str, torch.device], int] = {}  # bytes that a purpose took in the last mini-batch

    def take(self, size: int, device: torch.device) -> torch.Tensor:
        """A buffer of at least `size` bytes, and not more than twice as many."""
        size = _round_up(size)
        found = inside((self._lock,), self._find, size, device)
        if found is not None:
            return found
        make = partial(torch.empty, dtype=torch.uint8, device=device)
        return inside((Made(InferenceMode, False),), make, size)  # else it would be an inference tensor

    def _find(self, size: int, device: torch.device) -> torch.Tensor | None:
        free = self._free.get(device, [])
        at = bisect.bisect_left(free, size, key=torch.Tensor.numel)
        return free.pop(at) if at < len(free) and free[at].numel() <= 2 * size else None

    def give(self, buffers: list[torch.Tensor]) -> None:
        """Take buffers back. At most twice what the largest mini-batch needed is kept; small ones are dropped first."""
        inside((self._lock,), self._take_back, buffers)

    def _take_back(self, buffers: list[torch.Tensor]) -> None:
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
    """The memory that one mini-batch takes for one purpose: tensors one after the other in few buffers of the pool.

    The buffers return to the pool by `release`, or when nothing refers to the lease any more.
    """

    def __init__(self, pool: Pool, purpose: str):
        self.pool, self._purpose = pool, purpose
        self._buffers: list[Buffer] = []
        self._open: dict[torch.device, Buffer] = {}
        # Memory that was made under a dispatch mode may be fake tensors and must not go into the pool.
        self._pooled = num_dispatch_modes() == 0
        self.num_bytes = 0

    def take(self, spec: Spec, rows: int) -> torch.Tensor:
        """An uninitialised tensor [rows, *spec.shape]."""
        return self.reserve(spec, rows).tensor()

    def reserve(self, spec: Spec, rows: int) -> Span:
        """Memory for that tensor, which is made only on demand: often the address is enough."""
        buffer, begin = self.cut(spec.device, rows * _strides(spec.shape)[0] * spec.dtype.itemsize)
        return Span(buffer, begin, spec, rows)

    def cut(self, device: torch.device, size: int) -> tuple[Buffer, int]:
        """So many bytes: the buffer they are in, and where they begin there."""
        self.num_bytes += size
        buffer = self._open.get(device)
        if buffer is None or buffer.room < size:
            buffer = self._add(device, size)
        return buffer, buffer.cut(size)

    def address(self, size: int) -> int:
        """The address of so many bytes on the CPU."""
        buffer, begin = self.cut(CPU, size)
        return buffer.address + begin

    def take_one(self, spec: Spec) -> torch.Tensor:
        """An uninitialised tensor of this spec."""
        if not spec.shape:
            return spec.empty()
        buffer, begin = self.cut(spec.device, math.prod(spec.shape) * spec.dtype.itemsize)
        return buffer.tensor(begin, spec.shape[0], spec.shape[1:], spec.dtype)

    def _add(self, device: torch.device, size: int) -> Buffer:
        """The next buffer. The first is as large as all that the last mini-batch took, so mostly it is the only one."""
        if self._pooled:
            expected = 0 if device in self._open else self.pool.expected.get((self._purpose, device), 0)
            buffer = Buffer(self.pool.take(max(size, expected), device))
            self._buffers.append(buffer)
            self.__class__ = _Holding
        else:
            buffer = Buffer(torch.empty(_round_up(size), dtype=torch.uint8, device=device))
        self._open[device] = buffer
        return buffer

    def release(self) -> None:
        self.__class__ = Lease
        buffers, self._buffers, self._open = self._buffers, [], {}
        if buffers:
            taken: dict[torch.device, int] = {}
            for buffer in buffers:
                taken[buffer.memory.device] = taken.get(buffer.memory.device, 0) + buffer.taken
            self.pool.expected.update({(self._purpose, device): size for device, size in taken.items()})
            self.pool.give([buffer.memory for buffer in buffers])


class _Holding(Lease):
    """A lease that holds buffers, and returns them when it is garbage. Other leases have no `__del__`, because a Ctrl-C
    in one is swallowed."""

    def __del__(self) -> None:
        self.release()


class Buffer:
    """Bytes that are handed out from their beginning on."""

    def __init__(self, memory: torch.Tensor):
        self.memory = memory
        self.taken, self.room = 0, memory.numel()
        self._as_dtype: dict[torch.dtype, torch.Tensor] = {}

    @property
    def address(self) -> int:
        return self.memory.data_ptr()

    def cut(self, size: int) -> int:
        """Where the next so many bytes begin."""
        begin, size = self.taken, -(-size // ALIGNMENT) * ALIGNMENT
        self.taken, self.room = begin + size, self.room - size
        return begin

    def of(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole buffer as elements of a dtype."""
        if dtype not in self._as_dtype:
            self._as_dtype[dtype] = self.memory.view(dtype)
        return self._as_dtype[dtype]

    def tensor(self, begin: int, rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor [rows, *shape] that begins at byte `begin`."""
        return self.of(dtype).as_strided((rows, *shape), _strides(shape), begin // dtype.itemsize)


class Span(NamedTuple):
    """A part of a buffer, from byte `begin` on, for a tensor [rows, *spec.shape]."""

    buffer: Buffer
    begin: int
    spec: Spec
    rows: int

    @property
    def address(self) -> int:
        return self.buffer.address + self.begin

    def tensor(self) -> torch.Tensor:
        return self.buffer.tensor(self.begin, self.rows, self.spec.shape, self.spec.dtype)


@lru_cache(1024)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of tensors [rows, *shape]; the first is the number of elements of a row."""
    strides = [1]
    for size in reversed(shape):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))
