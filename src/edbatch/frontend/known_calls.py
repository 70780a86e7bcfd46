"""Cells that are called again as they were called before: the hot path of recording.

A cell is mostly called with one signature: values of the same kinds, numbers in the same places. Once a recording has
seen it, it keeps a function that knows that signature: it compares the kinds of the arguments with those it knows, adds
the node and makes its outputs, with no key and no look-up. Any other call goes the usual way. The source of such a
function depends only on which arguments are values, numbers and tuples of these, so it is generated once for each such
pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from edbatch.frontend.lazy import Kind, Lazy, PendingSum
from edbatch.planning.layout import REF
from edbatch.spec import float_bits

if TYPE_CHECKING:
    from edbatch.frontend.recorder import Entry, Recorder

UNKNOWN = object()  # what a function gives for a call that it does not know, and the default of all arguments
MOST = 4  # signatures of a module that are learned one after the other; with more of them that would not pay


class KnownCalls:
    """The modules whose calls one recording knows: `get(module)` is the function that knows them, or None."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._functions: dict[nn.Module, Callable[..., Any]] = {}
        self._learned: dict[nn.Module, int] = {}
        self.get = self._functions.get

    def learn(self, module: nn.Module, key: tuple[Hashable, ...], entry: Entry) -> None:
        """From now on calls of a module with this signature take the short way."""
        times = self._learned.get(module, 0)
        if times < MOST:
            self._learned[module] = times + 1
            make = _maker(_pattern(key), entry.simple)
            self._functions[module] = make(self._recorder, entry, [k for k in key if type(k) is Kind])

    def forget(self) -> None:
        """What is known holds no more: the context has changed."""
        self._functions.clear()
        self._learned.clear()


def _pattern(key: tuple[Any, ...]) -> str:
    """Which arguments of a signature are values (v), ints (i), floats (f), and tuples of these, e.g. `i(vv)`."""
    text = ""
    rest = iter(key[1:])
    for part in rest:
        text += f"({''.join(_letter(next(rest)) for _ in range(next(rest)))})" if part is tuple else _letter(part)
    return text


def _letter(part: Hashable) -> str:
    return "i" if part is int else "f" if part is float else "v"


@cache
def _maker(pattern: str, outputs: int) -> Callable[[Recorder, Entry, Sequence[Kind]], Callable[..., Any]]:
    names: dict[str, Any] = {"Lazy": Lazy, "UNKNOWN": UNKNOWN, "as_value": as_value, "float_bits": float_bits}
    # the file's name begins as that of this one, so that a line of the generated code is not taken for the user's
    exec(compile(_source(pattern, outputs), f"{__file__} for {pattern}", "exec"), names)
    return names["make"]  # type: ignore[no-any-return]


class _NoValue:
    kind = None


def as_value(recorder: Recorder, part: Any) -> Any:
    """A part of an argument as a recorded value: pending sums and tensors from outside, such as learned initial states.

    Anything else has no kind.
    """
    if type(part) is PendingSum:
        return recorder.resolve(part)
    return recorder.outside(part) if isinstance(part, Tensor) else _NoValue


def _arguments(pattern: str) -> Iterator[tuple[str, list[tuple[str, str]], bool]]:
    """Of each argument: its name, the letters and names of its parts, and whether it is a tuple."""
    rest = iter(pattern)
    for i, letter in enumerate(rest):
        name = f"a{i}"
        if letter == "(":
            inside = "".join(iter(rest.__next__, ")"))
            yield name, [(part, f"{name}_{j}") for j, part in enumerate(inside)], True
        else:
            yield name, [(letter, name)], False


def _source(pattern: str, outputs: int) -> str:
    """`make`, which gives the function that knows one signature of a recording."""
    arguments = list(_arguments(pattern))
    names = [name for name, _, _ in arguments]
    parts = [part for _, inside, _ in arguments for part in inside]
    values = [name for letter, name in parts if letter == "v"]
    shape = [f"type({n}) is tuple and len({n}) == {len(inside)}" for n, inside, is_tuple in arguments if is_tuple]
    unpack = [f"{', '.join(p for _, p in inside)}, = {n}" for n, inside, is_tuple in arguments if is_tuple and inside]
    check = [f"type({n}) is {'int' if letter == 'i' else 'float'}" for letter, n in parts if letter != "v"]
    check += [f"{name}.kind is k{i}" for i, name in enumerate(values)]
    flat = [f"{n}.ref" if letter == "v" else f"float_bits({n})" if letter == "f" else n for letter, n in parts]
    kinds = "".join(f"k{i}, " for i in range(len(values)))
    made = "".join(f"o{i}, " for i in range(outputs))
    record = ["node = len(types)", "add_type(identity)", f"add_args(({''.join(f'{f}, ' for f in flat)}))"]
    record += [line for i in range(outputs) for line in (f"r{i} = Lazy()", f"r{i}.kind = o{i}")]
    record += [f"r{i}.ref = node + {i * REF}" if i else "r0.ref = node" for i in range(outputs)]
    record.append(f"return {', '.join(f'r{i}' for i in range(outputs)) if outputs else 'entry.outputs(node)'}")
    is_like = " and ".join(["not rest", *shape])
    is_known = " and ".join(check) or "True"
    replaced = [f"if type({n}) is not Lazy: {n} = as_value(recorder, {n})" for n in values]
    return f"""
def make(recorder, entry, kinds):
    identity, types, add_type, add_args = entry.id, recorder.types, recorder.add_type, recorder.add_args
    {f"{kinds}= kinds" if kinds else "pass"}
    {f"{made}= entry.kinds" if made else "pass"}

    def call({"".join(f"{n}=UNKNOWN, " for n in names)}{"/, " if names else ""}*rest):
        try:
            if {is_like}:
                {"; ".join(unpack) or "pass"}
                if {is_known}:
                    {_lines(20, record)}
        except AttributeError:
            pass
        if {is_like}:
            {_lines(12, [*unpack, *replaced])}
            if {is_known}:
                {_lines(16, record)}
        return UNKNOWN

    return call
"""


def _lines(indent: int, lines: list[str]) -> str:
    return f"\n{' ' * indent}".join(lines or ["pass"])
