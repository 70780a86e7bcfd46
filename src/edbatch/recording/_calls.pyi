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
    def __getitem__(self, place: int, /) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Value:
    """The base class of lazy values."""

def living() -> list[Value]:
    """All values that are alive, the youngest first."""

def set_no_tensor(address: int, /) -> None:
    """Set the address that C code finds in a lazy value which it takes for a tensor."""

class KnownCalls:
    """The signatures of calls of cells that one recording has seen. Such calls add nodes to `types` and `args`.

    Between `begin` and `end` they also note which of the user's functions records, for nodes of cells without a mark.
    """

    def __init__(
        self,
        lazy: type[Lazy],
        as_value: Callable[..., Any],
        outside: dict[int, Lazy],
        types: Numbers,
        args: Numbers,
        /,
    ) -> None: ...
    def learn(
        self,
        key: tuple[Any, ...],
        entry: Entry,
        identity: int,
        kinds: tuple[Kind, ...] | None,
        is_marked: bool = False,
        /,
    ) -> None:
        """Add a signature, if there is room. `kinds` are those of its outputs: one value or a plain tuple."""

    def pass_by(self, module: nn.Module, /) -> None:
        """Note that a module is no cell: its calls go straight to torch."""

    def forget(self) -> None: ...
    def begin(self, codes: dict[CodeType, int], own: tuple[str, ...], sites: Numbers, spans: Numbers, /) -> None:
        """Note the functions that the calling frame calls, for `Recording.sites` and `spans`.

        Args:
            codes: gets a number for every function's code, -1 if its file is in a folder that begins like one of `own`.
        """

    def enter(self) -> None:
        """A node is about to be added: note which function does so."""

    def end(self) -> None:
        """All functions have returned, so their spans end; nothing is noted any more."""

class ModuleCall:
    """A method for `nn.Module.__call__`: `otherwise` gets the calls that the active recorder does not know."""

    def __init__(self, active: ContextVar[Any], otherwise: Callable[..., Any], /) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def same_items(dicts: list[dict[Any, Any]], items: list[tuple[Any, ...]], /) -> bool:
    """Whether dicts still hold the very same objects, given as tuples of keys and values in turn."""
