"""Capture: runs a cell's function once on fake tensors and writes down the functional core ATen ops it is made of.

In: a function of one example's tensors and the specs of its arguments. Out: a `Captured`: a joint body (the ops of
forward and of the gradients), the enclosed tensors (real ones that the function finds by itself: parameters, buffers,
closures), and the tree of results.

A dispatch mode writes down the ops (`op_recorder`), a torch-function mode replaces real tensors by fake ones
(`stand_ins`), and autograd itself derives the backward ops, so custom autograd functions, `detach` and `no_grad` keep
their meaning. A function that writes in place is run again under torch's functionalization.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from edbatch.cells.body.body import Body, Val
from edbatch.cells.capture.cutting import Cutting
from edbatch.cells.capture.fake import FakeMode
from edbatch.cells.capture.op_recorder import InPlace, OpRecorder
from edbatch.cells.capture.stand_ins import Lend, Unassigned, lend_applied
from edbatch.errors import CaptureError, RecordingError
from edbatch.spec import Spec, is_tensor, own_rules
from edbatch.torch_insides import pytree
from edbatch.torch_insides.fake import (
    LOG,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from edbatch.torch_insides.modes import (
    DisableAutocast,
    InferenceMode,
    from_functional,
    functionalize,
    is_functional,
    is_functionalizing,
    set_saving_traced,
    to_functional,
    without_dispatch_modes,
)
from edbatch.torch_insides.tensors import differentiate, fake_mode_of, is_view, storage_number, version_of
from edbatch.torch_state.hooks import Setting, Settled, applying, hooked
from edbatch.torch_state.surroundings import (
    Made,
    Patience,
    Surroundings,
    has_grad,
    inside,
)

# In a body, attention is plain matrix products. So all kinds but "math" are turned off meanwhile. Of each kind: whether
# it is on, what sets it for the capture, what sets it back.
_ATTENTION = [
    Setting(is_on, partial(turn, turn is torch.backends.cuda.enable_math_sdp), turn)
    for is_on, turn in (
        (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
        (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
        (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
        (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    )
]
# Fake tensors that do not fit together raise an error; torch's long log message about it is turned off.
_LOGGING = Setting(lambda: LOG.disabled, partial(setattr, LOG, "disabled", True), partial(setattr, LOG, "disabled"))
KEEPS = (
    "a cell keeps a tensor that it computes where it outlives the call: in a closure, a global, an object of your own "
    "or a cache such as functools.cache. While a cell is captured tensors have no values; compute it before the "
    "batched call, in __init__ for example, or keep it in an attribute of the cell's module; and empty what holds it "
    "now"
)
_LOCK = threading.RLock()  # fake tensors and decompositions are not for two threads at once


@dataclass(frozen=True)
class Captured:
    """A captured function. `enclosed` are its enclosed tensors. `leaves` are the results in pytree order: None for a
    tensor, else the constant in a 1-tuple."""

    body: Body
    enclosed: tuple[torch.Tensor, ...]
    leaves: tuple[tuple[Any] | None, ...]
    tree: pytree.TreeSpec
    sparse: frozenset[int]  # shared inputs that are tables of an embedding with sparse=True
    writes: tuple[int, ...] = ()  # rows that are written in place: their new values are the last outputs of the body
    same: tuple[int | None, ...] = ()  # for each tensor of the results: the written row that it is, if any
    views: tuple[frozenset[int], ...] = ()  # for each output: the rows whose memory it shares; -1: other memory
    seen: frozenset[int] = frozenset()  # with cuts: the ops, by number, whose results were seen by Python code
    ahead: Body | None = None  # with cuts: the body of what was cut off; its outputs are the last rows of `body`


class _Trace:
    """One run of the function: owns the modes, and knows which tensors belong to this run."""

    def __init__(self, functional: bool, cuts: Collection[int] | None = None) -> None:
        self.fake = FakeMode()
        self.recorder = OpRecorder()
        self.functional = functional
        self.grad = torch.is_grad_enabled()
        self.lend = Lend(self.stand_in)
        self.enclosed: dict[int, torch.Tensor] = {}
        self.shared: list[torch.Tensor] = []
        self.stand_ins: dict[int, torch.Tensor] = {}
        self.cutting = None if cuts is None else Cutting(cuts, self.recorder, self._leaf)

    def _leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        """A further row input, in place of a value that is computed ahead (see `cutting`)."""
        return self.input("row", Spec.of(tensor), tensor.stride(), tensor.requires_grad)

    def input(self, kind: str, spec: Spec, stride: Any = None, requires_grad: bool = False) -> torch.Tensor:
        """A new input of the body, as a leaf of autograd."""
        # A function captured under no_grad may turn gradients on. For a device that is missing, autograd would abort.
        requires_grad = requires_grad and (self.grad or spec.device.type == "cpu")
        with without_dispatch_modes(), _Functionalized(False), self.fake:
            if stride is None:
                tensor = torch.empty(spec.shape, dtype=spec.dtype, device=spec.device)
            else:
                tensor = torch.empty_strided(spec.shape, stride, dtype=spec.dtype, device=spec.device)
            tensor.requires_grad_(requires_grad)
        self.recorder.input(kind, tensor)
        return to_functional(tensor) if self.functional else tensor

    def is_ours(self, tensor: torch.Tensor) -> bool:
        return is_functional(tensor) or fake_mode_of(tensor) is self.fake

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """For tensors of this run the tensor itself; for others a fake one of the same shape, strides and dtype."""
        if self.is_ours(tensor):
            return tensor
        if isinstance(fake_mode_of(tensor), FakeMode):
            raise RecordingError(KEEPS)  # the cell kept it from an earlier capture
        if id(tensor) not in self.stand_ins:
            if tensor.layout is not torch.strided:
                raise CaptureError(f"a tensor of layout {tensor.layout} is used inside")
            if (special := own_rules(tensor)) is not None:
                raise CaptureError(f"a tensor of class {special} is used inside, which computes by rules of its own")
            made = self.input("shared", Spec.of(tensor), tensor.stride(), tensor.requires_grad)
            self.shared.append(made)
            self.stand_ins[id(tensor)] = made
            self.enclosed[id(tensor)] = tensor
        return self.stand_ins[id(tensor)]

    def value(self, tensor: torch.Tensor) -> Val:
        if is_functional(tensor):
            tensor = from_functional(tensor)
        return self.recorder.value(tensor)

    def run(self, function: Callable[..., Any], rows: Sequence[Spec], shared: Sequence[Spec]) -> Captured:
        with self.fake, self.recorder, _Functionalized(self.functional):
            leaves = [self.input("row", spec, requires_grad=spec.is_float) for spec in rows]
            self.shared += [self.input("shared", spec, requires_grad=spec.is_float) for spec in shared]
            with torch.enable_grad():  # copies, because leaves cannot be written in place
                given = [x.clone() if x.requires_grad else x for x in leaves]
            explicit, before = list(self.shared), [self.value(t) for t in given]
            self.lend.given = [*given, *explicit]
            result = inside((Unassigned(function),), self._run_lending, function, *given, *explicit)
            flat, tree = pytree.tree_flatten(result)
            results = [leaf for leaf in flat if is_tensor(leaf)]
            writes = tuple(i for i, t in enumerate(given) if self.value(t) != before[i])
            self._check_mutation(given, rows)
            outs = [*map(self.stand_in, results), *[given[i] for i in writes]]
            off = list(self.cutting.off.values()) if self.cutting is not None else []
            body = self._body([*leaves, *(leaf for _, leaf in off)], outs, retain=bool(off))
            ahead = self._body(leaves, [value for value, _ in off]) if off else None
        places = {id(t): i for i, t in enumerate(self.shared)}
        sparse = frozenset(places[id(t)] for t in self.lend.sparse if id(t) in places)
        constants = tuple(None if is_tensor(leaf) else (leaf,) for leaf in flat)
        seen = frozenset(self.cutting.seen if self.cutting is not None else ())
        row_of = {id(given[i]): i for i in writes}
        same = tuple(row_of.get(id(t)) for t in results)
        views = self._views(given, outs, same, writes)
        return Captured(body, tuple(self.enclosed.values()), constants, tree, sparse, writes, same, views, seen, ahead)

    def close(self) -> list[weakref.ref[torch.Tensor]]:
        """Drop all tensors. Returns weak references to them."""
        made = [weakref.ref(t) for t in self.recorder.alive if isinstance(t, torch.Tensor)]
        off = {} if self.cutting is None else self.cutting.off
        for held in (self.recorder.alive, self.shared, self.stand_ins, self.lend.sparse, off):
            held.clear()
        self.lend.given = ()
        return made

    def _views(
        self,
        given: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
        same: Sequence[int | None],
        writes: Sequence[int],
    ) -> tuple[frozenset[int], ...]:
        """For each output the rows whose memory it shares; -1 if it shares that of a shared tensor or another output.
        The new value of a written row, and a result that is this row itself, do not count as sharing with the row."""
        owners: dict[int, set[int]] = {}
        for i, t in enumerate(given):
            owners.setdefault(storage_number(t), set()).add(i)
        for t in self.shared:
            owners.setdefault(storage_number(t), set()).add(-1)
        memories = [storage_number(t) for t in outs]
        others = [m for m, row in zip(memories, (*same, *[None] * len(writes)), strict=True) if row is None]
        found = [owners.get(m, set()) | ({-1} if others.count(m) > 1 else set()) for m in memories]
        own = [*[set() if row is None else {row} for row in same], *[{row} for row in writes]]
        return tuple([frozenset(rows - mine) for rows, mine in zip(found, own, strict=True)])

    def _run_lending(self, function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
        """The function's result; real tensors that it uses are replaced by fake ones meanwhile."""
        if self.cutting is None:
            applying.set(partial(lend_applied, self.stand_in))
            with self.lend:
                return function(*inputs)
        applying.set(partial(lend_applied, self.stand_in, applied=self.cutting.applied))
        with self.cutting, self.lend:
            return function(*inputs)

    def _body(self, leaves: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], retain: bool = False) -> Body:
        """The body that computes `outs`, and also the gradients of `leaves` (the first rows) and of shared inputs."""
        reach = self._reach(leaves, outs)
        row_grads, shared_grads, tangent_of = self._gradients(leaves, outs, retain)
        row_grads += [None] * (len(self.recorder.inputs["row"]) - len(leaves))
        return self.recorder.body([self.value(t) for t in outs], row_grads, shared_grads, tangent_of, reach)

    def _reach(self, leaves: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> tuple[frozenset[int], ...]:
        """For each output the inputs to which autograd sends its gradient."""
        first = len(self.recorder.inputs["row"])
        inputs = [*enumerate(leaves), *enumerate(self.shared, first)]
        number_of = {_end(t): i for i, t in inputs if t.requires_grad}
        ends = [_ends_behind(out) if _has_gradient(out) else [] for out in outs]
        return tuple([frozenset(number_of[end] for end in found if end in number_of) for found in ends])

    def _check_mutation(self, given: Sequence[torch.Tensor], rows: Sequence[Spec]) -> None:
        if any(tuple(t.shape) != spec.shape for t, spec in zip(given, rows, strict=True)):
            raise CaptureError("the body changes the shape of one of its arguments in place")
        if any(version_of(t) for t in self.shared):
            raise CaptureError("the body writes into a parameter or buffer in place")

    def _gradients(self, leaves: Sequence[Any], outs: Sequence[Any], retain: bool) -> tuple[Any, Any, Any]:
        roots = [(o, self.input("tangent", Spec.of(o))) if _has_gradient(o) else None for o in outs]
        found = [root for root in roots if root is not None]
        tangent_of = [None if root is None else self.value(root[1]) for root in roots]
        wanted = [t for t in (*leaves, *self.shared) if t.requires_grad]
        grads: dict[int, Any] = {}
        if found and wanted:
            with DisableAutocast():
                results = differentiate(found, wanted, retain)
            grads = {id(t): None if g is None else self.value(g) for t, g in zip(wanted, results, strict=True)}
        row_grads = [grads.get(id(t)) for t in leaves]
        return row_grads, [grads.get(id(t)) for t in self.shared], tangent_of


def _end(leaf: torch.Tensor) -> Any:
    """Where gradients of an input end: at its grad_fn, if it has one (under functionalization), or at itself."""
    return id(leaf) if leaf.grad_fn is None else leaf.grad_fn


def _ends_behind(out: torch.Tensor) -> list[Any]:
    """All the places where gradients of an output may end."""
    if out.grad_fn is None:
        return [_end(out)]
    nodes = [out.grad_fn]
    seen = set(nodes)
    for node in nodes:  # the list grows meanwhile
        behind = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= behind
        nodes += behind
    return [id(node.variable) if hasattr(node, "variable") else node for node in nodes]


def _has_gradient(out: torch.Tensor) -> bool:
    """Whether a gradient flows back from a result. A view made under no_grad may have requires_grad, but none flows."""
    return out.requires_grad and (out.grad_fn is not None or not is_view(out))


def capture(
    function: Callable[..., Any], rows: Sequence[Spec], shared: Sequence[Spec], cuts: Collection[int] | None = None
) -> Captured:
    """Captures a function in the caller's grad mode and autocast state.

    Args:
        cuts: None for the whole body. Else the numbers of ops at whose results it is cut in two (`Captured.ahead`); an
        empty list only finds out where it could be cut (`Captured.seen`).

    Raises:
        CaptureError: the function is no fixed graph of ops. Errors of the function itself are passed on.
    """
    patience = Patience()  # holds interrupts back: one inside torch's question for the device would end the process
    settled = Settled(*_ATTENTION, _LOGGING)
    contexts = patience, _LOCK, Surroundings(applying), Made(InferenceMode, False), settled, _Unsaved(), hooked()
    return inside(contexts, _capture, (patience, settled), function, rows, shared, cuts, has_grad())


def _capture(
    contexts: tuple[Patience, Settled],
    function: Callable[..., Any],
    rows: Sequence[Spec],
    shared: Sequence[Spec],
    cuts: Collection[int] | None,
    grad: bool,
) -> Captured:
    for context in contexts:
        context.begin()
    set_saving_traced(True)
    torch.set_autocast_cache_enabled(False)  # autocast must not remember casts of fake tensors
    with without_dispatch_modes(), torch.set_grad_enabled(grad):
        try:
            try:
                return _traced(_Trace(functional=False, cuts=cuts), function, rows, shared)
            except InPlace:
                if cuts is not None:
                    raise  # a value computed ahead could be written later, through a view
            return _traced(_Trace(functional=True), function, rows, shared)
        except InPlace:
            raise CaptureError("the body writes in place in a way that cannot be made functional") from None
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise CaptureError(f"control flow or shapes depend on data ({error})") from error
        except (UnsupportedFakeTensorException, UnsupportedOperatorException, NotImplementedError) as error:
            raise CaptureError(f"an op without shape inference ({error})") from error


def _traced(trace: _Trace, function: Callable[..., Any], rows: Sequence[Spec], shared: Sequence[Spec]) -> Captured:
    """What a trace captures. Raises if a tensor of the trace outlives it."""
    captured = trace.run(function, rows, shared)
    made = trace.close()
    if any(ref() is not None for ref in made):
        gc.collect()  # perhaps only a reference cycle holds it
        if any(ref() is not None for ref in made):
            raise RecordingError(KEEPS)
    return captured


class _Unsaved:
    """A context at whose end hooks for saved tensors are on or off in this thread, as they were before."""

    def __enter__(self) -> None:
        self._was_tracing = _is_tracing()

    def __exit__(self, *error: Any) -> None:
        set_saving_traced(self._was_tracing)


def _is_tracing() -> bool:
    """Whether hooks for saved tensors are off. torch tells the old setting only to a caller that sets a new one."""
    is_tracing: bool = set_saving_traced(False)
    if is_tracing:  # should an interrupt come before this, the tracer that runs around us sets it back
        set_saving_traced(True)
    return is_tracing


class _Functionalized:
    """A context in which torch's functionalization is on or off. While it is on, in-place ops reach the recorder as
    functional ones."""

    def __init__(self, on: bool):
        self._on = on

    def __enter__(self) -> None:
        self._before = is_functionalizing()
        functionalize(self._on)

    def __exit__(self, *error: Any) -> None:
        functionalize(self._before)
