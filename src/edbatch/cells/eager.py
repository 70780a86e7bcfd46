"""Cells whose functions are called as they were written, with torch's autograd, instead of compiled.

In: a function of one example and the specs of its arguments. Out: an `EagerKernel`. It calls the function one by one,
where nothing else gives right results, or once on all rows of a batch if the user marked the cell `batched=True`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from edbatch.cells.capture.modes import Modes
from edbatch.cells.eager_programs import Calls, EagerInference, EagerTraining, as_given
from edbatch.cells.kernel import Form, Lender, Mask, Programs, Read, Take
from edbatch.cells.touched import Rehearsal
from edbatch.errors import BatchError, InPlaceError, RecordingError
from edbatch.spec import OWN_RULES, Spec, own_rules
from edbatch.switches import Switches
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction
from edbatch.torch_insides.tensors import storage_number, version_of
from edbatch.torch_insides.transforms import is_wrapped
from edbatch.torch_state.surroundings import inside, undrawn


def _example(spec: Spec, lead: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """A tensor to try a cell on before there are values. Floats are positive: probabilities must be, and a loop that
    starts from 0 might not end.
    """
    if not spec.is_float:
        return spec.empty(*lead).zero_()
    return torch.empty((*lead, *spec.shape), dtype=spec.dtype).uniform_(0.1, 1.0, generator=generator).to(spec.device)


def _place(leaf: Tensor, given: Sequence[Tensor]) -> int | None:
    return next((i for i, t in enumerate(given) if t is leaf), None)


def _shared_with(value: Tensor, given: Sequence[Tensor], values: Sequence[Tensor]) -> frozenset[int]:
    """The arguments, by number, whose memory a result shares; -1 for the memory of another result."""
    if is_wrapped(value) or value.layout is not torch.strided:
        return frozenset({-1})
    memory = storage_number(value)
    found = {i for i, t in enumerate(given) if storage_number(t) == memory}
    others = [v for v in values if v is not value and v.layout is torch.strided]
    return frozenset(found | ({-1} if any(storage_number(v) == memory for v in others) else set()))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and bool(one == other)) or (one != one and other != other)


def _kinds(tree: pytree.TreeSpec, leaves: Sequence[Any]) -> str:
    """The tree of results as text, with the types of its leaves."""
    return str(pytree.tree_unflatten([type(leaf).__name__ for leaf in leaves], tree)).replace("'", "")


def _state(tensor: Tensor) -> tuple[torch.Size, int | Tensor]:
    """What a write changes: shape, and version or, for tensors made in inference mode (without a version), values."""
    return tensor.shape, tensor.clone() if tensor.is_inference() else version_of(tensor)


def _is_untouched(tensor: Tensor, before: tuple[torch.Size, int | Tensor]) -> bool:
    shape, state = before
    if tensor.shape != shape or not isinstance(state, Tensor):
        return tensor.shape == shape and version_of(tensor) == state
    return bool(((tensor == state) | (tensor != tensor)).all())


class EagerKernel:
    """`function(*rows, *shared)` called for each row, or once on all rows when `reason` is None."""

    is_current = True
    num_ops = 5  # nobody knows
    is_pure = False  # its prologue holds the autograd graphs of one mini-batch
    wanting = None
    is_ordered = False  # whether it changes what its next call reads, so that calls keep their order
    ordered: Any = None  # the kernel that keeps the order of calls, see `in_order`
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
        self._modes = Modes.current()  # those of the call that is recorded; batches run later, outside of them
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
        self.enclosed: tuple[Tensor, ...] = tuple({**known, **touched.tensors}.values())
        self.changes = tuple(touched.written.values())

    def _rehearse(
        self, rows: tuple[Spec, ...], shared: tuple[Spec, ...], lead: tuple[int, ...]
    ) -> tuple[list[Tensor], Any, Rehearsal]:
        """Calls the function once. Returns the arguments, the result and the tensors used besides the arguments."""
        generator = torch.Generator().manual_seed(0)  # torch's default generator is shared by all threads
        given = [as_given(_example(spec, lead, generator), self.grad) for spec in rows]
        others = [_example(spec, (), generator) for spec in shared]
        with torch.set_grad_enabled(self.grad), Rehearsal() as touched:
            return given, self._run(given, others), touched

    def unflatten(self, values: Sequence[Any]) -> Any:
        fresh = iter(values)
        return pytree.tree_unflatten(
            [next(fresh) if is_value else leaf for leaf, is_value in zip(self._leaves, self._is_value, strict=True)],
            self._tree,
        )

    def differentiable(self, need_rows: Mask, need_shared: Mask) -> Mask:
        if not self.grad:  # a result that is an operand itself keeps its gradient
            return tuple(i is not None and need_rows[i] for i in self._operands)
        need = any(need_rows) or any(need_shared)
        return tuple(need and spec.is_float for spec in self.outputs)

    def prologue(self, shared: Sequence[Tensor], take: Take = Spec.empty) -> Calls:
        """Shared arguments become autograd leaves, so that gradients end at each; one may be computed from another."""
        given = len(shared) - len(self.enclosed)
        leaves = [t.detach().requires_grad_(t.requires_grad) for t in shared[:given]]
        return Calls([*leaves, *shared[given:]])

    def call(
        self, rows: Sequence[Tensor], shared: Sequence[Tensor], outs: Sequence[Tensor], place: Any
    ) -> list[Tensor]:
        leaves, tree = pytree.tree_flatten(self._run(rows, shared[: len(shared) - len(self.enclosed)]))
        if tree != self._tree:
            raise BatchError(
                f"{self.name} runs one by one and gave {_kinds(tree, leaves)} where {_kinds(self._tree, self._leaves)} "
                "was expected, with which its caller has gone on; neither values nor hooks of modules may change how "
                "many results there are"
            )
        values = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._check_constants(leaves)
        with torch.no_grad(), DisableTorchFunction():  # some views raise when asked for their grad_fn
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
        """Raises if results that are no tensors differ from those of the trial run, which the caller already has."""
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

    def hoisted(self, recurrent: Mask) -> None:
        return None

    def form(self, reads: tuple[Read, ...], switches: Switches) -> Form:
        return self

    def give_up(self) -> Form | None:
        return None

    def prologue_of_inference(self, shared: Sequence[Tensor], memory: Lender) -> Calls:
        return self.prologue(shared)

    @cached_property
    def infer(self) -> Programs:
        return Programs(EagerInference(self))

    def training(self, need_rows: Mask, need_shared: Mask, need_outs: Mask) -> Programs:
        return EagerTraining(self, need_rows, need_shared).programs()
