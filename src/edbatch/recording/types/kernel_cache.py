"""Kernels of a batched function, kept from call to call, and when they may be used again.

In: a cell or function and its signature (the specs of its arguments, constants, modes). Out: the kernel that computes
such calls in batches. It is captured when the signature is new. It is used again while the modules of the cell are as
they were (the same parameters, mode, hooks and attributes) and enclosed tensors, which the cell finds in closures or
globals, have the shape and dtype they had. Changes of other variables in closures and globals are not noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import nn

from edbatch.cells.eager import EagerKernel
from edbatch.cells.kernel import Kernel, Mask
from edbatch.errors import CaptureError, EdbatchError, GradientError, RecordingError
from edbatch.recording.program.attributes import Same
from edbatch.recording.program.made_modules import MadeModules
from edbatch.recording.program.marking import (
    CellFunction,
    CellOptions,
    is_marked,
    options_of,
    static_positions,
    unhooked,
)
from edbatch.recording.program.module_watch import Watch, hooks_of, state_of
from edbatch.recording.program.paths import Paths
from edbatch.recording.types.growth import Growth
from edbatch.recording.types.type_set import NodeType
from edbatch.spec import Spec
from edbatch.torch_insides.modes import DisableTorchFunction, InferenceMode, is_any_autocast_enabled
from edbatch.torch_insides.modules import BatchNorm
from edbatch.torch_state.belongings import Belongings
from edbatch.torch_state.hooks import hooked
from edbatch.torch_state.modules import buffers_of, modules_of, parameters_of
from edbatch.torch_state.surroundings import Made, Surroundings, has_grad, inside

if TYPE_CHECKING:
    from edbatch.cells.compiled import CompiledCell

T = TypeVar("T")
HOOKS = "a module of the cell has hooks, which must see every call"
WHOLE_SEQUENCE = (
    "nn.LSTM, nn.GRU and nn.RNN run a whole sequence in one call; with LSTMCell, GRUCell or RNNCell steps are batched"
)
MAX_TARGETS = 2000  # cells and functions that are kept; some may be made anew for every example, and used once
MAX_STATES = 8  # states of a cell (train, eval, …) whose kernels are kept
MAX_KERNELS = 1000  # signatures of a cell in one state


class Context(NamedTuple):
    """The modes around a call that change what it computes."""

    grad: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    dtype: torch.dtype  # the default, for tensors made without a dtype

    @staticmethod
    def current() -> Context:
        devices = ("cpu", "cuda") if is_any_autocast_enabled() else ()
        autocast = tuple([(d, torch.get_autocast_dtype(d)) for d in devices if torch.is_autocast_enabled(d)])
        return Context(has_grad(), autocast, torch.get_default_dtype())


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell in the state that it has during one batched call."""

    options: CellOptions
    static: frozenset[Hashable]
    state: Hashable
    reason: str | None  # why it must run one by one
    parameters: tuple[torch.Tensor, ...]
    modules: tuple[nn.Module, ...]
    is_marked: bool  # by the user; else it is one of torch's own modules
    node_types: dict[Hashable, NodeType] = field(default_factory=dict)  # those without shared tensors, by signature

    @cached_property
    def device(self) -> torch.device | None:
        """Where its parameters are."""
        with DisableTorchFunction():  # else our question would be recorded
            return self.parameters[0].device if self.parameters else None


class KernelCache:
    """All kernels of one batched function."""

    def __init__(self, paths: Paths):
        self.paths = paths
        self.made = MadeModules(paths)
        self.growth = Growth()
        self.gives_numbers = False  # whether a module of torch has been given numbers of examples
        self.num_captured = 0
        self._kernels: dict[Any, dict[Hashable, dict[Hashable, Kernel]]] = {}
        self._cells: dict[tuple[int, ...], tuple[Watch, Cell]] = {}  # by the ids of a target and its owners
        self._lock = threading.RLock()

    def cell(self, target: Any, owners: Sequence[nn.Module] = ()) -> Cell | None:
        """The cell that a callable is, in its present state; None if it is no cell.

        Args:
            owners: modules among the arguments of a marked function, such as the `self` of a marked method.
        """
        return inside((self._lock,), self._cell, target, owners)

    def _cell(self, target: Any, owners: Sequence[nn.Module]) -> Cell | None:
        key = tuple(map(id, (target, *owners)))
        known = self._cells.get(key)
        if known is not None and known[0].is_unchanged():
            return known[1]
        found = self._look_at(target, owners)
        if found is not None and not found.static and isinstance(target, nn.Module):
            self._cells[key] = Watch([target]), found  # keeps the target alive, so that nothing else gets its id
            if len(self._cells) > MAX_TARGETS:
                del self._cells[next(iter(self._cells))]
        return found

    def _look_at(self, target: Any, owners: Sequence[nn.Module]) -> Cell | None:
        options = options_of(target)
        if options is None:
            return None
        static = static_positions(target, options) if options.static else frozenset()
        roots = owners if isinstance(target, CellFunction) else (target,)
        modules = tuple(modules_of(roots))
        for module in modules:
            if isinstance(module, BatchNorm) and module.training and module.track_running_stats:
                raise RecordingError(
                    f"BatchNorm ({self.paths.name_of(target)}) in a cell in training mode mixes examples and updates "
                    "its statistics, so batched and one-by-one execution cannot agree; use LayerNorm or GroupNorm, "
                    "or put it "
                    "into eval mode"
                )
        is_sequence = any(isinstance(module, nn.RNNBase) for module in modules)
        reason = WHOLE_SEQUENCE if is_sequence else HOOKS if any(hooks_of(module) for module in modules) else None
        parameters = tuple({id(p): p for p in parameters_of(modules)}.values())
        state = tuple(state_of(module) for module in modules)
        return Cell(options, static, state, reason, parameters, modules, is_marked(target))

    def kernel(
        self,
        function: Callable[..., Any],
        rows: tuple[Spec, ...],
        shared: tuple[Spec, ...],
        key: Hashable,
        target: Any,
        cell: Cell | None,
        reason: str | None = None,
    ) -> Kernel:
        """The kernel of a signature, captured when it is new; if a reason is given, one that runs one by one."""
        return inside((self._lock,), self._kernel, function, rows, shared, key, target, cell, reason)

    def _kernel(
        self,
        function: Callable[..., Any],
        rows: tuple[Spec, ...],
        shared: tuple[Spec, ...],
        key: Hashable,
        target: Any,
        cell: Cell | None,
        reason: str | None,
    ) -> Kernel:
        name = Same(target) if isinstance(target, nn.Module) else target
        states = self._kernels.pop(name, {})
        self._kernels[name] = states  # the target used last is kept longest
        if len(self._kernels) > MAX_TARGETS:
            del self._kernels[next(iter(self._kernels))]
        state = cell.state if cell is not None else ()
        kernels = states.pop(state, {})
        states[state] = kernels  # the state used last is kept longest
        if len(states) > MAX_STATES:
            del states[next(iter(states))]
        found = kernels.get(key)
        if found is None or not found.is_current:
            if len(kernels) >= MAX_KERNELS:
                del kernels[next(iter(kernels))]
            self.num_captured += 1
            found = kernels[key] = _capture(function, rows, shared, cell, self.paths.name_of(target), reason)
        return found


def _capture(
    function: Callable[..., Any],
    rows: tuple[Spec, ...],
    shared: tuple[Spec, ...],
    cell: Cell | None,
    name: str,
    reason: str | None,
) -> Kernel:
    from edbatch.cells.compiled import compile_cell  # at first use: its import takes as long as all others together

    def run_as_it_is(reason: str | None) -> Kernel:
        parameters = cell.parameters if cell is not None else ()
        grad = Context.current().grad
        make = partial(EagerKernel, function, rows, shared, name=name, parameters=parameters, reason=reason, grad=grad)
        undisturbed = _Rehearsing(cell.modules if cell is not None else ())
        contexts = Surroundings(unhooked), hooked(), Made(InferenceMode, False), undisturbed
        return inside(contexts, lambda: undisturbed.run(make))

    def compiled(constant: tuple[int, ...]) -> CompiledCell:
        made = compile_cell(_without_gradient(function, constant), rows, shared, name=name)
        return replace(made, constant=constant)

    if cell is not None and cell.options.batched:
        return run_as_it_is(reason)
    reason = reason or (cell.reason if cell is not None else None)
    if reason is not None:
        return run_as_it_is(reason)
    inputs = tuple(range(len(rows) + len(shared)))
    for constant in ((), inputs) if inputs and Context.current().grad else ((),):
        try:
            made = compiled(constant)
            return _Wanting(made, compiled, run_as_it_is).base if constant else made
        except CaptureError as error:
            return run_as_it_is(str(error))
        except EdbatchError:
            raise
        except Exception as error:
            reason = f"its body cannot be captured ({error})"
    return run_as_it_is(reason)  # if the cell itself is wrong, torch's own error is raised here


class _Wanting:
    """Kernels of a cell that cannot have gradients for all its inputs: one kernel for each choice of wanted gradients.

    Some ops have no derivative, and some values that a gradient needs are overwritten. That does not matter where no
    gradient is wanted. The kernel of a choice is made once, when it is first asked for.
    """

    def __init__(
        self, cell: CompiledCell, compiled: Callable[[tuple[int, ...]], CompiledCell], eager: Callable[[str], Kernel]
    ):
        self.base = replace(cell, wanting=self)  # the kernel without any gradient
        self._compiled, self._eager = compiled, eager
        self._kernels: dict[Mask, Kernel] = {(False,) * len(cell.constant): self.base}

    def __call__(self, wanted: Mask) -> Kernel:
        if wanted not in self._kernels:
            assert self.base.again is not None
            self._kernels[wanted] = self.base.again.around(lambda: self._make(wanted))
        return self._kernels[wanted]

    def _make(self, wanted: Mask) -> Kernel:
        try:
            constant = tuple(i for i, is_wanted in enumerate(wanted) if not is_wanted)
            return replace(self._compiled(constant), wanting=self)
        except CaptureError as error:
            return self._eager(str(error))
        except Exception as error:
            if "not differentiable with respect to" in str(error):
                raise GradientError(
                    f"{self.base.name}: torch has no gradient for an argument that requires one ({error}); detach() it"
                ) from error
            return self._eager(f"torch cannot differentiate it ({error})")


class _Rehearsing:
    """A context for a trial run of a cell, to learn the shapes of its results. Hooks are not called in it, and buffers
    and attributes are put back after it."""

    def __init__(self, modules: Sequence[nn.Module]):
        self._modules = modules
        self._buffers = buffers_of(modules)

    def __enter__(self) -> None:
        self._before = Belongings(self._modules)
        self._values = [buffer.clone() for buffer in self._buffers]

    def run(self, function: Callable[[], EagerKernel]) -> EagerKernel:
        unhooked.set(True)
        kernel = function()
        has_changed = bool(self._before.put_back() or kernel.changes)
        kernel.is_ordered = has_changed or (kernel.reason == HOOKS and bool(self._buffers))  # hooks may write these
        return kernel

    def __exit__(self, *error: Any) -> None:
        self._before.put_back()
        with torch.no_grad():
            for buffer, value in zip(self._buffers, self._values, strict=True):
                is_same = buffer.layout is torch.strided and torch.equal(buffer, value)
                if not is_same:  # else autograd and frozen scopes would see a change
                    buffer.copy_(value)


def _without_gradient(function: Callable[..., Any], constant: tuple[int, ...]) -> Callable[..., Any]:
    """The function with some arguments taken as constants, such as the class weights of a loss."""
    if not constant:
        return function
    return lambda *tensors: function(*[t.detach() if i in constant else t for i, t in enumerate(tensors)])
