"""The modes of torch in the present thread, and how to put them back.

Modes are: the objects that see torch's functions and ops, grad mode, autocast, inference mode, functionalization. Also
here: what autograd does at the moment. An interrupt such as Ctrl-C may leave modes behind; `torch_state` puts them back
with these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch.utils import _python_dispatch as _dispatch

TorchDispatchMode = _dispatch.TorchDispatchMode  # sees every op: to capture cells, and to notice random ops
without_dispatch_modes = _dispatch._disable_current_modes  # hides the ops of captures and trial runs from modes
dispatch_modes: Any = _dispatch._get_current_dispatch_mode_stack  # the stack, to be put back after an interrupt
DisableTorchFunction = torch._C.DisableTorchFunction  # so that what we ask of tensors is not recorded
DisableAutocast = torch._C._DisableAutocast  # kernels and gradients compute in the dtypes that were recorded
InferenceMode = torch._C._InferenceMode  # entered as False: inference mode is left for a while; see `Made`
set_grad_enabled = torch._C._set_grad_enabled  # what modes see if a user enters `no_grad`; also to put grad mode back
is_any_autocast_enabled = torch._C._is_any_autocast_enabled  # one question instead of one per device, for every call

num_function_modes = torch._C._len_torch_function_stack  # size of the stack; an interrupt may leave more on it
pop_function_mode = torch._C._pop_torch_function_stack  # takes off what an interrupt left
get_function_state: Any = torch._C._get_torch_function_state  # type: ignore[attr-defined]  # on or off
set_function_state: Any = torch._C._set_torch_function_state  # type: ignore[attr-defined]  # to put it back
num_dispatch_modes = torch._C._len_torch_dispatch_stack  # if any, it sees every op: no fused kernels, no pool

_IS_SEEN = "has_torch_function" in torch.autograd.backward.__code__.co_names
# Where torch.autograd.backward ends, if modes do not see it itself, so that it can be refused: in 2.6, and not in 2.13.
BACKWARD: tuple[tuple[Any, str], ...] = () if _IS_SEEN else ((torch.autograd, "_engine_run_backward"),)
keeps_graph: Any = torch._C._autograd._get_current_graph_task_keep_graph  # memory is released unless retain_graph=True
set_saving_traced: Any = torch._C._autograd._saved_tensors_hooks_set_tracing  # capture calls no hooks for saved tensors

is_functional = torch._is_functional_tensor  # a wrapper that capture makes if a cell writes in place
_FUNCTIONALIZE = torch._C.DispatchKey.Functionalize


def is_functionalizing() -> bool:
    """Whether in-place ops are made functional in this thread; it must be the same after an interrupt."""
    return bool(torch._C._dispatch_tls_is_dispatch_key_included(_FUNCTIONALIZE))


def functionalize(on: bool) -> None:
    """Turn functionalization on or off in this thread; with it, writes in place are captured as ops without writes."""
    if on != is_functionalizing():
        if on:
            torch._enable_functionalization(reapply_views=True)
        else:
            torch._disable_functionalization()  # type: ignore[no-untyped-call]


def to_functional(tensor: torch.Tensor) -> torch.Tensor:
    """A wrapper that may be written in place while functionalization is on; its autograd state is the tensor's."""
    wrapped = torch._to_functional_tensor(tensor)
    torch._mirror_autograd_meta_to(tensor, wrapped)  # type: ignore[attr-defined]
    return wrapped


def from_functional(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside a wrapper after all writes: the result of an op that was captured."""
    torch._sync(tensor)  # type: ignore[attr-defined,no-untyped-call]
    return torch._from_functional_tensor(tensor)


def put_back_dispatch_modes(modes: Sequence[Any]) -> None:
    """Make these the modes that see ops in this thread, in place of those that an interrupt left.

    Torch's flags about modes are set right, too: by them dynamo decides whether to compile anything at all. One of them
    is in torch 2.13 and not in 2.6.
    """
    for _ in dispatch_modes():
        _dispatch._pop_mode()
    for mode in modes:
        _dispatch._push_mode(mode)
    noted = [mode for mode in modes if not isinstance(mode, QuietDispatchMode)]
    notes: Any = _dispatch
    notes._is_in_torch_dispatch_mode = bool(noted)
    notes._is_in_non_infra_torch_dispatch_mode = not all(mode.is_infra_mode() for mode in noted)
    if hasattr(notes, "_is_in_any_mode_without_ignore_compile_internals"):
        is_seen = not all(mode.ignore_compile_internals() for mode in noted)
        notes._is_in_any_mode_without_ignore_compile_internals = is_seen
        notes.set_is_in_mode_without_ignore_compile_internals(is_seen)


class QuietDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that nobody but its thread notices.

    Torch's flags about modes are one for all threads: if two threads enter, and leave in the same order, they stay on,
    and dynamo compiles nothing any more. A mode of this class leaves them alone; `outside_compile` keeps dynamo away.
    Torch does not wrap its methods: the wrapper, which torch 2.13 has and 2.6 has not, would import the compiler.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        _dispatch._push_mode(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _dispatch._pop_mode(vars(self).get("_mode_key"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
