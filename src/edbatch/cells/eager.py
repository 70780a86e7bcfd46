"""Cells run as they are, by torch's autograd.

One by one where nothing else is right, or once on stacked rows (`batched=True`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from edbatch.cells.capture.in_place import is_in_place
from edbatch.cells.capture.modes import Modes
from edbatch.cells.kernel import Mask, Take
from edbatch.errors import BatchError, GradientError, InPlaceError, RecordingError
from edbatch.spec import OWN_RULES, Spec, own_rules
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction
from edbatch.torch_insides.tensors import base_of, is_view, storage_number, version_of
from edbatch.torch_insides.transforms import is_wrapped
from edbatch.torch_state.surroundings import inside, undrawn


class _Touched(TorchFunctionMode):
    """Collects the tensors with gradient that a function touches beside its arguments, and those that it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[int, Tensor] = {}
        self.written: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args else None
        if is_in_place(func) and isinstance(first, Tensor) and first.grad_fn is None and not is_wrapped(first):
            self.written[id(first)] = first
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and not is_wrapped(leaf):
                self.touch(leaf)
        return func(*args, **(kwargs or {}))

    def touch(self, tensor: Tensor) -> None:
        if tensor.is_leaf and tensor.requires_grad and not _is_view_without_grad(tensor):
            self.tensors[id(tensor)] = tensor


def _is_view_without_grad(leaf: Tensor) -> bool:
    """Whether a leaf is a view that was made under no_grad: it says that it requires a gradient, and none flows."""
    with DisableTorchFunction():
        return is_view(leaf) and (base := base_of(leaf)) is not None and base.requires_grad


class _Rehearsal(_Touched):
    """What is written into any tensor meanwhile, as an embedding with `max_norm` does, is taken back at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[int, tuple[Tensor, Tensor, int]] = {}

    def touch(self, tensor: Tensor) -> None:
        super().touch(tensor)
        with DisableTorchFunction():  # else a recorder would see it
            if id(tensor) not in self._before and tensor.layout is torch.strided and not tensor.is_inference():
                self._before[id(tensor)] = tensor, tensor.detach().clone(), version_of(tensor)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        with torch.no_grad(), DisableTorchFunction():
            for tensor, value, version in self._before.values():
                if version_of(tensor) != version:
                    self.written[id(tensor)] = tensor
                    if tensor.shape == value.shape:
                        tensor.copy_(value)


@dataclass
class _Calls:
    """The autograd graphs of one mini-batch, batch by batch."""

    shared: Sequence[Tensor]
    graphs: list[list[tuple[list[Tensor], list[Tensor]]]] = field(default_factory=list)


def _example(spec: Spec, lead: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Something to run a cell on while no value exists yet. Positive.

    Probabilities must be, and loops from 0 might not end.
    """
    if not spec.is_float:
        return spec.empty(*lead).zero_()
    return torch.empty((*lead, *spec.shape), dtype=spec.dtype).uniform_(0.1, 1.0, generator=generator).to(spec.device)


def _given(tensor: Tensor, needs_grad: bool) -> Tensor:
    """A tensor that a cell may write in place, which a leaf that requires a gradient does not allow."""
    if not needs_grad or not tensor.is_floating_point():
        return tensor
    with torch.enable_grad():
        return tensor.requires_grad_().clone()


def _place(leaf: Tensor, given: Sequence[Tensor]) -> int | None:
    return next((i for i, t in enumerate(given) if t is leaf), None)


def _shared_with(value: Tensor, given: Sequence[Tensor], values: Sequence[Tensor]) -> frozenset[int]:
    """The arguments whose memory a result shares; -1 for that of another result."""
    if is_wrapped(value) or value.layout is not torch.strided:
        return frozenset({-1})
    memory = storage_number(value)
    found = {i for i, t in enumerate(given) if storage_number(t) == memory}
    others = [v for v in values if v is not value and v.layout is torch.strided]
    return frozenset(found | ({-1} if any(storage_number(v) == memory for v in others) else set()))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and bool(one == other)) or (one != one and other != other)


def _kinds(tree: pytree.TreeSpec, leaves: Sequence[Any]) -> str:
    """How results are put together."""
    return str(pytree.tree_unflatten([type(leaf).__name__ for leaf in leaves], tree)).replace("'", "")


def _state(tensor: Tensor) -> tuple[torch.Size, int | Tensor]:
    """What a write changes: the version, which tensors made in inference mode do not have, or else the values."""
    return tensor.shape, tensor.clone() if tensor.is_inference() else version_of(tensor)


def _is_untouched(tensor: Tensor, before: tuple[torch.Size, int | Tensor]) -> bool:
    shape, state = before
    if tensor.shape != shape or not isinstance(state, Tensor):
        return tensor.shape == shape and version_of(tensor) == state
    return bool(((tensor == state) | (tensor != tensor)).all())


class EagerKernel:
    """`function(*rows, *shared)` called for each row, or once on all rows when `reason` is None."""

    is_current = True
    is_ordered = False  # it changes what its next call reads: calls keep their order
    ordered: Any = None  # the same with turns, see `in_order`
    writes: tuple[int, ...] = ()
    same: tuple[int | None, ...] = ()

    def __init__(
        self,
        function: Callable[..., Any],
        rows: tuple[Spec, ...],
        shared: tuple[Spec, ...],
        *,
        name: str,
        parameters: Iterable[Tensor],
        reason: str | None,
        grad: bool,
    ):
        self.function = function
        self.name = name
        self.reason = reason
        self.grad = grad
        self._modes = Modes.current()  # a mini-batch runs outside of them
        self._num_rows = len(rows)
        lead = () if reason is not None else (2,)
        given, result, touched = inside(undrawn(), self._rehearse, rows, shared, lead)
        leaves, self._tree = pytree.tree_flatten(result)
        self._operands = tuple(_place(leaf, given) for leaf in leaves if isinstance(leaf, Tensor))
        self._leaves = leaves
        self._is_value = [isinstance(leaf, Tensor) for leaf in leaves]
        values = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if reason is None and any(v.dim() == 0 or v.shape[0] != 2 for v in values):
            raise RecordingError(
                "a cell marked batched=True must return tensors whose first dimension is that of its operands"
            )
        special = next(filter(None, map(own_rules, values)), None)
        if special is not None:
            raise RecordingError(f"{name} returns a tensor of class {special}, which {OWN_RULES}")
        self.outputs = tuple(Spec(tuple(v.shape[len(lead) :]), v.dtype, v.device) for v in values)
        self.views = tuple(_shared_with(v, given, values) for v in values)
        known = {id(p): p for p in parameters if p.requires_grad}
        self.bound: tuple[Tensor, ...] = tuple({**known, **touched.tensors}.values())
        self.changes = tuple(touched.written.values())

    def _rehearse(
        self, rows: tuple[Spec, ...], shared: tuple[Spec, ...], lead: tuple[int, ...]
    ) -> tuple[list[Tensor], Any, _Rehearsal]:
        """Arguments, what a call with them gives, and the tensors that it touches beside them."""
        generator = torch.Generator().manual_seed(0)  # torch's own is one for all threads
        given = [_given(_example(spec, lead, generator), self.grad) for spec in rows]
        others = [_example(spec, (), generator) for spec in shared]
        with torch.set_grad_enabled(self.grad), _Rehearsal() as touched:
            return given, self._run(given, others), touched

    def unflatten(self, values: Sequence[Any]) -> Any:
        fresh = iter(values)
        return pytree.tree_unflatten(
            [next(fresh) if is_value else leaf for leaf, is_value in zip(self._leaves, self._is_value, strict=True)],
            self._tree,
        )

    def differentiable(self, need_rows: Mask, need_shared: Mask) -> Mask:
        if not self.grad:  # what is an operand itself keeps its gradient
            return tuple(i is not None and need_rows[i] for i in self._operands)
        need = any(need_rows) or any(need_shared)
        return tuple(need and spec.is_float for spec in self.outputs)

    def prologue(self, shared: Sequence[Tensor], take: Take = Spec.empty) -> _Calls:
        """Arguments are leaves of their own here: one may be computed from another, and gradients end at each."""
        given = len(shared) - len(self.bound)
        leaves = [t.detach().requires_grad_(t.requires_grad) for t in shared[:given]]
        return _Calls([*leaves, *shared[given:]])

    def call(
        self, rows: Sequence[Tensor], shared: Sequence[Tensor], outs: Sequence[Tensor], place: Any
    ) -> list[Tensor]:
        leaves, tree = pytree.tree_flatten(self._run(rows, shared[: len(shared) - len(self.bound)]))
        if tree != self._tree:
            raise BatchError(
                f"{self.name} runs one by one and gave {_kinds(tree, leaves)} where {_kinds(self._tree, self._leaves)} "
                "was expected, with which its caller has gone on; neither values nor hooks of modules may change how "
                "many results there are"
            )
        values = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._check_constants(leaves)
        with torch.no_grad(), DisableTorchFunction():  # some views may no longer be asked for their gradient
            for value, spec, out in zip(values, self.outputs, outs, strict=True):
                if value.shape != out[place].shape or value.dtype != spec.dtype:
                    raise BatchError(
                        f"{self.name} runs one by one and gave {Spec.of(value)} where {spec} was expected; its results "
                        "must have the same shapes and dtypes for operands of the same shapes, whatever their values"
                    )
                out[place].copy_(value)
        return values

    def _run(self, rows: Sequence[Tensor], shared: Sequence[Tensor]) -> Any:
        before = list(map(_state, rows))
        result = self._modes.around(lambda: self.function(*rows, *shared))
        if not all(map(_is_untouched, rows, before)):
            raise InPlaceError(
                f"{self.name} runs one by one and writes one of its arguments in place, which its caller would not "
                "see; let it compute a new value and return that"
            )
        return result

    def _check_constants(self, leaves: Sequence[Any]) -> None:
        """What is no tensor was given to the caller before anything ran: it must be the same for all values."""
        others = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        expected = [leaf for leaf, is_value in zip(self._leaves, self._is_value, strict=True) if not is_value]
        if len(others) != len(expected) or not all(map(_is_same, others, expected)):
            raise BatchError(
                f"{self.name} runs one by one and returns something besides tensors that depends on values (now "
                f"{others}, before {expected}), but its caller has gone on with what was returned first; return a "
                "tensor instead"
            )

    def places(self, B: int) -> list[Any]:
        return list(range(B)) if self.reason is not None else [slice(None)]

    def infer(self, B: int, rows: Any, pro: _Calls, outs: Any) -> None:
        for place in self.places(B):
            self.call([row[place].clone() for row in rows], pro.shared, outs, place)  # the user may keep them

    def training(self, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> EagerTraining:
        return EagerTraining(self, need_rows, need_shared, need_outs)


class EagerTraining:
    """Keeps one autograd graph per call, and differentiates them in reverse."""

    saved: tuple[Spec, ...] = ()
    deferred: tuple[Spec, ...] = ()

    def __init__(self, kernel: EagerKernel, need_rows: Mask, need_shared: Mask, need_outs: Mask):
        self.kernel = kernel
        self.need_rows, self.need_shared, self.need_outs = need_rows, need_shared, need_outs
        self.backward_rows = self.finish_rows = (False,) * len(need_rows)
        self.backward_outs = self.finish_outs = (False,) * len(need_outs)

    def forward(self, B: int, rows: Any, pro: _Calls, outs: Any, saved: Any) -> None:
        graphs = []
        allowed = {id(t) for t in pro.shared}
        for place in self.kernel.places(B):
            operands = [
                row[place].clone().requires_grad_(need) for row, need in zip(rows, self.need_rows, strict=True)
            ]  # arenas change
            allowed.update(map(id, operands))
            given = [_given(t, t.requires_grad) for t in operands]
            with torch.set_grad_enabled(self.kernel.grad), _Touched() as touched:
                values = self.kernel.call(given, pro.shared, outs, place)
            if any(key not in allowed for key in touched.tensors):
                raise RecordingError(
                    "a cell that runs one by one used a parameter that it had not used before and that is not "
                    "registered in it; make the cell an nn.Module that owns its parameters"
                )
            graphs.append((operands, values))
        pro.graphs.append(graphs)

    def backward(
        self, B: int, rows: Any, outs: Any, saved: Any, pro: _Calls, out_grads: Any, deferred: Any, sums: Any
    ) -> Any:
        at = sums["batch"] = sums.get("batch", len(pro.graphs)) - 1
        places = self.kernel.places(B)
        need = [i for i, needed in enumerate(self.need_rows) if needed]
        shared = [t for t, needed in zip(pro.shared, self.need_shared, strict=True) if needed]
        total: list[list[Tensor]] = [[] for _ in self.need_rows]
        for place, (operands, values) in zip(places, pro.graphs[at], strict=True):
            pairs = [(v, g[place]) for v, g in zip(values, out_grads, strict=True) if g is not None and v.requires_grad]
            inputs = [*[operands[i] for i in need], *shared]
            grads: Sequence[Tensor | None] = [None] * len(inputs)
            if pairs and inputs:
                grads = self._differentiate(pairs, inputs)
            for i, g in zip(need, grads, strict=False):
                total[i].append(torch.zeros_like(operands[i]) if g is None else g)
            for tensor, g in zip(shared, grads[len(need) :], strict=True):
                if g is not None:
                    known = sums.get(id(tensor))
                    sums[id(tensor)] = g if known is None else known + g
        join = torch.stack if self.kernel.reason is not None else lambda grads: grads[0]
        return [join(grads) if grads else None for grads in total]

    def _differentiate(self, pairs: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor]) -> Any:
        values, grads = zip(*pairs, strict=True)
        try:
            return torch.autograd.grad(values, inputs, grads, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if not any(bool(g.any()) for g in grads):  # nobody asked: only other calls of the same type have a gradient
                return [None] * len(inputs)
            raise GradientError(
                f"{self.kernel.name}: torch cannot differentiate it ({error}), and some of the calls that are batched "
                "have arguments that require a gradient; detach() the arguments"
            ) from error

    def finish(
        self, N: int, rows: Any, outs: Any, saved: Any, pro: _Calls, out_grads: Any, deferred: Any, sums: Any
    ) -> list[Tensor | None]:
        return [sums.get(id(t)) if need else None for t, need in zip(pro.shared, self.need_shared, strict=True)]
