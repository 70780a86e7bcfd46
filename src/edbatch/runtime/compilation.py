"""The compile stage: for every type of a plan the kernel that runs it, and in training its programs.

In: a plan and what needs gradients. Out: a `Compiled`. Kernels and programs are made once and kept by the cells, so
from the second call on this stage only looks them up.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from edbatch.cells.kernel import TooLong
from edbatch.recording.types.type_set import NodeType
from edbatch.runtime.binding import copies, reading
from edbatch.runtime.needs import Needs
from edbatch.runtime.plan import Plan
from edbatch.torch_insides.modes import num_dispatch_modes

log = logging.getLogger("edbatch")


@dataclass(frozen=True)
class Compiling:
    """How compiled cells run: `on` as fused kernels where possible, with `exact_math` torch's own tanh, exp, …"""

    on: bool = True
    exact_math: bool = False

    def kernel(self, node_type: NodeType) -> Any:
        """The kernel that runs a type on the CPU: its fused form if it has one."""
        fused = getattr(node_type.kernel, "fused", None)
        return (fused and fused(tuple(map(reading, node_type.slots)), self.exact_math)) or node_type.kernel


@dataclass(frozen=True)
class Compiled:
    """Of each type the kernel that runs it, its training form (None where no gradient is wanted), and whether it only
    copies; and whether kernels may be machine code here."""

    kernels: tuple[Any, ...]
    training: tuple[Any, ...]
    only_copies: tuple[bool, ...]
    is_fused: bool


def compile_plan(plan: Plan, needs: Needs | None, compiling: Compiling) -> Compiled:
    """The kernels of a plan, ready to be bound."""
    is_fused = compiling.on and not num_dispatch_modes()  # a dispatch mode must see every op
    chosen, only_copies = plan.recording.type_set.keep(
        ("kernels", compiling, is_fused), lambda: _choose(plan, compiling, is_fused)
    )
    with torch.no_grad():
        pairs = [_compile(plan, needs, t, kernel) for t, kernel in enumerate(chosen)]
    return Compiled(tuple([k for k, _ in pairs]), tuple([training for _, training in pairs]), only_copies, is_fused)


def _choose(plan: Plan, compiling: Compiling, is_fused: bool) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """The kernel of every type, and whether it only copies."""
    types = plan.recording.type_set
    pairs = [(t, is_fused and on_cpu) for t, on_cpu in zip(plan.recording.node_types, types.are_on_cpu, strict=True)]
    kernels = tuple([compiling.kernel(node_type) if on else node_type.kernel for node_type, on in pairs])
    return kernels, tuple([on and copies(node_type) for node_type, on in pairs])


def _compile(plan: Plan, needs: Needs | None, t: int, kernel: Any) -> tuple[Any, Any]:
    """A type's kernel and its training form, or None. A fused form that cannot be made gives way to the plain one."""
    node_type = plan.recording.node_types[t]
    try:
        if needs is None or not any(needs.outs[t]):
            _ = kernel.infer  # a fused form is made now
            return kernel, None
        return kernel, kernel.training(needs.rows[t], needs.shared[t], needs.outs[t])
    except Exception as error:
        plain: Any = node_type.kernel
        if kernel is plain:
            raise
        text, is_expected = "no kernels are made of %s: %s. It runs as torch ops", isinstance(error, TooLong)
        log.warning(text, node_type.name, error, exc_info=not is_expected)
        plain.give_up(kernel)
        plan.recording.type_set.forget()
        return _compile(plan, needs, t, plain)
