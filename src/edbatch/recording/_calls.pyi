"""What `_calls.c` makes."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from torch import nn

from edbatch.recording.calls.entries import Entry
from edbatch.recording.values.lazy import Kind, Lazy

class Numbers:
    """64-bit integers that grow in number; `np.frombuffer` reads them."""

    def append(self, number: int, /) -> None: ...
    def extend(self, numbers: Sequence[int], /) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Value:
    """The base of lazy values."""

def set_no_tensor(address: int, /) -> None:
    """What C code finds that takes a lazy value for a tensor."""

class KnownCalls:
    """The signatures of cells that one recording knows. Their calls add to `types` and `args`."""

    def __init__(
        self,
        lazy: type[Lazy],
        as_value: Callable[..., Any],
        outside: dict[int, Lazy],
        types: Numbers,
        args: Numbers,
        /,
    ) -> None: ...
    def learn(self, key: tuple[Any, ...], entry: Entry, identity: int, kinds: tuple[Kind, ...] | None, /) -> None:
        """One more signature, if there is room for it; `kinds` of outputs that are one value or a tuple of values."""

    def pass_by(self, module: nn.Module, /) -> None:
        """A module is no cell: its calls are torch's own."""

    def forget(self) -> None: ...

class ModuleCall:
    """A method for `nn.Module.__call__`: `otherwise` gets the calls that the active recorder does not know."""

    def __init__(self, active: ContextVar[Any], otherwise: Callable[..., Any], /) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def same_items(dicts: list[dict[Any, Any]], items: list[tuple[Any, ...]], /) -> bool:
    """Whether dicts hold what they held, object by object: their keys and values in turn."""
