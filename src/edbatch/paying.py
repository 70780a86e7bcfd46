"""Whether batching pays: what a mini-batch costs beside its arithmetic, batched and one by one.

In: a plan that has run. Out: an `Estimate`, and with `Ways` the decision whether the next calls run one by one. Both
depend on structure and counts alone, never on a clock, so that equal inputs take equal ways. The costs are rounded
measurements; what decides is mostly a matter of several times, not of a few percent.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from edbatch.recording.types.type_set import NodeType
from edbatch.runtime.plan import Plan

BYTES_PER_US = 5_000  # at which rows are copied, and weights that have left the cache are read
CACHE = 1 << 20  # weights of more bytes leave it between two nodes
FIRST_REST = 32  # so many calls run one by one until one is batched again, to see whether that pays by now; then ...
LONGEST_REST = 4096  # ... twice as many, up to these
MAX_KINDS = 1000  # of calls that are remembered


class Costs(NamedTuple):
    """Microseconds of a call, of a type in it, of a node recorded in C or in Python, of a batch, of an op of torch."""

    call: float
    type: float
    node: float
    python: float
    batch: float
    op: float


INFERENCE = Costs(call=300, type=40, node=0.6, python=8, batch=6, op=2.5)
TRAINING = Costs(call=800, type=100, node=0.6, python=8, batch=15, op=8)


class Estimate(NamedTuple):
    """Microseconds beside the arithmetic.

    batch_size: nodes in a batch, on average. has_numbers: whether torch's modules are given numbers of examples, which
    reach them as tensors, one by one, too.
    """

    batched: float
    one_by_one: float
    batch_size: float
    has_numbers: bool

    @property
    def pays(self) -> bool:
        return self.batched <= self.one_by_one

    def __str__(self) -> str:
        return (
            f"batching costs about {self.batched / 1e3:.1f} ms a call, and what it saves costs about "
            f"{self.one_by_one / 1e3:.1f} ms one by one; there are {self.batch_size:.1f} nodes in a batch on average"
        )


def estimate(plan: Plan, *, trains: bool, has_numbers: bool) -> Estimate:
    """What calls like this one cost when all kernels are compiled."""
    costs, types = TRAINING if trains else INFERENCE, plan.recording.node_types
    nodes, batches = Counter(plan.graph.types.tolist()), Counter(plan.schedule.batch_types.tolist())
    recording = plan.recording
    in_c = recording.num_recorded - recording.num_in_python
    batched = costs.call + costs.type * len(types) + costs.node * in_c + costs.python * recording.num_in_python
    one_by_one = 0.0
    for t, node_type in enumerate(types):
        alone = costs.op * node_type.kernel.num_ops
        copied = nodes[t] * _row_bytes(node_type) / BYTES_PER_US
        one_by_one += nodes[t] * alone + (nodes[t] - batches[t]) * _weight_bytes(node_type) / BYTES_PER_US
        batched += copied + (nodes if node_type.kernel.reason is not None else batches)[t] * (costs.batch + alone / 3)
    return Estimate(batched, one_by_one, nodes.total() / max(1, batches.total()), has_numbers)


def _row_bytes(node_type: NodeType) -> int:
    """Of what a node reads and computes."""
    specs = *node_type.kernel.outputs, *(spec for spec in node_type.slot_specs if spec is not None)
    return sum(spec.dtype.itemsize * math.prod(spec.shape) for spec in specs)


def _weight_bytes(node_type: NodeType) -> int:
    """Of the weights that are read again for every node, if they do not stay in the cache."""
    size = sum(t.nbytes for t in node_type.shared) if node_type.kernel.num_ops > 1 else 0
    return size if size > CACHE else 0


@dataclass
class _CallsAlike:
    """Calls of one kind: with about as many examples, in the same modes."""

    num_batched: int = 0
    rest: int = FIRST_REST
    left: int = 0  # calls that still run one by one
    why: Estimate | None = None


@dataclass
class Ways:
    """Which calls of one batched function run one by one. Threads may share it."""

    _kinds: dict[Hashable, _CallsAlike] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def runs_alone(self, kind: Hashable) -> Estimate | None:
        """Why the call that begins now runs one by one; None if it is batched."""
        with self._lock:
            found = self._kinds.get(kind)
            if found is None or not found.left:
                return None
            found.left -= 1
            return found.why

    def is_asked(self, kind: Hashable) -> bool:
        """Whether the batched call of this kind that begins now is to be judged: the 1st, 2nd, 4th, 8th, ..."""
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
                del self._kinds[next(iter(self._kinds))]
            found = self._kinds.setdefault(kind, _CallsAlike())
            found.num_batched += 1
            return found.num_batched.bit_count() == 1

    def judge(self, kind: Hashable, found: Estimate) -> None:
        """Let the next calls run one by one, if batching did not pay."""
        with self._lock:
            known = self._kinds.get(kind)
            if known is None:
                return
            if found.pays:
                known.rest = FIRST_REST
                return
            known.why, known.left, known.num_batched = found, known.rest, 0
            known.rest = min(2 * known.rest, LONGEST_REST)
