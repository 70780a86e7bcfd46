"""Cutting: while a cell is captured, chosen intermediate values are replaced by new inputs. This cuts the cell in two.

A torch-function mode sees the result of every torch call. A chosen result is remembered, and the function goes on with
a new autograd leaf in its place, as if that had been an argument. So autograd differentiates each part separately: the
later one ends at the leaf, the earlier one starts from the result. Ops are identified by their number in the trace,
which is the same whenever the function is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from edbatch.cells.capture.op_recorder import OpRecorder


class Cutting(TorchFunctionMode):
    """Collects the ops whose results Python code sees (`seen`), and cuts at those with the given numbers.

    `leaf(tensor)` makes the leaf that replaces a result. `off` holds for each op that was cut at (result, leaf).
    """

    def __init__(self, numbers: Collection[int], recorder: OpRecorder, leaf: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.numbers, self.recorder, self.leaf = numbers, recorder, leaf
        self._depth = 0  # how many custom autograd functions we are in
        self.seen: set[int] = set()
        self.off: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._results(func(*args, **(kwargs or {})))

    def applied(self, call: Callable[[], Any]) -> Any:
        """The result of a custom autograd function; there are no cuts inside its forward."""
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
