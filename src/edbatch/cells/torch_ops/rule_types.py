"""What batching rules are made of. A rule says how an op of a body, written for one example, runs on a whole batch.

In: an op, and `OperandNames`, which the rule asks for its operands. Out: a `Code`, the text of a call. The rules for
whole families of ops, such as the elementwise ones, are here too. In code, a value that differs between rows has a
further first dimension B; a shared value has not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from edbatch.cells.body.body import Op, Val, swap_vals
from edbatch.errors import CaptureError
from edbatch.spec import Spec
from edbatch.torch_insides.transforms import set_vmap_warns
from edbatch.torch_state.hooks import Setting, Settled
from edbatch.torch_state.surroundings import inside

# vmap warns where it has to loop over rows, and cannot be asked before. So that warning is turned off.
_VMAP_WARNS = Setting(lambda: True, lambda: set_vmap_warns(False), set_vmap_warns)


@dataclass(frozen=True)
class Code:
    """One call, as text that ends in its closing bracket.

    form: the shape of the result, after the first dimension, if it is not that of the value.
    out: the keyword for memory to write into; None if there is none. into: the call to use then, if it is another one.
    view: whether the result shares memory with its operand.
    local: whether element i of the result needs only elements i of the operands.
    """

    text: str
    form: tuple[Any, ...] | None = None
    out: str | None = None
    view: bool = False
    local: bool = False
    into: str | None = None

    def writing(self, destination: str) -> str:
        """The call that writes its result into a destination."""
        return f"{(self.into or self.text)[:-1]}, {self.out}={destination})"


class OperandNames(Protocol):
    """What a rule may ask: names and shapes of operands; see `tensors.Tensors`."""

    def is_row(self, value: Val) -> bool: ...
    def spec(self, value: Val) -> Spec: ...
    def row(self, value: Val, shape: Sequence[int] | None = None) -> str: ...
    def flat(self, value: Val, width: int) -> str: ...
    def every(self, value: Val) -> str: ...
    def raw(self, tree: Any) -> str: ...
    def object(self, thing: Any) -> str: ...


Rule = Callable[[OperandNames, Op], Code | None]


def call(n: OperandNames, function: Any, *args: Any, **kwargs: Any) -> Code:
    """A plain call; its arguments are texts (wrapped in `Verbatim`), values or constants."""
    texts = [a.text if isinstance(a, Verbatim) else n.raw(a) for a in args]
    texts += [f"{k}={v.text if isinstance(v, Verbatim) else n.raw(v)}" for k, v in kwargs.items()]
    return Code(f"{n.object(function)}({', '.join(texts)})")


@dataclass(frozen=True)
class Verbatim:
    text: str


def pointwise(function: Any, out: str | None = None, into: Any = None) -> Rule:
    """The rule of an elementwise op: rows of lower rank get dimensions of size one after B."""

    def rule(n: OperandNames, op: Op) -> Code:
        shapes = {n.spec(v).shape for v in op.operands}
        rank = max(map(len, shapes), default=0)
        flat = (math.prod(*shapes),) if len(shapes) == 1 and all(map(n.is_row, op.operands)) else None

        def operand(tree: Any) -> str:
            if not isinstance(tree, Val) or not n.is_row(tree):
                return n.raw(tree)
            shape = n.spec(tree).shape
            return n.row(tree, flat or (1,) * (rank - len(shape)) + shape)

        texts = [operand(a) for a in op.args] + [f"{k}={operand(v)}" for k, v in op.kwargs]
        other = f"{n.object(into)}({', '.join(texts)})" if into else None
        return Code(f"{n.object(function)}({', '.join(texts)})", flat, out, local=True, into=other)

    return rule


def along(function: Any, place: int = 1, out: str | None = None) -> Rule:
    """The rule of an op along dimensions that are its argument at `place`: they are shifted by one."""

    def rule(n: OperandNames, op: Op) -> Code | None:
        rank = len(n.spec(op.args[0]).shape)
        dims = op.args[place] if len(op.args) > place else None
        if rank == 0 or dims is None or dims == ():
            return None
        shifted = tuple(d % rank + 1 for d in dims) if isinstance(dims, tuple) else dims % rank + 1
        args = [Verbatim(n.every(a)) if isinstance(a, Val) else a for a in op.args]
        args[place] = shifted
        code = call(n, function, *args, **dict(op.kwargs))
        return Code(code.text, out=out)

    return rule


def leading(
    function: Any,
    sizes: int | None = None,
    dim: int | None = None,
    fixed: tuple[int, ...] = (),
    dense: tuple[int, ...] = (),
) -> Rule:
    """The rule of an op that allows further first dimensions.

    The argument at place `sizes` is a size, which gets B in front; that at place `dim` is shifted by one. Operands at
    `fixed` places must be shared; the op reads those at `dense` places as if they were contiguous.
    """

    def rule(n: OperandNames, op: Op) -> Code | None:
        if any(isinstance(op.args[p], Val) and n.is_row(op.args[p]) for p in fixed):
            return None
        args = [Verbatim(n.every(a)) if isinstance(a, Val) and p not in fixed else a for p, a in enumerate(op.args)]
        for p in dense:
            args[p] = Verbatim(f"{args[p].text}.contiguous()")
        if sizes is not None:
            args[sizes] = Verbatim(f"({', '.join(['B', *map(str, op.args[sizes])])},)")
        if dim is not None:
            rank = len(op.args[sizes]) if sizes is not None else len(n.spec(op.args[0]).shape)
            args[dim] = op.args[dim] % rank + 1
        return call(n, function, *args, **dict(op.kwargs))

    return rule


def by_vmap(n: OperandNames, op: Op) -> Code:
    if op.is_random or not op.operands:
        raise CaptureError(f"no rule for {op.name}")
    levels = tuple(0 if n.is_row(v) else None for v in op.operands)
    return Code(f"{n.object(Mapped(op, levels))}({', '.join(n.raw(v) for v in op.operands)})", view=True)


class Mapped:
    """An op without a rule, by torch.func.vmap over the operands that differ between rows."""

    def __init__(self, op: Op, in_dims: tuple[int | None, ...]) -> None:
        self.op, self.__name__ = op, "vmap_" + str(op.name).replace(".", "_")
        self.in_dims = in_dims
        self.mapped = torch.func.vmap(self._one, in_dims=in_dims)

    def _one(self, *operands: torch.Tensor) -> Any:
        given = iter(operands)
        args, kwargs = swap_vals((self.op.args, [v for _, v in self.op.kwargs]), lambda _: next(given))
        names = [k for k, _ in self.op.kwargs]
        result = self.op.target(*map(_listed, args), **dict(zip(names, map(_listed, kwargs), strict=True)))
        if isinstance(result, tuple):  # some ops return None for results a device does not need; vmap wants tensors
            return tuple(operands[0].new_empty(0) if value is None else value for value in result)
        if isinstance(self.op.spec, Spec) and tuple(result.shape) != self.op.spec.shape:
            raise CaptureError(f"{self.op.name} gives another shape under vmap")
        return result

    def __call__(self, *operands: torch.Tensor) -> Any:
        quiet = Settled(_VMAP_WARNS)
        return inside((quiet,), self._mapped, quiet, *operands)

    def _mapped(self, quiet: Settled, *operands: torch.Tensor) -> Any:
        quiet.begin()
        return self.mapped(*operands)


def _listed(argument: Any) -> Any:
    return list(argument) if isinstance(argument, tuple) else argument
