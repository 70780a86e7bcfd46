"""For `edbatch bench recording`: a model that does one thing again and again to a lazy value.

It is also run with a trivial object in place of the value, and trivial functions in place of torch's. That is the time
of the same Python with nothing recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class UserModule(nn.Module):
    """A module of the user's, not marked, around one of torch's."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layer = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


class Repeated(nn.Module):
    """Takes the same step again and again, each time from the same value."""

    def __init__(self, step: Callable[[Any, Any], Any], dim: int, steps: int) -> None:
        super().__init__()
        self.step, self.steps = step, steps
        self.module = UserModule(dim)
        self.weight = nn.Parameter(torch.zeros(dim))
        self.names = SimpleNamespace(torch=torch, functional=functional, module=self.module, weight=self.weight)

    def forward(self, x: Any) -> Any:
        step, names, result = self.step, self.names, None
        for _ in range(self.steps):
            result = step(x, names)
        return result


class _Trivial:
    """Its operators and methods return it."""

    def __mul__(self, other: object) -> _Trivial:
        return self

    def __getitem__(self, key: object) -> _Trivial:
        return self

    def same(self, *args: object, **kwargs: object) -> _Trivial:
        return self

    tanh = sigmoid = relu = cat = stack = chunk = sum = softmax = __call__ = same


def bare_of(model: Repeated, count: int) -> Callable[[], object]:
    """The same Python without torch, for a number of examples."""
    trivial = _Trivial()
    names = SimpleNamespace(torch=trivial, functional=trivial, module=trivial, weight=trivial)
    like: Any = SimpleNamespace(step=model.step, steps=model.steps, names=names)
    return lambda: [Repeated.forward(like, trivial) for _ in range(count)]


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "operator: x * x": lambda x, _: x * x,
    "number: x * 0.5": lambda x, _: x * 0.5,
    "parameter: x * weight": lambda x, names: x * names.weight,
    "method: x.tanh()": lambda x, _: x.tanh(),
    "by name: torch.sigmoid(x)": lambda x, names: names.torch.sigmoid(x),
    "written in Python: F.relu(x)": lambda x, names: names.functional.relu(x),
    "nn.Linear in a module": lambda x, names: names.module(x),
    "torch.cat((x, x))": lambda x, names: names.torch.cat((x, x), dim=-1),
    "torch.chunk(x, 2)": lambda x, names: names.torch.chunk(x, 2),
    "x[3]": lambda x, _: x[3],
    "x[:4]": lambda x, _: x[:4],
    "torch.stack of 3": lambda x, names: names.torch.stack([x, x, x]),
    "sum over 3 rows": lambda x, names: names.torch.stack([x, x, x]).sum(0),
    "softmax over 3 rows": lambda x, names: names.torch.stack([x, x, x]).softmax(0),
}
