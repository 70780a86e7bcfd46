"""The signature of a call: its arguments are taken apart into what decides its type and what is data of this call.

In: one call, for `Parts`. Out: a `key` of what belongs to the type (calls with equal keys may run together), in an
order that determines the structure of the arguments; and `flat`, the references and numbers of this call. Only `Parts`
makes a new key. The short cuts for calls like earlier ones (`fast_cells`, `fast_functions`, `_calls.c`) build the same
keys in less time, and tests compare them. Arguments with marks in place of operands and shared tensors are a
*template*: `fill` puts other values there, so that the same call can be captured on other tensors.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from edbatch.errors import RecordingError
from edbatch.layout.layout import Slot
from edbatch.recording.program.attributes import Same
from edbatch.recording.values.lazy import Kind, Lazy, Ragged, original
from edbatch.recording.values.ragged import materialise
from edbatch.spec import OWN_RULES, Spec, float_bits, own_rules
from edbatch.torch_insides import pytree

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder


@dataclass(frozen=True)
class Operand:
    """The place, in a template, of an operand: a value or number that differs from call to call."""

    position: int


@dataclass(frozen=True)
class Shared:
    """The place, in a template, of a tensor that all examples share."""

    position: int


class Parts:
    """Takes the arguments of one call apart, and holds what they gave."""

    def __init__(
        self, recorder: Recorder, *, is_cell: bool = False, is_row_wise: bool = False, number_like: Spec | None = None,
        device: torch.device | None = None,
    ):  # fmt: skip
        self.recorder = recorder
        self.device = device or recorder.device  # of numbers, which become tensors
        self.is_row_wise = is_row_wise  # rows are read row by row, other values repeated for each of them
        self.is_cell = is_cell  # all tensors are operands, and numbers are data
        self.number_like = number_like  # numbers are data of this dtype (arithmetic between a value and a number)
        self.key: list[Hashable] = []
        self.flat: list[int] = []
        self.operands: list[Kind | Spec] = []  # a Kind for a value, a Spec for a number
        self.values: list[Any] = []  # the lazy value of each operand; None for a number
        self.slots: list[Slot] = []
        self.shared: list[torch.Tensor] = []
        self.generators: list[torch.Generator] = []

    def take_call(
        self, target: Hashable, args: Sequence[Any], kwargs: dict[str, Any], static: Container[Hashable] = ()
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Take a whole call apart; `target` stands for its target in the key. Returns the templates of its arguments.

        Args:
            static: the positions and names of arguments that belong to the type.
        """
        self.key.append(target)
        args_template = tuple([self.take(a, static=i in static) for i, a in enumerate(args)])
        if kwargs:
            self.key.append(("keywords", *kwargs))
        is_arithmetic = self.number_like is not None  # torch needs numbers for its keywords, such as alpha
        kwargs_template = {k: self.take(a, static=k in static or is_arithmetic) for k, a in kwargs.items()}
        return args_template, kwargs_template

    def take(self, value: Any, *, static: bool = False) -> Any:
        """Take one argument apart; returns its template."""
        kind = type(value)
        if isinstance(value, Lazy):
            if self.is_row_wise and isinstance(value, Ragged):
                return self._operand(materialise(self.recorder, value), Slot.ROWS)
            return self._operand(self.recorder.resolve(value))
        if kind is int or kind is float:
            return self._number(value, kind, static)
        if isinstance(value, torch.Tensor):
            if self.is_cell or value not in self.recorder.shared:
                return self._operand(self.recorder.outside(value))
            return self._shared(value)
        if isinstance(value, np.number):
            return self.take(value.item(), static=static)
        if value is None or kind is bool or kind is str:
            self.key.append(value)
            return value
        if kind is torch.Size:
            return self.take(tuple(value), static=static)
        if kind is tuple or kind is list:
            self.key += [kind, len(value)]  # type: ignore[list-item]
            return kind([self.take(v, static=static) for v in value])
        if kind is dict:
            self.key += (dict, tuple(value))
            return {k: self.take(v, static=static) for k, v in value.items()}
        if kind is slice:
            self.key.append(slice)
            return slice(*[self.take(v, static=True) for v in (value.start, value.stop, value.step)])
        return self._other(value, static)

    def _operand(self, value: Lazy, slot: Slot | None = None) -> Operand:
        self.key.append(value.kind)
        if self.is_row_wise:
            slot = slot or Slot.REPEAT
            self.key.append(slot)
        self.flat.append(value.ref)
        self.operands.append(value.kind)
        self.values.append(value)
        self.slots.append(slot or Slot.ONE)
        return Operand(len(self.operands) - 1)

    def _number(self, value: Any, kind: type, static: bool) -> Any:
        if static or not (self.is_cell or self.number_like is not None):
            self.key.append((kind, value if kind is int else float_bits(value)))  # by bits: 0.0 == -0.0
            return value
        spec = self._number_spec(kind)
        self.key.append(kind)
        self.flat.append(value if kind is int else float_bits(value))
        self.operands.append(spec)
        self.values.append(None)
        self.slots.append(Slot.DATA)
        return Operand(len(self.operands) - 1)

    def _number_spec(self, kind: type) -> Spec:
        like = self.number_like
        device = self.device if like is None else like.device
        if kind is int:
            own = like is not None and not like.is_float and like.dtype is not torch.bool
            return Spec((), like.dtype if like is not None and own else torch.int64, device)
        return Spec((), like.dtype if like is not None and like.is_float else torch.get_default_dtype(), device)

    def _shared(self, value: torch.Tensor) -> Shared:
        position = next((i for i, t in enumerate(self.shared) if t is value), len(self.shared))
        if position == len(self.shared):
            if (special := own_rules(value)) is not None:
                raise RecordingError(f"a tensor of class {special} {OWN_RULES}")
            self.shared.append(value)
        self.key.append(id(value))
        return Shared(position)

    def _other(self, value: Any, static: bool) -> Any:
        value = original(value)
        children, structure = pytree.tree_flatten(value)
        if not structure.is_leaf():
            self.key.append(ContainerStructure(type(value), structure))
            return structure.unflatten([Child(self.take(child, static=static)) for child in children])
        try:
            hash(None if isinstance(value, nn.Module) else value)
        except TypeError:
            raise RecordingError(
                f"an argument of type {type(value).__name__} belongs to the type of the node and must be hashable. "
                "Pass tensors and numbers as arguments of their own, and a frozen dataclass, tuple, enum or "
                "string for the rest"
            ) from None
        if isinstance(value, torch.Generator):
            self.generators.append(value)
        if isinstance(value, nn.Module):  # by identity: it may be equal to another one
            self.key.append(Same(value))
        else:
            self.key.append(value if isinstance(value, enum.Enum) else (type(value), value))
        return value


def lasting_key(key: Sequence[Hashable], shared: Sequence[torch.Tensor] = ()) -> tuple[Hashable, ...]:
    """A key that means the same in other recordings: kinds as specs, and shared tensors, if given, by their places."""
    places: dict[Hashable, int] = {id(t): i for i, t in enumerate(shared)}
    return tuple([k.spec if isinstance(k, Kind) else places.get(k, k) if type(k) is int else k for k in key])


class ContainerStructure:
    """The structure of a user's own container as a part of a key. Not all versions of torch can hash theirs."""

    __slots__ = ("kind", "tree")

    def __init__(self, kind: type, tree: pytree.TreeSpec):
        self.kind, self.tree = kind, tree

    def __hash__(self) -> int:
        return hash((self.kind, self.tree.num_leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContainerStructure) and self.kind is other.kind and self.tree == other.tree


@dataclass(frozen=True)
class Child:
    """Stands for a leaf inside a user's own container while a template is kept."""

    template: Any


def fill(template: Any, rows: Sequence[Any], shared: Sequence[Any]) -> Any:
    """Put the arguments together again, with `rows` and `shared` in the places of operands."""
    kind = type(template)
    if kind is Operand:
        return rows[template.position]
    if kind is Shared:
        return shared[template.position]
    if kind is tuple or kind is list:
        return kind([fill(t, rows, shared) for t in template])
    if kind is dict:
        return {k: fill(t, rows, shared) for k, t in template.items()}
    if kind is slice:
        return slice(*[fill(t, rows, shared) for t in (template.start, template.stop, template.step)])
    leaves, structure = pytree.tree_flatten(template)
    if structure.is_leaf():
        return template
    return structure.unflatten([fill(leaf.template, rows, shared) for leaf in leaves])


def calling(target: Callable[..., Any], args: Any, kwargs: Any, num_rows: int) -> Callable[..., Any]:
    """`target` as a function of rows and shared tensors, the rest of its arguments filled in from templates."""

    def function(*tensors: Any) -> Any:
        rows, shared = tensors[:num_rows], tensors[num_rows:]
        return target(*fill(args, rows, shared), **fill(kwargs, rows, shared))

    return function
