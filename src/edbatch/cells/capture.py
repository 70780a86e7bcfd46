"""Capture: runs a cell once on fake tensors and writes down the functional core ATen ops it is made of.

In: a function of one example's tensors and the specs of its arguments. Out: a `Captured`: a joint body (forward and
gradients), the real tensors found inside (parameters, buffers, closures), and the tree of results.

A dispatch mode records the ops (make_fx would take three times as long), a torch-function mode finds the real tensors and
lends the function stand-ins, and autograd itself derives the backward ops, so custom autograd functions, `detach` and
`no_grad` keep their meaning. A body that writes in place is traced again through torch's functionalization.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from edbatch.cells.body import Body, Op, Val, constant
from edbatch.cells.decompose import EQUAL_CALLS, KEEP, decompositions
from edbatch.errors import CaptureError
from edbatch.spec import Spec

_LOCK = threading.Lock()  # fake tensors, decompositions and the patched `Function.apply` are not for two threads at once
_LIFT = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
_METADATA = {"squeeze_", "unsqueeze_", "t_", "transpose_", "detach_"}  # in place, but only on the tensor's description


@dataclass(frozen=True)
class Captured:
    """`leaves` are the results in pytree order: None where a tensor goes, else the constant wrapped in a 1-tuple."""

    body: Body
    bound: tuple[torch.Tensor, ...]
    leaves: tuple[tuple[Any] | None, ...]
    tree: pytree.TreeSpec
    sparse: frozenset[int]  # shared inputs looked up with sparse=True


class _InPlace(Exception):
    """The body writes in place: trace it again, functionalized."""


class _Lend(TorchFunctionMode):
    """Replaces real tensors by stand-ins, and calls that fake tensors cannot do by equal ones."""

    def __init__(self, stand_in: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.stand_in = stand_in
        self.sparse: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.stand_in, (args, kwargs or {}))
        if func in EQUAL_CALLS:
            return EQUAL_CALLS[func](*args, **kwargs)
        if func in (torch.nn.functional.embedding, torch.embedding):
            args, kwargs = self._dense(func, args, kwargs)
        return func(*args, **kwargs)

    def _dense(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Fake tensors know no sparse gradients: ask for a dense one and remember whose it is."""
        place, weight = (4, 0) if func is torch.embedding else (6, 1)
        if kwargs.get("sparse") or (len(args) > place and args[place]):
            self.sparse.append(args[weight] if len(args) > weight else kwargs["weight"])
            return args[:place], kwargs | {"sparse": False}
        return args, kwargs


class _Recorder(TorchDispatchMode):
    """Writes down every op that reaches it, decomposed; tensors are known by identity. Inputs may come at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Op | str] = []  # a value each: an op, or the kind of an input
        self.inputs: dict[str, list[tuple[Val, Spec]]] = {"row": [], "shared": [], "tangent": []}
        self.value_of: dict[int, Val] = {}
        self.alive: list[Any] = []  # an id stays valid while its tensor lives
        self.table = decompositions()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper would import the compiler

    def input(self, kind: str, tensor: torch.Tensor) -> None:
        value = self._append(kind, tensor)
        self.inputs[kind].append((value, Spec.of(tensor)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # questions such as x.device
            return func(*args, **kwargs)
        for decompose in (self.table.get(func), func.decompose if func not in KEEP and _is_composite(func) else None):
            if decompose is not None:
                with self:
                    result = decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
        if func in _LIFT and id(args[0]) not in self.value_of:
            result = func(*args, **kwargs)
            self._append(Op(constant, (args[0],), (), Spec.of(result)), result)
            return result
        name = func._schema.name.rpartition(":")[2]
        if func._schema.is_mutable and name not in _METADATA:
            raise _InPlace
        places, rebuild = pytree.tree_flatten((args, kwargs))
        places = [self.value(a) if isinstance(a, torch.Tensor) else a for a in places]
        result = func(*args, **kwargs)
        if name in _METADATA:
            func = getattr(getattr(torch.ops.aten, name[:-1]), func._overloadname)
        self._write(func, *pytree.tree_unflatten(places, rebuild), result)
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
            raise CaptureError(f"a tensor of shape {tuple(tensor.shape)} came from outside in a way capture cannot follow")
        return known

    def body(self, outputs: Any, row_grads: Any, shared_grads: Any, tangent_of: Any) -> Body:
        """Puts the inputs first and renumbers."""
        order = [v for kind in self.inputs.values() for v, _ in kind]
        order += [Val(i) for i, entry in enumerate(self.entries) if not isinstance(entry, str)]
        now = {v.index: Val(i) for i, v in enumerate(order)}
        ops = tuple(e.replace(lambda v: now[v.index]) for e in self.entries if not isinstance(e, str))
        rows, shared, tangents = (tuple(spec for _, spec in kind) for kind in self.inputs.values())
        results = [tuple(None if v is None else now[v.index] for v in vs) for vs in (row_grads, shared_grads, tangent_of)]
        return Body(rows, shared, tangents, ops, tuple(now[v.index] for v in outputs), *results)


class _Trace:
    """One run of the function: owns the modes and knows which tensors are ours."""

    def __init__(self, functional: bool) -> None:
        self.fake = FakeTensorMode()
        self.recorder = _Recorder()
        self.functional = functional
        self.lend = _Lend(self.stand_in)
        self.bound: dict[int, torch.Tensor] = {}
        self.shared: list[torch.Tensor] = []
        self.stand_ins: dict[int, torch.Tensor] = {}

    def input(self, kind: str, spec: Spec, stride: Any = None, requires_grad: bool = False) -> torch.Tensor:
        """A new leaf of the trace."""
        stride = stride or torch._prims_common.make_contiguous_strides_for(spec.shape)
        with _disable_current_modes(), _functionalized(False), self.fake:
            tensor = torch.empty_strided(spec.shape, stride, dtype=spec.dtype, device=spec.device)
            tensor.requires_grad_(requires_grad)
        self.recorder.input(kind, tensor)
        if not self.functional:
            return tensor
        wrapped = torch._to_functional_tensor(tensor)
        torch._mirror_autograd_meta_to(tensor, wrapped)
        return wrapped

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Ours as they are; a real one (or a fake one of somebody else) by a stand-in of the same description."""
        if torch._is_functional_tensor(tensor) or getattr(tensor, "fake_mode", None) is self.fake:
            return tensor
        if id(tensor) not in self.stand_ins:
            if tensor.layout is not torch.strided:
                raise CaptureError(f"a tensor of layout {tensor.layout} is used inside")
            grad = tensor.requires_grad and torch.is_grad_enabled()
            made = self.input("shared", Spec.of(tensor), tensor.stride(), grad)
            self.shared.append(made)
            self.stand_ins[id(tensor)] = made
            self.bound[id(tensor)] = tensor
        return self.stand_ins[id(tensor)]

    def value(self, tensor: torch.Tensor) -> Val:
        if torch._is_functional_tensor(tensor):
            torch._sync(tensor)
            tensor = torch._from_functional_tensor(tensor)
        return self.recorder.value(tensor)

    def run(self, function: Callable[..., Any], rows: Sequence[Spec], shared: Sequence[Spec]) -> Captured:
        grad = torch.is_grad_enabled()
        with self.fake, self.recorder, _functionalized(self.functional):
            leaves = [self.input("row", spec, requires_grad=grad and spec.is_float) for spec in rows]
            self.shared += [self.input("shared", spec, requires_grad=grad and spec.is_float) for spec in shared]
            given = [x.clone() if x.requires_grad else x for x in leaves]  # a leaf could not be written in place at all
            explicit = list(self.shared)
            with self.lend, _lending_apply(self.stand_in):
                result = function(*given, *explicit)
            flat, tree = pytree.tree_flatten(result)
            outs = [self.stand_in(leaf) for leaf in flat if isinstance(leaf, torch.Tensor)]
            self._check_mutation(given)
            row_grads, shared_grads, tangent_of = self._gradients(leaves, outs)
            body = self.recorder.body([self.value(t) for t in outs], row_grads, shared_grads, tangent_of)
        places = {id(t): i for i, t in enumerate(self.shared)}
        sparse = frozenset(places[id(t)] for t in self.lend.sparse if id(t) in places)
        constants = tuple(None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in flat)
        return Captured(body, tuple(self.bound.values()), constants, tree, sparse)

    def _check_mutation(self, given: Sequence[torch.Tensor]) -> None:
        if any(t._version for t in given):
            raise CaptureError("the body writes into one of its inputs in place")
        if any(t._version for t in self.shared):
            raise CaptureError("the body writes into a parameter or buffer in place")

    def _gradients(self, leaves: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> tuple[Any, Any, Any]:
        roots = [(o, self.input("tangent", Spec.of(o))) if o.requires_grad else None for o in outs]
        found = [root for root in roots if root is not None]
        tangent_of = [None if root is None else self.value(root[1]) for root in roots]
        wanted = [t for t in (*leaves, *self.shared) if t.requires_grad]
        grads: dict[int, Any] = {}
        if found and wanted:
            with torch._C._DisableAutocast():
                results = torch.autograd.grad(
                    [o for o, _ in found], wanted, [t for _, t in found], allow_unused=True, retain_graph=False
                )
            grads = {id(t): None if g is None else self.value(g) for t, g in zip(wanted, results, strict=True)}
        row_grads = [grads.get(id(t)) for t in leaves]
        return row_grads, [grads.get(id(t)) for t in self.shared], tangent_of


def capture(function: Callable[..., Any], rows: Sequence[Spec], shared: Sequence[Spec]) -> Captured:
    """Captures the body in the caller's grad mode and autocast state.

    Raises:
        CaptureError: the body is no fixed functional graph. What the function itself raises passes through.
    """
    grad = torch.is_grad_enabled()
    with (
        _LOCK, _disable_current_modes(), torch.inference_mode(False), torch.set_grad_enabled(grad), _no_autocast_cache(),
        sdpa_kernel(SDPBackend.MATH),
    ):  # fmt: skip
        try:
            try:
                return _Trace(functional=False).run(function, rows, shared)
            except _InPlace:
                pass
            return _Trace(functional=True).run(function, rows, shared)
        except _InPlace:
            raise CaptureError("the body writes in place in a way that cannot be made functional") from None
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise CaptureError(f"control flow or shapes depend on data ({error})") from error
        except (UnsupportedFakeTensorException, UnsupportedOperatorException, NotImplementedError) as error:
            raise CaptureError(f"an op without shape inference ({error})") from error


def plain(tree: Any) -> Any:
    """Lists as tuples, so that ops can be compared."""
    return tuple([plain(item) for item in tree]) if isinstance(tree, (list, tuple)) else tree


def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@contextmanager
def _functionalized(on: bool) -> Iterator[None]:
    """Turns torch's functionalization on or off: in-place ops then reach the recorder as functional ones."""
    before = torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Functionalize)
    _set_functionalization(on)
    try:
        yield
    finally:
        _set_functionalization(before)


def _set_functionalization(on: bool) -> None:
    if on != torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Functionalize):
        if on:
            torch._enable_functionalization(reapply_views=True)
        else:
            torch._disable_functionalization()


@contextmanager
def _no_autocast_cache() -> Iterator[None]:
    """Autocast must not remember casts of stand-ins."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def _lending_apply(stand_in: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """torch-function modes do not see `autograd.Function.apply`, so for this thread it lends stand-ins by itself."""
    original = torch.autograd.Function.__dict__["apply"]
    thread = threading.get_ident()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            with torch._C.DisableTorchFunction():
                args, kwargs = pytree.tree_map_only(torch.Tensor, stand_in, (args, kwargs))
        return original.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original
