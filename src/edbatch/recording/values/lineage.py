"""More about recorded values than shape and dtype: whether they require gradients, and whether they share memory.

Found out when somebody asks, by a walk over the nodes (recorded calls) that were added since the last question. Most
types of nodes say nothing about it: these are passed by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from edbatch.layout.layout import REF, Slot
from edbatch.recording.types.type_set import NodeType
from edbatch.recording.values.lazy import Lazy
from edbatch.torch_insides.modes import DisableTorchFunction

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder

LISTS = (Slot.LIST, Slot.SUM)
Step = tuple[int, NodeType, list[list[int]]]  # a node, its type, and of each of its slots the values it reads


class Walk:
    """Goes over the nodes of a recording, each once, and stops at those of some types only."""

    def __init__(self, recorder: Recorder, stops_at: Callable[[NodeType], bool]):
        self._recorder = recorder
        self._stops_at = stops_at
        self._num_nodes = self._num_args = 0
        self._skipped: list[int] = []  # of each type how many args to pass by; -1 for one to be looked at

    def steps(self) -> list[Step]:
        """The nodes of such types that were added since the last time."""
        recorder, skipped = self._recorder, self._skipped
        for node_type in recorder.node_types[len(skipped) :]:
            has_list = any(slot in LISTS for slot in node_type.slots)
            is_passed = not has_list and not self._stops_at(node_type)
            skipped.append(len(node_type.slots) - node_type.slots.count(Slot.OFFSETS) if is_passed else -1)
        types = np.frombuffer(memoryview(recorder.types), np.int64)[self._num_nodes :].tolist()
        args = np.frombuffer(memoryview(recorder.args), np.int64)[self._num_args :].tolist()
        found: list[Step] = []
        at = 0
        for node, t in enumerate(types, self._num_nodes):
            if skipped[t] >= 0:
                at += skipped[t]
                continue
            operands, at = _operands(recorder.node_types[t], args, at)
            found.append((node, recorder.node_types[t], operands))
        self._num_nodes += len(types)
        self._num_args += at
        return found


def _operands(node_type: NodeType, args: list[int], at: int) -> tuple[list[list[int]], int]:
    """What each slot of a node reads, whose args begin here; and where they end."""
    operands: list[list[int]] = []
    for slot in node_type.slots:
        size = args[at] if slot in LISTS else slot is not Slot.OFFSETS
        at += slot in LISTS
        operands.append([] if slot is Slot.DATA else args[at : at + size])
        at += size
    return operands, at


def _may_share(node_type: NodeType) -> bool:
    return node_type.is_view or any(node_type.kernel.views)


def _may_require_grad(node_type: NodeType) -> bool:
    """Whether a result would require a gradient if all that is read did."""
    all_rows, all_shared = (True,) * len(node_type.slots), (True,) * len(node_type.shared)
    return any(node_type.kernel.differentiable(all_rows, all_shared))


class Lineage:
    """What is known of the values of one recording, by their references.

    shares: the values that would share memory with another value in torch.
    others_unknown: those of which it is not known which others these are.
    own_leaves: those made by examples that were told to require gradients, which nobody gets to see.
    """

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._of_memory, self._of_grad = Walk(recorder, _may_share), Walk(recorder, _may_require_grad)
        self._require_grad: set[int] = set()
        self.shares: set[int] = set()
        self.others_unknown: set[int] = set()
        self.own_leaves: set[int] = set()
        self._group_of: dict[int, set[int]] = {}  # of values that share memory, all that do

    def sharing(self, ref: int) -> set[int]:
        """All values that would share memory with this one, and itself."""
        self.look()
        return self._group_of.get(ref, {ref})

    def note_element(self, ref: int) -> None:
        """An element of rows was taken, which stands for a part of their memory and not for the stacked value."""
        self.shares.add(ref)
        self.others_unknown.add(ref)

    def note_leaf(self, ref: int) -> None:
        """A value without a gradient requires one from now on: what was computed from it before does not."""
        self.requires_grad(ref)
        self._require_grad.add(ref)
        self.own_leaves.add(ref)

    def is_own_leaf(self, value: Any) -> bool:
        return bool(self.own_leaves) and type(value) is Lazy and value.ref in self.own_leaves

    def _join(self, refs: list[int]) -> None:
        self.shares.update(refs)
        groups = {id(group): group for group in [self._group_of.get(ref, {ref}) for ref in refs]}
        largest = max(groups.values(), key=len)
        for group in groups.values():
            largest |= group
            self._group_of.update(dict.fromkeys(group, largest))

    def requires_grad(self, ref: int) -> bool:
        with DisableTorchFunction():
            for node, node_type, operands in self._of_grad.steps():
                need = tuple([any(map(self._requires_grad, refs)) for refs in operands])
                shared = tuple([tensor.requires_grad for tensor in node_type.shared])
                outputs = node_type.kernel.differentiable(need, shared)
                self._require_grad.update([node + k * REF for k, needed in enumerate(outputs) if needed])
        return self._requires_grad(ref)

    def _requires_grad(self, ref: int) -> bool:
        return ref in self._require_grad if ref >= 0 else self._recorder.tensor_of(ref).requires_grad

    def look(self) -> None:
        """Find which of the values share memory that were recorded since the last look."""
        for node, node_type, operands in self._of_memory.steps():
            kernel = node_type.kernel
            views = [{0} if operands[0] else {-1}] * len(kernel.outputs) if node_type.is_view else kernel.views
            for k, memory in enumerate(views):
                if memory:
                    self._join([node + k * REF, *[ref for i in memory if i >= 0 for ref in operands[i]]])
                    if -1 in memory:
                        self.others_unknown.add(node + k * REF)
