"""Cutting: while a cell is captured, some of its intermediate values are cut off from what follows.

A torch-function mode sees what every torch call gives back. A result that is to be cut is remembered, and the function
goes on with a new leaf in its place, as if it had been an argument: what follows then differentiates down to the leaf,
and what came before differentiates from the result, each by autograd itself. Ops are known by their number in the
trace, which is the same in every trace of a function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from edbatch.cells.capture.op_recorder import Recorder


class Cutting(TorchFunctionMode):
    """Notes the ops whose results Python sees (`seen`), and cuts at the ones with the given numbers.

    `leaf(tensor)` makes the leaf that stands for a result. `off` holds the results cut off, by op: (result, leaf).
    """

    def __init__(self, numbers: Collection[int], recorder: Recorder, leaf: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.numbers, self.recorder, self.leaf = numbers, recorder, leaf
        self._depth = 0  # of custom autograd functions
        self.seen: set[int] = set()
        self.off: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._results(func(*args, **(kwargs or {})))

    def applied(self, call: Callable[[], Any]) -> Any:
        """The result of a custom autograd function; what its forward calls is its own and stays uncut."""
        self._depth += 1
        try:
            result = call()
        finally:
            self._depth -= 1
        return self._results(result)

    def _results(self, result: Any) -> Any:
        if self._depth:
            return result
        if isinstance(result, torch.Tensor):
            return self._cut(result)
        if type(result) in (tuple, list):
            return type(result)(self._cut(r) if isinstance(r, torch.Tensor) else r for r in result)
        return result

    def _cut(self, tensor: torch.Tensor) -> torch.Tensor:
        number = self.recorder.op_number(tensor)
        if number is None:
            return tensor
        self.seen.add(number)
        if number not in self.numbers:
            return tensor
        if number not in self.off:
            self.off[number] = (tensor, self.leaf(tensor))
        return self.off[number][1]
