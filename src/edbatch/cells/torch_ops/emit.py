"""Emission: writes one program of a cell (prologue, infer, forward, backward or finish) as straight-line Python.

In: a body and a `Program` (which ops, where their inputs come from, where results go). Out: a Python function and its
source. Results are written to their final place by `out=` if the op allows it. An elementwise result takes the memory
of an operand that nothing reads later. Temporaries are dropped after their last use.
"""

from __future__ import annotations

from typing import Any

import torch

from edbatch.cells.body.body import VIEWS, Body, Op, Val, find_vals
from edbatch.cells.body.program import Emitted, Program
from edbatch.cells.torch_ops.rule_types import Code, Mapped
from edbatch.cells.torch_ops.rules import batched, shared
from edbatch.cells.torch_ops.tensors import Forms, Tensors
from edbatch.cells.torch_ops.writer import Writer

aten = torch.ops.aten


def emit(body: Body, program: Program) -> Emitted:
    """Writes and compiles a program."""
    return Emitter(body, program).run()


class Emitter:
    def __init__(self, body: Body, program: Program) -> None:
        self.body, self.program = body, program
        self.writer = Writer()
        self.roots = self._roots()
        self.tensors = Tensors(body, self.writer, self.roots)
        self.memory = self.tensors.memory
        self.last_use = self._last_uses()
        self.dests: dict[int, Forms] = {}
        self.scratch: set[int] = set()

    def run(self) -> Emitted:
        for index, place in self.program.inputs.items():
            self.memory[index] = Forms(
                {self.tensors.own_form(index) if place.shape is None else place.shape: place.text}
            )
        self._place_destinations()
        for index in self.program.inputs:
            self._add_sums(Val(index))
        for position, index in enumerate(self.program.ops):
            op = self.body.op(index)
            assert op is not None
            self._emit_op(position, Val(index), op)
            self._add_sums(Val(index))
            self._drop(position)
        for place, value in self.program.dests.items():
            text = place.text
            if self.dests.get(value.index) is None or text not in self.dests[value.index].forms.values():
                self.writer.line(f"{text}.copy_({self.tensors.raw(value)})")
        if self.program.returns is not None:
            texts = ["None" if v is None else self.tensors.raw(v) for v in self.program.returns]
            self.writer.line(f"return ({''.join(t + ', ' for t in texts)})")
        return self._compile()

    def _emit_op(self, position: int, value: Val, op: Op) -> None:
        index = value.index
        if op.target is aten.view.default:  # another form of the same memory
            self.memory[index] = self.memory[op.args[0].index]
            return
        code = batched(self.tensors, op) if self.tensors.is_row(value) else shared(self.tensors, op)
        form = code.form or self.tensors.own_form(index)
        dest = self.dests.get(index)
        if dest is not None and code.out:
            self.memory[index] = dest
            self.writer.line(code.writing(self.tensors.form(value, form)))
        elif dest is not None and index not in self.scratch:
            self.memory[index] = dest
            self.writer.line(f"{self.tensors.form(value, form)}.copy_({code.text})")
        elif (taken := self._take_over(position, op, code)) is not None:
            name = self.tensors.form(taken, form)
            self.memory[index] = Forms({form: name}, own=True)
            self.tensors.kept.setdefault(self.roots[index], []).extend(
                self.tensors.kept.pop(self.roots[taken.index], [])
            )
            self.writer.line(code.writing(name))
        elif code.out and self.program.name == "prologue":
            text = code.writing(f"take({self.writer.object(op.spec)})")
            self.memory[index] = Forms({form: self.tensors.assign(value, text)}, own=True)
        else:
            self.memory[index] = Forms({form: self.tensors.assign(value, code.text)}, own=not code.view)

    def _take_over(self, position: int, op: Op, code: Code) -> Val | None:
        """An operand whose memory may hold the result."""
        if not (code.local and code.out):
            return None
        for operand in op.operands:
            if self._dies_alone(operand, op, position):
                memory = self.memory[operand.index]
                if memory.own and self._is_reshape(operand.index, self.roots[operand.index]):
                    return operand
        return None

    def _is_reshape(self, index: int, root: int) -> bool:
        while index != root:
            op = self.body.op(index)
            if op is None or op.target is not aten.view.default:
                return False
            index = op.args[0].index
        return True

    def _place_destinations(self) -> None:
        """Gives results their buffers. If a result is a reshape, the original is written there. An operand that only
        an elementwise op reads may use the buffer of that op's result before."""
        for place, value in self.program.dests.items():
            base = value.index
            while base not in self.program.inputs and (op := self.body.op(base)) and op.target is aten.view.default:
                base = op.args[0].index
            if (
                base in self.program.ops
                and base not in self.dests
                and self.roots[base] == base
                and self.body.is_row[base]
            ):
                self.dests[base] = Forms({self.tensors.own_form(value.index): place.text}, pinned=True)
                if value.index != base:
                    self.dests[value.index] = self.dests[base]
        position_of = {index: position for position, index in enumerate(self.program.ops)}
        for index in reversed(self.program.ops):
            op = self.body.op(index)
            assert op is not None
            if index not in self.dests or torch.Tag.pointwise not in getattr(op.target, "tags", ()):
                continue
            for operand in op.operands:
                free = operand.index in position_of and operand.index not in self.dests
                if (
                    free
                    and self.roots[operand.index] == operand.index
                    and self._dies_alone(operand, op, position_of[index])
                ):
                    self.dests[operand.index] = self.dests[index]
                    self.scratch.add(operand.index)
                    break

    def _dies_alone(self, operand: Val, op: Op, position: int) -> bool:
        """Whether nothing reads the operand's memory after this op, the op has no second operand in it, and its result
        has the operand's spec."""
        root = self.roots[operand.index]
        same_memory = [v for v in op.operands if self.roots[v.index] == root]
        last = self.last_use.get(root) == position and root not in self.program.inputs
        return (
            last
            and len(same_memory) == 1
            and self.tensors.is_row(operand)
            and self.body.specs[operand.index] == op.spec
        )

    def _add_sums(self, value: Val) -> None:
        for key, summed in self.program.sums:
            if summed == value:
                self.writer.line(f"{self.writer.object(add_up)}(sums, {key}, {self.tensors.row(value)})")

    def _roots(self) -> dict[int, int]:
        """For each value the one whose memory it lies in: the viewed value for a view, else itself."""
        roots = {index: index for index in self.program.inputs}
        for index in self.program.ops:
            op = self.body.op(index)
            assert op is not None
            roots[index] = roots[op.args[0].index] if op.target in VIEWS else index
        return roots

    def _last_uses(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for position, index in enumerate(self.program.ops):
            op = self.body.op(index)
            assert op is not None
            for v in (Val(index), *op.operands):
                last[self.roots[v.index]] = position
        for v in find_vals((self.program.returns or (), *self.program.dests.values())):
            if v.index in self.roots:
                last[self.roots[v.index]] = len(self.program.ops)
        return last

    def _drop(self, position: int) -> None:
        dead = [root for root, names in self.tensors.kept.items() if names and self.last_use.get(root) == position]
        names = [name for root in dead for name in self.tensors.kept.pop(root)]
        if names and position + 1 < len(self.program.ops):
            self.writer.line(f"del {', '.join(names)}")

    def _compile(self) -> Emitted:
        lines = "\n    ".join(self.writer.lines or ["pass"])
        source = f"def {self.program.name}({self.program.parameters}):\n    {lines}\n"
        code = compile(source, f"<{self.program.name} of a cell>", "exec")
        functions = []
        for namespace in (
            dict(self.writer.namespace),
            {name: _on_meta(thing) for name, thing in self.writer.namespace.items()},
        ):
            exec(code, namespace)
            functions.append(namespace[self.program.name])
        return Emitted(functions[0], functions[1], source)


def _on_meta(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return torch.empty_strided(thing.shape, thing.stride(), dtype=thing.dtype, device="meta")
    if isinstance(thing, Mapped):
        return Mapped(thing.op.replace(lambda v: v, _on_meta), thing.in_dims)
    return torch.device("meta") if isinstance(thing, torch.device) else thing


def add_up(sums: dict[int, torch.Tensor], key: int, rows: torch.Tensor) -> None:
    """Adds the sum over a batch's rows to the sum of earlier batches."""
    total = rows.sum(0)
    if key in sums:
        sums[key].add_(total)
    else:
        sums[key] = total
