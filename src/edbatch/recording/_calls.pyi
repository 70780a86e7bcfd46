"""The types of `_calls.c`: the hot path of recording, in C."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import CodeType
from typing import Any

from torch import nn

from edbatch.recording.calls.entries import Entry
from edbatch.recording.values.lazy import Kind, Lazy

class Numbers:
    """A growing array of 64-bit integers; `np.frombuffer` reads it."""

    def append(self, number: int, /) -> None: ...
    def extend(self, numbers: Sequence[int], /) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Value:
    """The base class of lazy values."""

def set_no_tensor(address: int, /) -> None:
    """Set the address that C code finds in a lazy value which it takes for a tensor."""

class KnownCalls:
    """The signatures of calls of cells that one recording has seen. Such calls add nodes to `types` and `args`.

    `spans` gets three numbers for each call of one of the user's functions: the first node that it recorded, that after
    the last, and the number of its code. Functions in folders that begin like one of `own` do not count.
    """

    def __init__(
        self,
        lazy: type[Lazy],
        as_value: Callable[..., Any],
        outside: dict[int, Lazy],
        types: Numbers,
        args: Numbers,
        spans: Numbers,
        own: tuple[str, ...],
        /,
    ) -> None: ...
    def learn(self, key: tuple[Any, ...], entry: Entry, identity: int, kinds: tuple[Kind, ...] | None, /) -> None:
        """Add a signature, if there is room. `kinds` are those of its outputs: one value or a plain tuple."""

    def pass_by(self, module: nn.Module, /) -> None:
        """Note that a module is no cell: its calls go straight to torch."""

    def forget(self) -> None: ...
    def begin(self) -> None:
        """Functions that the calling frame calls are the user's."""

    def enter(self) -> None:
        """A node is about to be added: note which function does so."""

    def end(self) -> dict[CodeType, int]:
        """All functions have returned: their spans are closed. Gives the number of each code, -1 if not the user's."""

class ModuleCall:
    """A method for `nn.Module.__call__`: `otherwise` gets the calls that the active recorder does not know."""

    def __init__(self, active: ContextVar[Any], otherwise: Callable[..., Any], /) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def same_items(dicts: list[dict[Any, Any]], items: list[tuple[Any, ...]], /) -> bool:
    """Whether dicts still hold the very same objects, given as tuples of keys and values in turn."""
