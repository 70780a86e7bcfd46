"""Names for types of nodes (recorded calls). Saved policies refer to types by name, and people see the names.

A name is the call as one would write it, with what the type knows of each argument in its place:
`node(f32[4], f32[4])`, `torch.mv(weight, f32[4])`, `torch.clamp(f32[4], min=0)`. Modules and shared tensors are called
by their paths, objects without a text of their own by their class, never by an address. What surrounds the whole call
of the batched function (train or eval, grad mode, autocast, device) is left out, so that a policy learned in training
serves evaluation too.

Names are the same in every process, except where a user's own `repr` is not (e.g. one that shows a set), and where
types differ only in what a name does not show, and are numbered in their order (`#2`). That may be values that no
variable leads to, `training` of a function, or the end of a very long argument.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from types import FunctionType
from typing import Any

import torch

from edbatch.layout.layout import Slot
from edbatch.recording.calls.signature import Child, Operand, Parts, Shared
from edbatch.recording.program.paths import NAMED, Paths, find_paths
from edbatch.recording.types.kernel_cache import Context
from edbatch.recording.values.lazy import Kind, original
from edbatch.spec import Spec
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction

PLAIN = {type(None), bool, int, float, complex, str, bytes}
MAX_LENGTH = 60  # of an argument; a longer one is cut, and told apart by its hash
MAX_CONSTANTS = 1000  # that are read for the name of one call
MAX_DEPTH = 30
MAX_ALIKE = 4  # equal arguments in sequence that are written out; more are counted


class UniqueNames:
    """The names of the types of one mini-batch, each given once."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def give(self, name: str, context: Context, outer: Context) -> str:
        """A unique name for a new type; it also says how its modes differ from those around the whole call."""
        name = " ".join([name, *_differences(context, outer)])
        unique = name
        while unique in self._given:  # only the order tells this type from another one
            self._given[name] += 1
            unique = f"{name} #{self._given[name]}"
        self._given[unique] = 1
        return unique


class Names(UniqueNames):
    """The names of one recording."""

    def __init__(self, paths: Paths, keywords: dict[str, Any], device: torch.device):
        super().__init__()
        self._paths = paths
        paths.start()
        self._keywords = find_paths(keywords) if keywords else {}
        self.has_keywords = bool(keywords)
        self._device = device
        self._derived: dict[int, str] = {}
        self._depth = 0
        self._constants_left = MAX_CONSTANTS

    def call(self, target: Any, args: Iterable[Any], kwargs: dict[str, Any], parts: Parts | None = None) -> str:
        """The text of a call. With `parts`, the arguments are templates, which `Parts.take` made."""
        self._constants_left = MAX_CONSTANTS
        with DisableTorchFunction():  # else our look at tensors would be recorded
            return self._call(target, args, kwargs, parts)

    def _call(self, target: Any, args: Iterable[Any], kwargs: dict[str, Any], parts: Parts | None = None) -> str:
        is_functional = isinstance(target, FunctionType) and target.__module__ == "torch.nn.functional"
        if kwargs and is_functional:
            usual = _defaults(target)
            kwargs = {k: a for k, a in kwargs.items() if k not in usual or (type(a), a) != (type(usual[k]), usual[k])}
            kwargs.pop("training", None)  # left out, as the mode of modules is
        texts = [self._text(a, parts) for a in args] + [f"{k}={self._text(a, parts)}" for k, a in kwargs.items()]
        return f"{self._name_of(target)}({_joined(texts)})"

    def derive(self, tensors: Sequence[torch.Tensor], func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Remember how shared tensors were computed from others: that is what they are called."""
        text = _cut(self.call(func, args, kwargs))
        for i, tensor in enumerate(tensors):
            self._derived[id(tensor)] = f"{text}[{i}]" if len(tensors) > 1 else text

    def _name_of(self, value: Any) -> str:
        given = self._keywords.get(value) if self._keywords and isinstance(value, NAMED) else None
        return given if given and not self._paths.known(value) else self._paths.name_of(value)

    def spec(self, spec: Spec) -> str:
        return _spec_text(spec, self._device.type)

    def _text(self, value: Any, parts: Parts | None = None) -> str:
        value = original(value)
        kind = type(value)
        if kind is Operand and parts is not None:
            return self._operand(parts.operands[value.position], parts.slots[value.position])
        if kind is Shared and parts is not None:
            value = parts.shared[value.position]
        if isinstance(value, torch.Tensor):
            known = self._derived.get(id(value)) or self._paths.known(value) or self._keywords.get(value)
            return known or self._paths.of(value) or f"shared {self.spec(Spec.of(value))}"
        if self._depth == MAX_DEPTH or self._constants_left <= 0:
            return "…"
        self._depth += 1
        try:
            return self._other_text(value, parts)
        finally:
            self._depth -= 1

    def _other_text(self, value: Any, parts: Parts | None) -> str:
        kind = type(value)
        if kind is Child:
            return self._text(value.template, parts)
        self._constants_left -= 1
        if kind in PLAIN:
            return _cut(repr(value))
        if kind is slice:
            ends = (value.start, value.stop) if value.step is None else (value.start, value.stop, value.step)
            return ":".join("" if end is None else self._text(end, parts) for end in ends)
        return self._container(value, parts) or _cut(self._constant(value))

    def _operand(self, operand: Kind | Spec, slot: Slot) -> str:
        if isinstance(operand, Spec):  # a number
            return "float" if operand.is_float else "int"
        return f"rows {self.spec(operand.spec)}" if slot is Slot.ROWS else self.spec(operand.spec)

    def _container(self, value: Any, parts: Parts | None = None) -> str | None:
        kind = type(value)
        if kind is tuple or kind is list:
            texts = self._texts(value, parts)
            return f"({texts})" if kind is tuple else f"[{texts}]"
        if kind is dict:
            texts = self._texts(value.items(), parts, self._entry)
            return f"{{{texts}}}"
        children, structure = pytree.tree_flatten(value, is_leaf=lambda v: v is not value)
        if structure.is_leaf():
            return None
        texts = self._texts(children, parts)
        context = "" if structure.context is None or structure.context is kind else f"[{self._text(structure.context)}]"
        return f"{kind.__name__}{context}({texts})"

    def _entry(self, entry: tuple[Any, Any], parts: Parts | None) -> str:
        return f"{self._text(entry[0])}: {self._text(entry[1], parts)}"

    def _texts(self, values: Collection[Any], parts: Parts | None, text: Callable[..., str] | None = None) -> str:
        """The texts of many values, until MAX_CONSTANTS are read."""
        texts = []
        for value in values:
            if self._constants_left <= 0:
                texts.append(f"… of {len(values)}")
                break
            texts.append((text or self._text)(value, parts))
        return _joined(texts)

    def _constant(self, value: Any) -> str:
        """The text of an object that belongs to the type: the same in every process, if its own `repr` is."""
        with suppress(Exception):  # raised by the user's own attributes or `repr`
            return self._description(value)
        return type(value).__name__

    def _description(self, value: Any) -> str:
        kind = type(value)
        if isinstance(value, enum.Enum):
            return f"{kind.__name__}.{value.name}"
        if isinstance(value, functools.partial):
            return f"partial {self._call(value.func, value.args, value.keywords)}"
        if isinstance(value, NAMED):
            return self._name_of(value)
        if isinstance(value, frozenset):
            if len(value) > self._constants_left:
                return f"{{… of {len(value)}}}"
            return f"{{{', '.join(sorted(map(self._text, value)))}}}"
        if dataclasses.is_dataclass(kind):
            fields = [(f.name, getattr(value, f.name, dataclasses.MISSING)) for f in dataclasses.fields(kind)]
            texts = [f"{name}={self._text(v)}" for name, v in fields if v is not dataclasses.MISSING]
            return f"{kind.__name__}({', '.join(texts)})"
        if isinstance(value, torch.device):
            return value.type
        text = repr(value)
        if text == object.__repr__(value):
            return kind.__name__
        return re.sub(r" at 0x[0-9a-fA-F]+", "", text).removeprefix("torch.")


@functools.lru_cache(maxsize=2000)
def _spec_text(spec: Spec, device_type: str) -> str:
    text = repr(spec).partition("@")[0]
    return text if spec.device.type == device_type else f"{text}@{spec.device.type}"


def operands_in_words(specs: Sequence[Spec], slots: Sequence[Slot]) -> str:
    """What a type reads, as its name says it.

    >>> operands_in_words([Spec((4,), torch.float32, torch.device("cpu"))], [Slot.ONE])
    'f32[4]'
    """
    numbers = ["float" if spec.is_float else "int" for spec in specs]
    texts = [_spec_text(spec, "cpu") for spec in specs]
    return _joined([n if slot is Slot.DATA else t for n, t, slot in zip(numbers, texts, slots, strict=True)])


@functools.lru_cache(maxsize=200)
def _defaults(target: FunctionType) -> dict[str, Any]:
    """The defaults of a function of torch.nn.functional, which torch writes out in every call, given or not."""
    return {name: p.default for name, p in inspect.signature(target).parameters.items()}


def _joined(texts: list[str]) -> str:
    """Texts with commas; many equal ones in sequence are counted."""
    if len(texts) <= MAX_ALIKE:
        return ", ".join(texts)
    runs = [(text, len(list(run))) for text, run in groupby(texts)]
    return ", ".join(f"{n} x {text}" if n > MAX_ALIKE else ", ".join([text] * n) for text, n in runs)


def _cut(text: str) -> str:
    if len(text) <= MAX_LENGTH and "\n" not in text:
        return text
    return f"{text.partition(chr(10))[0][: MAX_LENGTH - 7]}…{hashlib.blake2s(text.encode(), digest_size=3).hexdigest()}"


def _differences(context: Context, outer: Context) -> Iterator[str]:
    """How a context differs from another one, in words."""
    if context.grad != outer.grad:
        yield "with grad" if context.grad else "without grad"
    if context.autocast != outer.autocast:
        kinds = [f"{device} {str(dtype).removeprefix('torch.')}" for device, dtype in context.autocast]
        yield f"with autocast to {', '.join(kinds)}" if kinds else "without autocast"
    if context.dtype != outer.dtype:
        yield f"with {str(context.dtype).removeprefix('torch.')} by default"
