"""The body of a cell: its ops as data. `capture` makes it, `split` divides it into programs, which become code.

A body is straight-line code over values of ONE example. Values are numbered: first the inputs, then one value per op.
Inputs are rows (they differ between the nodes of a batch), shared tensors (they do not) and tangents (the gradients of
the outputs, which come in). Nothing is mutated, every shape is static, and each op is a core ATen overload. A joint
body also computes the gradients of its inputs: they are ordinary values, made from the tangents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from edbatch.errors import CaptureError
from edbatch.spec import Spec

SpecTree = Spec | tuple["Spec | None", ...] | None
aten = torch.ops.aten
VIEWS = frozenset({
    aten.view.default, aten.permute.default, aten.expand.default, aten.slice.Tensor, aten.select.int,
    aten.diagonal.default, aten.as_strided.default, aten.unfold.default,
})  # fmt: skip  # ops whose result lies in the memory of their operand


@dataclass(frozen=True, slots=True)
class Val:
    """A reference to value `index` of a body."""

    index: int

    def __repr__(self) -> str:
        return f"%{self.index}"


@dataclass(frozen=True, slots=True)
class Across:
    """The target of an op that adds up over all rows of a mini-batch; the result is shared."""

    name: str

    def __repr__(self) -> str:
        return self.name


def constant(tensor: torch.Tensor) -> torch.Tensor:
    """The target of an op that stands for a tensor made inside the body, such as torch.tensor([1.0, 2.0])."""
    return tensor


@dataclass(frozen=True, slots=True)
class Op:
    """One call. `args` and `kwargs` hold constants, `Val`s and tuples of these; `spec` is a tuple if the result is."""

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    spec: SpecTree

    @property
    def name(self) -> str:
        return getattr(self.target, "__name__", None) or str(self.target)

    @property
    def operands(self) -> list[Val]:
        return list(find_vals((self.args, [v for _, v in self.kwargs])))

    @property
    def is_random(self) -> bool:
        tags = getattr(self.target, "tags", ())
        return torch.Tag.nondeterministic_seeded in tags

    def replace(self, swap: Callable[[Val], Any], swap_constant: Callable[[Any], Any] = lambda c: c) -> Op:
        """The op with other values; `swap_constant` is asked about keyword arguments (dtypes, devices, ...)."""
        kwargs = tuple((k, swap_constant(swap_vals(v, swap))) for k, v in self.kwargs)
        return Op(self.target, swap_vals(self.args, swap), kwargs, self.spec)

    def __repr__(self) -> str:
        args = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs]
        return f"{self.name}({', '.join(args)}) : {self.spec}"


@dataclass(frozen=True)
class Body:
    """Values 0, 1, … are `rows`, then `shared` (arguments, then enclosed tensors: those that the cell finds by itself,
    such as parameters), then `tangents`, then the results of `ops`.

    `row_grads` and `shared_grads` hold None where no gradient flows; `tangent_of[k]` is the tangent of output k, or
    None. `reach[k]` are the inputs to which autograd would send a gradient of output k, even if it is always zero.
    """

    rows: tuple[Spec, ...]
    shared: tuple[Spec, ...]
    tangents: tuple[Spec, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Val, ...]
    row_grads: tuple[Val | None, ...]
    shared_grads: tuple[Val | None, ...]
    tangent_of: tuple[Val | None, ...]
    reach: tuple[frozenset[int], ...]
    num_own: int | None = None  # after a split: how many ops (the first ones) are the cell's own; the rest were added

    def head(self) -> Body:
        """The cell's own ops."""
        return self if self.num_own is None else replace(self, ops=self.ops[: self.num_own], num_own=None)

    @property
    def num_inputs(self) -> int:
        return len(self.rows) + len(self.shared) + len(self.tangents)

    @cached_property
    def specs(self) -> tuple[SpecTree, ...]:
        return (*self.rows, *self.shared, *self.tangents, *(op.spec for op in self.ops))

    @property
    def results(self) -> list[Val]:
        """Every value that is wanted outside: outputs and gradients."""
        return [*self.outputs, *(g for g in (*self.row_grads, *self.shared_grads) if g is not None)]

    def op(self, value: Val | int) -> Op | None:
        """The op that makes a value; None for inputs."""
        index = value if isinstance(value, int) else value.index
        return self.ops[index - self.num_inputs] if index >= self.num_inputs else None

    def spec(self, value: Val) -> Spec:
        spec = self.specs[value.index]
        if not isinstance(spec, Spec):
            raise CaptureError(f"value {value} is not one tensor")
        return spec

    @cached_property
    def is_row(self) -> tuple[bool, ...]:
        """Per value: does it differ between the rows of a batch? If not, it is shared and computed once per
        mini-batch."""
        levels = [True] * len(self.rows) + [False] * len(self.shared) + [True] * len(self.tangents)
        for op in self.ops:
            levels.append(is_row_op(op, levels))
        return tuple(levels)

    def check(self) -> Body:
        """Raises CaptureError if a value is used before it exists or a result is unknown."""
        for position, op in enumerate(self.ops):
            late = [v for v in op.operands if v.index >= self.num_inputs + position]
            if late:
                raise CaptureError(f"{op} reads {late} before they exist")
        missing = [v for v in self.results if v.index >= self.num_inputs + len(self.ops)]
        if missing:
            raise CaptureError(f"results {missing} do not exist")
        for given, grads in ((self.rows, self.row_grads), (self.shared, self.shared_grads)):
            if len(given) != len(grads):
                raise CaptureError("one gradient (or None) is needed per input")
        return self

    def __str__(self) -> str:
        names = [("row", self.rows), ("shared", self.shared), ("tangent", self.tangents)]
        inputs = [f"{name} {spec}" for name, specs in names for spec in specs]
        lines = [f"%{i} = {text}" for i, text in enumerate(inputs)]
        lines += [f"%{self.num_inputs + i} = {op}" for i, op in enumerate(self.ops)]
        tail = f"return {self.outputs}, rows' gradients {self.row_grads}, shared gradients {self.shared_grads}"
        return "\n".join([*lines, tail])


def is_row_op(op: Op, levels: Sequence[bool]) -> bool:
    """Whether a result differs between rows. Random ops draw for every row; sums across rows are shared; all other
    results differ if an operand does."""
    return not isinstance(op.target, Across) and (op.is_random or any(levels[v.index] for v in op.operands))


def find_vals(tree: Any) -> Iterator[Val]:
    """The values in a tree of tuples and lists, in order."""
    if isinstance(tree, Val):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from find_vals(item)


def swap_vals(tree: Any, swap: Callable[[Val], Any]) -> Any:
    """The tree with every value replaced by `swap(value)`; lists become tuples, so that ops can be compared."""
    if isinstance(tree, Val):
        return swap(tree)
    if isinstance(tree, (tuple, list)):
        return tuple([swap_vals(item, swap) for item in tree])
    return tree


class Draft:
    """A body under construction. Equal ops are merged as they are added, but for random ones."""

    def __init__(self, inputs: Sequence[Spec], is_row: Sequence[bool]) -> None:
        self.num_inputs = len(inputs)
        self.specs: list[SpecTree] = list(inputs)
        self.is_row = list(is_row)
        self.ops: list[Op] = []
        self._known: dict[Any, Val] = {}

    @staticmethod
    def of(body: Body) -> Draft:
        """A draft that starts with all of a body; its values keep their numbers."""
        draft = Draft([*body.rows, *body.shared, *body.tangents], body.is_row[: body.num_inputs])
        for op in body.ops:
            draft.add(op)
        return draft

    def body(self, like: Body) -> Body:
        """The finished body, with inputs and results as in `like`."""
        return replace(like, ops=tuple(self.ops), num_own=like.num_own or len(like.ops))

    def add(self, op: Op) -> Val:
        key = None if op.is_random else (op.target, _key(op.args), _key(op.kwargs))
        if key is not None and key in self._known:
            return self._known[key]
        self.ops.append(op)
        self.specs.append(op.spec)
        self.is_row.append(is_row_op(op, self.is_row))
        value = Val(len(self.specs) - 1)
        if key is not None:
            self._known[key] = value
        return value

    def call(self, target: Any, *args: Any, spec: SpecTree, **kwargs: Any) -> Val:
        return self.add(Op(target, swap_vals(args, lambda v: v), tuple(kwargs.items()), spec))

    def op(self, value: Val) -> Op | None:
        return self.ops[value.index - self.num_inputs] if value.index >= self.num_inputs else None

    def spec(self, value: Val) -> Spec:
        spec = self.specs[value.index]
        assert isinstance(spec, Spec), f"{value} is not one tensor"
        return spec


Rewrite = Callable[[Draft, Op], Val]


def rebuild(body: Body, rewrite: Rewrite = Draft.add) -> Body:
    """Walks the ops once, in order: drops what no result needs and merges equal ops.

    `rewrite(draft, op)` may add any number of ops to the draft and returns the value that stands for the op.
    """
    live = live_values(body, body.results)
    draft = Draft([*body.rows, *body.shared, *body.tangents], body.is_row[: body.num_inputs])
    now = {i: Val(i) for i in range(body.num_inputs)}
    for index in sorted(i for i in live if i >= body.num_inputs):
        op = body.ops[index - body.num_inputs].replace(lambda v: now[v.index])
        now[index] = rewrite(draft, op)
    return renamed(body, tuple(draft.ops), lambda v: now[v.index])


def renamed(body: Body, ops: tuple[Op, ...], now: Callable[[Val], Val]) -> Body:
    """The body with other ops and its results renamed."""

    def maybe(value: Val | None) -> Val | None:
        return None if value is None else now(value)

    return Body(
        body.rows, body.shared, body.tangents, ops, tuple(now(v) for v in body.outputs),
        tuple(map(maybe, body.row_grads)), tuple(map(maybe, body.shared_grads)), body.tangent_of, body.reach,
    )  # fmt: skip


def live_values(body: Body, wanted: Sequence[Val], stop: frozenset[int] | set[int] = frozenset()) -> set[int]:
    """Everything that the wanted values are computed from, and they themselves; not what `stop` is computed from."""
    live: set[int] = set()
    stack = [v.index for v in wanted]
    while stack:
        index = stack.pop()
        if index in live:
            continue
        live.add(index)
        op = body.op(index)
        if op is not None and index not in stop:
            stack.extend(v.index for v in op.operands)
    return live


def _key(tree: Any) -> Any:
    """A hashable key that, unlike ==, tells 1, 1.0 and True apart, and 0.0 from -0.0."""
    if isinstance(tree, (tuple, list)):
        return tuple([_key(item) for item in tree])
    return tree if isinstance(tree, Val) else (type(tree), repr(tree) if isinstance(tree, float) else tree)
