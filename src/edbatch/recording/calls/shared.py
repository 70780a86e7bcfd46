"""Tensors that all examples share: parameters, buffers, keywords, and what is computed from these only.

A function of shared tensors only does not become a node: it runs at once, once per call of the batched function, and
every example reads its result. Which calls these are is the same in training and under `no_grad`. Random draws are the
exception: every example makes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from edbatch.recording.calls.signature import Parts
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import QuietDispatchMode
from edbatch.torch_insides.tensors import storage_number, version_of
from edbatch.torch_insides.transforms import is_wrapped

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder


class SharedTensors:
    """The shared tensors of one recording."""

    def __init__(self, recorder: Recorder, tensors: Iterable[torch.Tensor]):
        self._recorder = recorder
        self.tensors = {id(t): t for t in tensors}  # `_calls.c` reads it, too
        self._derived: set[int] = set()
        self._times_given: dict[int, int] = {}  # how often a computed result was given to the user, by its identity
        self._would_require_grad: set[int] = set()  # if gradients were on
        self._results: dict[Hashable, tuple[Any, int, list[torch.Tensor]]] = {}
        self._reading: dict[int | None, list[Hashable]] = {}  # the results, by each memory that they were computed from

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, nn.Parameter) or id(tensor) in self.tensors

    def is_differentiable(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is shared and requires a gradient, or would in training: both must give the same graph."""
        return tensor in self and (tensor.requires_grad or id(tensor) in self._would_require_grad)

    def is_trained(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a parameter, or has a gradient that is not one of an example's own tensors."""
        return isinstance(tensor, nn.Parameter) or tensor.requires_grad or id(tensor) in self._would_require_grad

    def is_derived(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was computed from shared ones in this recording."""
        return id(tensor) in self._derived

    def compute(self, func: Callable[..., Any], args: Any, kwargs: Any, call: Callable[..., Any] | None = None) -> Any:
        """The result of a function of shared tensors only, computed once; if given, `call` runs in place of `func`."""
        recorder, parts = self._recorder, Parts(self._recorder)
        parts.take_call(func, args, kwargs)
        key = recorder.context, recorder.grad_in_training, *parts.key
        known = self._results.get(key)
        if known is not None and known[1] == _version(known[0]):
            return self._give(known[0])
        with Draws() as draws:
            result = (call or func)(*args, **kwargs)
        if draws.seen:
            return result
        self._results[key] = result, _version(result), parts.shared  # kept, since the key holds only their ids
        for memory in set(map(memory_of, parts.shared)):
            self._reading.setdefault(memory, []).append(key)
        made = [t for t in flatten((result,), {}) if isinstance(t, torch.Tensor) and t not in self]
        if made:
            self.tensors.update((id(t), t) for t in made)
            self._derived.update(map(id, made))
            recorder.names.derive(made, func, args, kwargs)
            if recorder.grad_in_training and not recorder.context.grad:
                self._mark(result, func, args, kwargs)
        return self._give(result)

    def _give(self, result: Any) -> Any:
        for t in flatten((result,), {}):
            if id(t) in self._derived:
                self._times_given[id(t)] = self._times_given.get(id(t), 0) + 1
        return result

    def is_given_twice(self, memory: int) -> bool:
        """Whether a computed result in this memory was given out more than once: not only its writer holds it."""
        in_memory = [number for number, t in self.tensors.items() if memory_of(t) == memory]
        if any(number not in self._derived for number in in_memory):
            return False  # views of a parameter or buffer, which all see what is written there
        return any(self._times_given.get(number, 0) > 1 for number in in_memory)

    def _mark(self, result: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Find out which results would require a gradient in training: by the same call on tensors without memory."""

        def stand_in(t: torch.Tensor) -> torch.Tensor:
            grad = self.is_differentiable(t)
            return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="meta", requires_grad=grad)

        with suppress(Exception), torch.inference_mode(False), torch.enable_grad():  # some need memory: none marked
            args, kwargs = pytree.tree_map_only(torch.Tensor, stand_in, (args, kwargs))
            trial = flatten((func(*args, **kwargs),), {})
            pairs = zip(flatten((result,), {}), trial, strict=True)
            self._would_require_grad.update(
                id(t) for t, like in pairs if isinstance(like, torch.Tensor) and like.requires_grad
            )

    def forget_results(self, memory: int) -> None:
        """Drop results that were computed from this memory, which is about to be written; they are computed again."""
        for key in self._reading.pop(memory, ()):
            self._results.pop(key, None)


class Draws(QuietDispatchMode):  # type: ignore[no-untyped-call]
    """Notices whether anything is drawn at random."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def flatten(args: Any, kwargs: Any) -> list[Any]:
    """The leaves of arguments, through lists, tuples and dicts."""
    leaves: list[Any] = []
    stack = [*args, *kwargs.values()]
    for item in stack:  # grows while it is walked
        if isinstance(item, list | tuple):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend(item.values())
        else:
            leaves.append(item)
    return leaves


def memory_of(tensor: torch.Tensor) -> int | None:
    """A number that is equal for tensors in the same memory; None for tensors without a memory of their own."""
    if tensor.layout is not torch.strided or is_wrapped(tensor):
        return None
    return storage_number(tensor)


def _version(result: Any) -> int:
    return version_of(result) if isinstance(result, torch.Tensor) and not result.is_inference() else 0
