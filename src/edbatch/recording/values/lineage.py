"""More about recorded values than shape and dtype: whether they require gradients, and whether they share memory.

Found out when somebody asks, by a walk over the nodes (recorded calls) that were added since the last question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edbatch.layout.layout import REF, Slot
from edbatch.torch_insides.modes import DisableTorchFunction

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder

LISTS = (Slot.LIST, Slot.SUM)


class Lineage:
    """What is known of the values of one recording, by their references.

    shares: the values that would share memory with another value in torch.
    others_unknown: those of which it is not known which others these are.
    """

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._num_nodes = self._num_args = 0
        self._require_grad: set[int] = set()
        self.shares: set[int] = set()
        self.others_unknown: set[int] = set()
        self._group_of: dict[int, set[int]] = {}  # of values that share memory, all that do

    def sharing(self, ref: int) -> set[int]:
        """All values that would share memory with this one, and itself."""
        self.look()
        return self._group_of.get(ref, {ref})

    def note_element(self, ref: int) -> None:
        """An element of rows was taken, which stands for a part of their memory and not for the stacked value."""
        self.shares.add(ref)
        self.others_unknown.add(ref)

    def _join(self, refs: list[int]) -> None:
        self.shares.update(refs)
        groups = {id(group): group for group in [self._group_of.get(ref, {ref}) for ref in refs]}
        largest = max(groups.values(), key=len)
        for group in groups.values():
            largest |= group
            self._group_of.update(dict.fromkeys(group, largest))

    def requires_grad(self, ref: int) -> bool:
        self.look()
        return self._requires_grad(ref)

    def _requires_grad(self, ref: int) -> bool:
        return ref in self._require_grad if ref >= 0 else self._recorder.tensor_of(ref).requires_grad

    def look(self) -> None:
        """Walk over what was recorded since the last look."""
        recorder = self._recorder
        types = np.frombuffer(memoryview(recorder.types), np.int64)[self._num_nodes :].tolist()
        args = np.frombuffer(memoryview(recorder.args), np.int64)[self._num_args :].tolist()
        at = 0
        with DisableTorchFunction():
            for node, t in enumerate(types, self._num_nodes):
                at = self._step(node, t, args, at)
        self._num_nodes += len(types)
        self._num_args += at

    def _step(self, node: int, t: int, args: list[int], at: int) -> int:
        node_type = self._recorder.node_types[t]
        operands: list[list[int]] = []
        for slot in node_type.slots:
            size = args[at] if slot in LISTS else slot is not Slot.OFFSETS
            at += slot in LISTS
            operands.append([] if slot is Slot.DATA else args[at : at + size])
            at += size
        need = tuple([any(map(self._requires_grad, refs)) for refs in operands])
        kernel, shared = node_type.kernel, tuple([tensor.requires_grad for tensor in node_type.shared])
        outputs = kernel.differentiable(need, shared)
        self._require_grad.update([node + k * REF for k, needed in enumerate(outputs) if needed])
        views = [{0} if operands[0] else {-1}] * len(kernel.outputs) if node_type.is_view else kernel.views
        for k, memory in enumerate(views):
            if memory:
                self._join([node + k * REF, *[ref for i in memory if i >= 0 for ref in operands[i]]])
                if -1 in memory:
                    self.others_unknown.add(node + k * REF)
        return at
