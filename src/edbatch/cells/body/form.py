"""What the two ways to compile a body have in common: as torch ops (`torch_ops`) and as fused kernels (`fused`).

In: a body, the ops of a cell. Out: `Programs` for inference and for every choice of wanted gradients, each made once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

from edbatch.cells.body.body import Body
from edbatch.cells.body.split import Split, inference, split
from edbatch.cells.kernel import Mask, Programs


class BodyForm(ABC):
    """A captured body, ready to be turned into code.

    Args:
        sparse: the shared inputs whose gradients are sparse.
        stack_weights: whether gradients of weights that share an operand become one product.
    """

    is_pure = True

    def __init__(self, body: Body, sparse: frozenset[int], *, stack_weights: bool = True):
        self.body, self.sparse, self.stack_weights = body, sparse, stack_weights
        self.trainings: dict[tuple[Mask, Mask, Mask], Programs] = {}

    @abstractmethod
    def _emit(self, split: Split) -> Programs:
        """The programs as code."""

    @cached_property
    def infer(self) -> Programs:
        return self._emit(inference(self.body))

    def training(self, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> Programs:
        key = (tuple(need_rows), tuple(need_shared), tuple(need_outs))
        if key not in self.trainings:
            self.trainings[key] = self._emit(split(self.body, *key, self.sparse, stack=self.stack_weights))
        return self.trainings[key]
