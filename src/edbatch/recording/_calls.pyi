"""The types of `_calls.c`: the hot path of recording, in C."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import CodeType
from typing import Any

import torch
from torch import nn

from edbatch.recording.calls.entries import Entry
from edbatch.recording.types.kernel_cache import Context
from edbatch.recording.values.lazy import Kind, Lazy, PendingSum, Ragged

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
        shared: dict[int, torch.Tensor],
        entries: list[Entry],
        /,
    ) -> None: ...

    note_part: Callable[[tuple[Any, ...]], object] | None  # is told of the parts that are taken of values
    # Functions that run at once on arguments without values and shared tensors: where weak references to their new
    # results are noted by identity, or None. Not while a plain tensor stands for a value (`overwritten`).
    at_once: dict[Any, dict[int, Any] | None]
    overwritten: dict[int, Any]
    num_modes: int  # how many modes see torch's functions if the user adds none
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

    def forget(self) -> None:
        """What is known of modules holds no more."""

    def record(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: dict[str, Any] | None,
        otherwise: Callable[..., Any],
        /,
    ) -> Any:
        """The result of a call of a torch function; `otherwise` gives it if the call is not known."""

    def within(self, context: Context | None, is_usual: bool, /) -> None:
        """The modes around further calls; None: nothing is recorded. is_usual: 0 + x is x, if a node gives x."""

    def close(self) -> None:
        """Nothing more is recorded, and nothing is known any more."""

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

class Method:
    """A method or operator of lazy values: records calls that are known; `otherwise` gets all others.

    function: what recorders take it for. are_data: numbers among its arguments are data. is_direct: its arguments reach
    the recorder as they are. is_named: modes of torch see its calls, and the user may have added some.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        otherwise: Callable[..., Any],
        are_data: bool,
        is_direct: bool,
        is_named: bool,
        /,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Named(Method):
    """The same for a function in a namespace of torch, whose attributes it has, and to which it is equal."""

    @property
    def __wrapped__(self) -> Callable[..., Any]: ...

def named_stack(original: Callable[..., Any], /) -> Named:
    """A `Named` for `torch.stack`, which makes a list of values of one kind without a look at what is known."""

def set_up(
    lazy: type[Lazy],
    pending: type[PendingSum],
    ragged: type[Ragged],
    kind: type[Kind],
    parameter: type,
    tensor: type,
    size: type,
    dtype: type,
    device: type,
    materialise: Callable[..., Any],
    count_modes: Callable[[], int],
    arithmetic: frozenset[Any],
    /,
) -> None:
    """Tell where lazy values have their slots; before this nothing is recorded in C."""

def set_operator(name: str, forward: Method | None, reflected: Method | None, /) -> None:
    """Set what an operator of lazy values does, with a value on the left, and only on the right."""

def same_items(dicts: list[dict[Any, Any]], items: list[tuple[Any, ...]], /) -> bool:
    """Whether dicts still hold the very same objects, given as tuples of keys and values in turn."""
