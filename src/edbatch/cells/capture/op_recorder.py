"""A dispatch mode that writes down the ops of a function as a body. In: the ops that reach the mode, which are
decomposed further (see `decompose`). Out: a `Body`.

make_fx would do the same, but takes three times as long.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from edbatch.cells.body.body import Body, Op, Val, constant
from edbatch.cells.capture.decompose import KEEP, decompositions
from edbatch.errors import CaptureError
from edbatch.spec import Spec
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import QuietDispatchMode
from edbatch.torch_insides.ops import is_composite, overload_of, schema_of
from edbatch.torch_insides.transforms import innermost_transform

_LIFT = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
_METADATA = {"squeeze_", "unsqueeze_", "t_", "transpose_", "detach_"}  # in place, but data stays as it is


class InPlace(Exception):
    """The function writes in place: it has to be captured again, with torch's functionalization."""


class OpRecorder(QuietDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every op that reaches it, decomposed. Tensors are told apart by identity. Further inputs may be added
    at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Op | str] = []  # one per value: an op, or the kind of an input
        self.inputs: dict[str, list[tuple[Val, Spec]]] = {"row": [], "shared": [], "tangent": []}
        self.value_of: dict[int, Val] = {}
        self.alive: list[Any] = []  # holds tensors: their ids stay valid only while they live
        self.table = decompositions()

    def input(self, kind: str, tensor: torch.Tensor) -> None:
        value = self._append(kind, tensor)
        self.inputs[kind].append((value, Spec.of(tensor)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if innermost_transform() is not None:  # its tensors are not what they seem: vmap hides a dimension
            raise CaptureError("it applies a transform of torch.func, such as vmap, to its values")
        if func.namespace == "prim":  # not ops but questions, nearly always for x.device
            return args[0].fake_device if func is torch.ops.prim.device.default else func(*args, **kwargs)
        for decompose in (self.table.get(func), func.decompose if func not in KEEP and is_composite(func) else None):
            if decompose is not None:
                with self:
                    try:
                        result = decompose(*args, **kwargs)
                    except ZeroDivisionError:  # torch's decomposition divides by the number of elements
                        continue
                if result is not NotImplemented:
                    return result
        if func in _LIFT and id(args[0]) not in self.value_of:
            result = func(*args, **kwargs)
            self._append(Op(constant, (args[0],), (), Spec.of(result)), result)
            return result
        schema = schema_of(func)
        name = schema.name.rpartition(":")[2]
        if schema.is_mutable and name not in _METADATA:
            raise InPlace
        places, rebuild = pytree.tree_flatten((args, kwargs))
        places = [self.value(a) if isinstance(a, torch.Tensor) else a for a in places]
        result = func(*args, **kwargs)
        if name in _METADATA:
            func = getattr(getattr(torch.ops.aten, name[:-1]), overload_of(func))
        args, kwargs = pytree.tree_unflatten(places, rebuild)
        self._write(func, args, kwargs, result)
        return result

    def _write(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            spec: Any = Spec.of(result)
        elif isinstance(result, (tuple, list)):
            spec = tuple(Spec.of(item) if isinstance(item, torch.Tensor) else None for item in result)
        else:
            return
        whole = self._append(Op(func, plain(args), tuple((k, plain(v)) for k, v in kwargs.items()), spec), result)
        if not isinstance(result, torch.Tensor):
            for place, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    self._append(Op(operator.getitem, (whole, place), (), Spec.of(item)), item)

    def _append(self, entry: Op | str, result: Any) -> Val:
        self.entries.append(entry)
        value = Val(len(self.entries) - 1)
        self.value_of[id(result)] = value
        self.alive.append(result)
        return value

    def value(self, tensor: torch.Tensor) -> Val:
        known = self.value_of.get(id(tensor))
        if known is None:
            raise CaptureError(
                f"a tensor of shape {tuple(tensor.shape)} came from outside in a way capture cannot follow"
            )
        return known

    def op_number(self, tensor: torch.Tensor) -> int | None:
        """How many ops were written down before the one that made a tensor; None when no op did."""
        value = self.value_of.get(id(tensor))
        if value is None or isinstance(self.entries[value.index], str):
            return None
        return sum(not isinstance(entry, str) for entry in self.entries[: value.index])

    def body(self, outputs: Any, row_grads: Any, shared_grads: Any, tangent_of: Any, reach: Any) -> Body:
        """The body, with its values renumbered so that inputs come first."""
        order = [v for kind in self.inputs.values() for v, _ in kind]
        order += [Val(i) for i, entry in enumerate(self.entries) if not isinstance(entry, str)]
        now = {v.index: Val(i) for i, v in enumerate(order)}
        ops = tuple(e.replace(lambda v: now[v.index]) for e in self.entries if not isinstance(e, str))
        rows, shared, tangents = (tuple(spec for _, spec in kind) for kind in self.inputs.values())

        def renamed(values: Any) -> tuple[Val | None, ...]:
            return tuple(None if v is None else now[v.index] for v in values)

        results = tuple(now[v.index] for v in outputs)
        gradients = renamed(row_grads), renamed(shared_grads)
        return Body(rows, shared, tangents, ops, results, *gradients, renamed(tangent_of), reach)


def plain(tree: Any) -> Any:
    """Lists as tuples, so that ops can be compared."""
    return tuple([plain(item) for item in tree]) if isinstance(tree, (list, tuple)) else tree
