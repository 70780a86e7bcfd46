"""The compile stage: for every type of a plan the form of its kernel that runs here, and its programs.

In: a plan and what needs gradients. Out: a `Compiled`. Forms and programs are made once and kept by the kernels, so
from the second call on this stage only looks them up.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, replace

import torch

from edbatch.cells.at_once import at_once
from edbatch.cells.kernel import Form, Programs, TooLong
from edbatch.runtime.binding import reading
from edbatch.runtime.needs import Needs
from edbatch.runtime.plan import Plan
from edbatch.switches import Switches
from edbatch.torch_insides.modes import num_dispatch_modes

log = logging.getLogger("edbatch")


@dataclass(frozen=True, repr=False)
class Compiled:
    """Of each type its form and its programs; and whether loops of our own may move rows in this call."""

    forms: tuple[Form, ...]
    programs: tuple[Programs, ...]
    moves_rows: bool

    def __repr__(self) -> str:
        forms = Counter(type(form).__name__ for form in self.forms)
        return f"Compiled({', '.join(f'{count} {name}' for name, count in forms.items())})"

    def check(self, plan: Plan, needs: Needs | None) -> None:
        """Raise an AssertionError that names the first type whose programs are not those that the plan needs."""
        from edbatch.runtime.checking import check_compiled

        check_compiled(self, plan, needs)


def compile_plan(plan: Plan, needs: Needs | None, switches: Switches) -> Compiled:
    """The programs of a plan, ready to be bound."""
    if num_dispatch_modes():
        switches = replace(switches, compile=False, move_rows=False)  # a dispatch mode must see every op
    forms = plan.recording.type_set.keep(("forms", switches), lambda: _forms(plan, switches))
    with torch.no_grad():
        pairs = [_compile(plan, needs, t, form) for t, form in enumerate(forms)]
    programs = [programs for _, programs in pairs]
    if not switches.defer_gradients:
        types = plan.recording.node_types
        programs = [at_once(p, len(t.slots), len(t.shared)) for p, t in zip(programs, types, strict=True)]
    return Compiled(tuple([form for form, _ in pairs]), tuple(programs), switches.move_rows)


def _forms(plan: Plan, switches: Switches) -> tuple[Form, ...]:
    return tuple([t.kernel.form(tuple(map(reading, t.slots)), switches) for t in plan.recording.node_types])


def _compile(plan: Plan, needs: Needs | None, t: int, form: Form) -> tuple[Form, Programs]:
    """A type's form and its programs. A form that cannot be made gives way to another."""
    try:
        if needs is None or not any(needs.outs[t]):
            return form, form.infer
        return form, form.training(needs.rows[t], needs.shared[t], needs.outs[t])
    except Exception as error:
        other = form.give_up()
        if other is None:
            raise
        text, is_expected = "no kernels are made of %s: %s. It runs as torch ops", isinstance(error, TooLong)
        log.warning(text, plan.recording.node_types[t].name, error, exc_info=not is_expected)
        plan.recording.type_set.forget()
        return _compile(plan, needs, t, other)
