"""The values of a program as tensors in generated code: under which names, and in which shapes.

In: questions of batching rules and of the emitters. Out: names; code that reshapes a tensor is written when needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from edbatch.cells.body.body import Body, Val
from edbatch.cells.torch_ops.memory_plan import MemoryPlan
from edbatch.cells.torch_ops.writer import Writer
from edbatch.spec import Spec

Form = tuple[Any, ...]  # the shape after the first dimension, or ("flat", width) for [-1, width]


@dataclass
class Forms:
    """The names of a tensor, by shape. `own`: the program made its memory and may reuse it. `pinned`: the names last
    until the program ends."""

    forms: dict[Form, str]
    own: bool = False
    pinned: bool = False


def _refuse(index: int, form: Form) -> None:
    raise KeyError(f"value {index} is read before it is made")


class Tensors:
    """See `rule_types.OperandNames`.

    Args:
        roots: for each value the one whose memory it lies in.
        make: called with a value that is no tensor yet and the wanted form; puts the value into `memory`.
        work_space: the views of values that have columns there, if there is one.
    """

    def __init__(
        self,
        body: Body,
        writer: Writer,
        roots: Mapping[int, int],
        make: Callable[[int, Form], None] = _refuse,
        work_space: WorkViews | None = None,
    ) -> None:
        self.body, self.writer, self.work_space = body, writer, work_space
        self.memory: dict[int, Forms] = {}
        self.kept: dict[int, list[str]] = {}  # root -> local names to drop after its last use
        self._roots, self._make = roots, make

    def is_row(self, value: Val) -> bool:
        return self.body.is_row[value.index]

    def spec(self, value: Val) -> Spec:
        return self.body.spec(value)

    def row(self, value: Val, shape: Sequence[int] | None = None) -> str:
        """The name of a value as [B, *shape]."""
        return self.form(value, tuple(self.spec(value).shape if shape is None else shape))

    def flat(self, value: Val, width: int) -> str:
        """The name of a value as [-1, width]; that is [B, width] if a row has `width` elements."""
        shape = self.spec(value).shape
        is_one = math.prod(shape) == width if width else math.prod(shape[:-1]) == 1
        return self.form(value, (width,) if is_one else ("flat", width))

    def every(self, value: Val) -> str:
        """The name of a value as [B, *shape]; shared ones are expanded, without a copy."""
        if self.is_row(value):
            return self.row(value)
        return f"{self.raw(value)}.expand({_size(self.spec(value).shape)})"

    def raw(self, tree: Any) -> str:
        """A value in its own form, or a constant."""
        if isinstance(tree, Val):
            return self.form(tree, self.own_form(tree.index))
        if isinstance(tree, (tuple, list)):
            return "(" + "".join(self.raw(item) + ", " for item in tree) + ")"
        if tree is None or isinstance(tree, (bool, int, str)) or (isinstance(tree, float) and math.isfinite(tree)):
            return repr(tree)
        return self.object(tree)

    def object(self, thing: Any) -> str:
        return self.writer.object(thing)

    def form(self, value: Val, form: Form) -> str:
        """The name of a value in a form."""
        if self.work_space is not None and (begin := self.work_space.place(value.index)) is not None:
            return self._in_work_space(value, begin, form)
        if value.index not in self.memory:
            self._make(value.index, form)
        memory = self.memory[value.index]
        if form not in memory.forms:
            source = next(iter(memory.forms.values()))
            if form[:1] == ("flat",):
                size = f"-1, {form[1]}" if form[1] else f"B * {math.prod(self.spec(value).shape[:-1])}, 0"
            else:
                size = _size(form) if self.is_row(value) else f"{form}"
            memory.forms[form] = self.assign(value, f"{source}.reshape({size})", memory.pinned)
        return memory.forms[form]

    def _in_work_space(self, value: Val, begin: int, form: Form) -> str:
        assert self.work_space is not None
        if form[:1] == ("flat",):
            lines = math.prod(self.spec(value).shape) // form[1]
            return self.work_space.view((lines * BATCH, form[1]), (form[1], 1), begin)
        return self.work_space.view((BATCH, *form), (math.prod(form), *_strides(form)), begin)

    def own_form(self, index: int) -> Form:
        """The shape of a value; () for a tuple of tensors."""
        spec = self.body.specs[index]
        return spec.shape if isinstance(spec, Spec) else ()

    def assign(self, value: Val, text: str, pinned: bool = False) -> str:
        """A local name for the result of an expression; it is dropped with the value, unless it is pinned."""
        name = self.writer.assign(text)
        if not pinned:
            self.kept.setdefault(self._roots[value.index], []).append(name)
        return name


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))[: len(shape)]


class Times(NamedTuple):
    """So many times the number of rows of a batch."""

    factor: int

    def __rmul__(self, other: int) -> Times:  # type: ignore[override]
        return Times(other * self.factor)


BATCH = Times(1)
View = tuple[tuple[int | Times, ...], tuple[int | Times, ...], Times]


class WorkViews:
    """The views of a work space that a program needs, by number: sizes, strides, and where they begin.

    In code they are `v[0]`, `v[1]`, ….
    """

    def __init__(self, plan: MemoryPlan) -> None:
        self.place = plan.place
        self._number_of: dict[View, int] = {}

    def view(self, sizes: Sequence[int | Times], strides: Sequence[int | Times], begin: int) -> str:
        """The name of a view; `begin` in elements of one row."""
        view = tuple(sizes), tuple(strides), begin * BATCH
        return f"v[{self._number_of.setdefault(view, len(self._number_of))}]"

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(self._number_of)


def _size(shape: Sequence[int]) -> str:
    return ", ".join(["B", *map(str, shape)])
