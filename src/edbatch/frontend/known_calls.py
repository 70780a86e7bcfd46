"""Cells that are called again as they were called before: the hot path of recording.

A cell is mostly called with one signature: values of the same kinds, numbers in the same places. Once a recording has
seen it, the module gets, for the rest of the recording, a class of its own: a subclass of its class whose `__call__`
knows that signature. It compares the kinds of the arguments with those it knows, adds the node and makes its outputs,
0.4 µs in all; any other call of the module goes the usual way. The source of such a `__call__` depends only on which
arguments are values, numbers and tuples of these, so it is generated once for each such pattern.

The module stays the same object, with the same attributes; only `type(module)` tells that it is recorded, and
`module.__class__` does not. One recording at a time has the module; others, in other threads, find kinds that are not
theirs, and go the usual way. A module that is pickled or copied meanwhile has its own class back first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from edbatch.frontend.lazy import Kind, Lazy, PendingSum
from edbatch.frontend.marking import active
from edbatch.planning.layout import REF
from edbatch.spec import float_bits

if TYPE_CHECKING:
    from edbatch.frontend.recorder import Entry, Recorder

MISSING = object()  # the default of all arguments
_set_class = vars(object)["__class__"].__set__  # also of objects that say they have another class


class KnownCall(NamedTuple):
    """A class whose instances know one signature, and how that is told to it and taken from it."""

    cls: type[nn.Module]
    own: type[nn.Module]  # the class that the module has by itself
    bind: Callable[[nn.Module, Recorder, Entry, Sequence[Kind]], None]
    release: Callable[[], None]

    def take_from(self, module: nn.Module) -> None:
        """The module has its own class again, if it has not got another one meanwhile."""
        self.release()
        if type(module) is self.cls:
            _set_class(module, self.own)


class KnownCalls:
    """The modules whose calls one recording knows."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._calls: dict[nn.Module, KnownCall] = {}
        self._entries: dict[nn.Module, Entry] = {}  # the last one of each, also of those that keep their own class

    def learn(self, module: nn.Module, key: tuple[Hashable, ...], entry: Entry) -> None:
        """From now on calls of a module with this signature take the short way."""
        if self._entries.get(module) is entry:
            return
        self._entries[module] = entry
        if _owner_of.setdefault(module, self._recorder) is not self._recorder:
            return
        before = self._calls.pop(module, None)
        if before is not None:
            before.take_from(module)
        call = _known_call(module, _pattern(key), entry.simple)
        if call is None:
            del _owner_of[module]
            return
        self._calls[module] = call
        call.bind(module, self._recorder, entry, [k for k in key if type(k) is Kind])
        _set_class(module, call.cls)

    def forget(self) -> None:
        """All modules are as they were."""
        self._entries.clear()
        while self._calls:
            module, call = self._calls.popitem()
            call.take_from(module)
            del _owner_of[module]


_owner_of: dict[nn.Module, Recorder] = {}  # a module has one class at a time, so one recording
_calls_of: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, KnownCall]] = weakref.WeakKeyDictionary()


def _pattern(key: tuple[Any, ...]) -> str:
    """Which arguments of a signature are values (v), ints (i), floats (f), and tuples of these, e.g. `i(vv)`."""
    text = ""
    rest = iter(key[1:])
    for part in rest:
        text += f"({''.join(_letter(next(rest)) for _ in range(next(rest)))})" if part is tuple else _letter(part)
    return text


def _letter(part: Hashable) -> str:
    return "i" if part is int else "f" if part is float else "v"


def _known_call(module: nn.Module, pattern: str, outputs: int) -> KnownCall | None:
    """The class for a module and a pattern, made at first use; None when the module must keep its own."""
    own = type(module)
    calls = _calls_of.setdefault(module, {})
    found = calls.get((own, pattern, outputs))
    if found is None and _can_be_subclassed(own):
        call, bind, release = _functions(pattern, outputs)

        def reduce(self: nn.Module, protocol: Any) -> Any:
            _set_class(self, own)  # what is pickled or copied has its own class, for the rest of the recording
            return self.__reduce_ex__(protocol)

        members = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
        members["__class__"] = property(lambda self: own, _set_class)
        members |= {"__call__": call, "__reduce_ex__": reduce}
        found = calls[own, pattern, outputs] = KnownCall(type(own.__name__, (own,), members), own, bind, release)
    return found


def _can_be_subclassed(cls: type[nn.Module]) -> bool:
    """Whether a subclass is no event for a class, and calls of its instances come here."""
    is_event = any("__init_subclass__" in vars(c) for c in cls.__mro__[:-1])
    return type(cls) is type and not is_event and cls.__call__ is nn.Module.__call__


@cache
def _code(pattern: str, outputs: int) -> Any:
    # the file's name begins as that of this one, so that a line of the generated code is not taken for the user's
    return compile(_source(pattern, outputs), f"{__file__} for {pattern}", "exec")


def _functions(pattern: str, outputs: int) -> Any:
    names: dict[str, Any] = {
        "Lazy": Lazy, "MISSING": MISSING, "Module": nn.Module, "active": active.get, "as_value": as_value,
        "float_bits": float_bits,
    }  # fmt: skip
    exec(_code(pattern, outputs), names)
    return names["make"]()


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
    """`make`, which gives `__call__` of a class, and what binds it to a signature of a recording and releases it."""
    arguments = list(_arguments(pattern))
    names = [name for name, _, _ in arguments]
    parts = [part for _, inside, _ in arguments for part in inside]
    values = [name for letter, name in parts if letter == "v"]
    shape = [f"type({n}) is tuple and len({n}) == {len(inside)}" for n, inside, is_tuple in arguments if is_tuple]
    unpack = [f"{', '.join(p for _, p in inside)}, = {n}" for n, inside, is_tuple in arguments if is_tuple and inside]
    check = [f"type({n}) is {'int' if letter == 'i' else 'float'}" for letter, n in parts if letter != "v"]
    check += [f"{name}.kind is k{i}" for i, name in enumerate(values)]
    if not values:  # no kind tells whose call it is
        check.append("active() is recorder")
    flat = [f"{n}.ref" if letter == "v" else f"float_bits({n})" if letter == "f" else n for letter, n in parts]
    kinds = [f"k{i}" for i in range(len(values))]
    made = [f"o{i}" for i in range(outputs)]
    state = ["module", "recorder", "types", "add_type", "add_args", "identity", "entry", *kinds, *made]
    record = ["node = len(types)", "add_type(identity)", f"add_args(({''.join(f'{f}, ' for f in flat)}))"]
    record += [line for i in range(outputs) for line in (f"r{i} = Lazy()", f"r{i}.kind = o{i}")]
    record += [f"r{i}.ref = node + {i * REF}" if i else "r0.ref = node" for i in range(outputs)]
    record.append(f"return {', '.join(f'r{i}' for i in range(outputs)) if outputs else 'entry.outputs(node)'}")
    is_like = " and ".join(["self is module", "not rest", "not keywords", *shape])
    replaced = [f"if type({n}) is not Lazy: {n} = as_value(recorder, {n})" for n in values]
    given = "".join(f"{n}, " for n in names)
    return f"""
def make():
    {" = ".join(state)} = None

    def __call__(self, {"".join(f"{n}=MISSING, " for n in names)}{"/, "}*rest, **keywords):
        try:
            if {is_like}:
                {"; ".join(unpack) or "pass"}
                if {" and ".join(check)}:
                    {_lines(20, record)}
        except AttributeError:
            pass
        given = ({given})
        if {is_like} and active() is recorder:
            {_lines(12, [*unpack, *replaced])}
            if {" and ".join(check)}:
                {_lines(16, record)}
        return Module.__call__(self, *[a for a in given if a is not MISSING], *rest, **keywords)

    def bind(of_module, by_recorder, to_entry, of_kinds):
        nonlocal {", ".join(state)}
        recorder, entry, identity = by_recorder, to_entry, to_entry.id
        types, add_type, add_args = recorder.types, recorder.add_type, recorder.add_args
        {"".join(f"{k}, " for k in kinds)}{"= of_kinds" if kinds else ""}
        {"".join(f"{o}, " for o in made)}{"= entry.kinds" if made else ""}
        module = of_module

    def release():
        nonlocal {", ".join(state)}
        {" = ".join(state)} = None

    return __call__, bind, release
"""


def _lines(indent: int, lines: list[str]) -> str:
    return f"\n{' ' * indent}".join(lines or ["pass"])
