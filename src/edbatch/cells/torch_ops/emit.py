"""Emission: writes one program of a cell (prologue, infer, forward, backward or finish) as straight-line Python.

In: a body, a `Program` (which ops, where their inputs come from, where results go) and, where ops run together, its
memory plan. Out: a Python function and its source. Results are written to their final place by `out=` if the op allows
it. An elementwise result takes the memory of an operand that nothing reads later. Temporaries are dropped after their
last use.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from edbatch.cells.body.body import VIEWS, Body, Op, Val, find_vals
from edbatch.cells.body.program import Emitted, Place, Program
from edbatch.cells.torch_ops.batch_calls import BatchCalls
from edbatch.cells.torch_ops.memory_plan import MemoryPlan
from edbatch.cells.torch_ops.rule_types import Code, Mapped
from edbatch.cells.torch_ops.rules import batched, shared
from edbatch.cells.torch_ops.tensors import BATCH, Form, Forms, Tensors, WorkViews
from edbatch.cells.torch_ops.work_space import Work
from edbatch.cells.torch_ops.writer import Writer

aten = torch.ops.aten


def emit(body: Body, program: Program, plan: MemoryPlan | None = None, saved: MemoryPlan | None = None) -> Emitted:
    """Writes and compiles a program. `saved`: the plan of forward, if the program has none itself but reads what that
    saves."""
    return Emitter(body, program, plan, saved).run()


class Emitter:
    def __init__(
        self, body: Body, program: Program, plan: MemoryPlan | None = None, saved: MemoryPlan | None = None
    ) -> None:
        self.body, self.program, self.plan, self.saved = body, program, plan, saved or plan
        self.steps = (
            [Step((i,), finished=(i,)) for i in program.ops] if plan is None else _in_order(body, program, plan)
        )
        self.writer = Writer()
        self.roots = self._roots()
        self.work = None if plan is None else WorkViews(plan)
        self.tensors = Tensors(body, self.writer, self.roots, self._join, self.work)
        self.memory = self.tensors.memory
        self.last_use = self._last_uses()
        self.dests: dict[int, Forms] = {}
        self.scratch: set[int] = set()
        self.batches = None if plan is None else self._batch_calls(plan)

    def run(self) -> Emitted:
        for index, place in self.program.inputs.items():
            if not self._is_placed(index):
                form = self.tensors.own_form(index) if place.shape is None else place.shape
                if text := self._text(place):
                    self.memory[index] = Forms({form: text})
                    self._name_root(index)
        self._place_destinations()
        if self.program.name == "backward":
            self._copy_saved("{work}.copy_({saved})")
        for index in self.program.inputs:
            self._add_sums(Val(index))
        for position, step in enumerate(self.steps):
            if step.batch is not None:
                assert self.batches is not None
                self.batches.emit(step.batch)
            else:
                (index,) = step.ops
                op = self.body.op(index)
                assert op is not None
                self._emit_op(position, Val(index), op)
            for index in step.finished:
                self._add_sums(Val(index))
            self._drop(position)
        for place, value in self.program.dests.items():
            text = self._text(place)
            known = self.dests.get(value.index)
            if text and (known is None or text not in known.forms.values()):
                self._copy_to(text, value)
        if self.program.name == "forward":
            self._copy_saved("{saved}.copy_({work})")
        if self.program.returns is not None:
            texts = ["None" if v is None else self.tensors.raw(v) for v in self.program.returns]
            self.writer.line(f"return ({''.join(t + ', ' for t in texts)})")
        return self._compile()

    # ---- the memory plan

    def _is_placed(self, index: int) -> bool:
        return self.plan is not None and self.plan.place(index) is not None

    def _name_root(self, index: int) -> None:
        """An input may be a reshape of the value whose atom it is, which others ask for."""
        run = () if self.plan is None else self.plan.source.runs.get(index, ())
        if self.plan is not None and len(run) == 1:
            root, _, length = self.plan.source.atoms[run[0]]
            if math.prod(self.body.spec(Val(root)).shape) == length:
                self.memory.setdefault(root, self.memory[index])

    def _is_in_parts(self, index: int) -> bool:
        return self.plan is not None and len(self.plan.source.runs.get(index, ())) > 1

    def _batch_calls(self, plan: MemoryPlan) -> BatchCalls:
        assert self.work is not None
        numbers = {i: place.number for i, place in self.program.inputs.items() if place.group == "pro"}
        return BatchCalls(plan, self.tensors, self.work, numbers, self._put, self._target)

    def _target(self, value: int) -> str | None:
        """Where a value of the graph is to be written, as [B, n]; None if any memory will do."""
        assert self.plan is not None
        index, _, length = self.plan.source.atoms[value]
        if value in self.plan.begin:
            assert self.work is not None
            return self.work.view((BATCH, length), (length, 1), self.plan.begin[value])
        if index in self.dests and index not in self.scratch and self.plan.source.runs[index] == (value,):
            self.memory[index] = self.dests[index]
            return self.tensors.form(Val(index), (length,))
        return None

    def _put(self, value: int, text: str) -> None:
        """Let a value, which is a tensor [B, n] now, lie where it belongs."""
        assert self.plan is not None
        index, _, length = self.plan.source.atoms[value]
        target = self._target(value)
        if target is not None:
            self.writer.line(f"{target}.copy_({text})")
        elif self.plan.source.runs[index] == (value,):
            self.memory[index] = Forms({(length,): self.tensors.assign(Val(index), text)})
        else:
            assert self.batches is not None
            self.batches.parts[value] = self.writer.assign(text)

    def _join(self, index: int, form: Form) -> None:
        """Make a tensor of a value that lies in several parts, or is a part of another."""
        run = () if self.plan is None else self.plan.source.runs.get(index, ())
        root = index if self.plan is None or not run else self.plan.source.atoms[run[0]].number
        if self.batches is None or not run or (len(run) == 1 and root == index):
            raise KeyError(f"value {index} is read before it is made")
        length = math.prod(self.body.spec(Val(index)).shape)
        if len(run) == 1 and root in self.memory and math.prod(self.body.spec(Val(root)).shape) == length:
            self.memory[index] = self.memory[root]
            return
        parts = ", ".join(self.batches.text(value) for value in run)
        text = parts if len(run) == 1 else f"{self.writer.object(torch.cat)}(({parts},), 1)"
        self.memory[index] = Forms({(length,): self.tensors.assign(Val(index), text)})

    def _copy_to(self, text: str, value: Val) -> None:
        run = () if self.plan is None else self.plan.source.runs.get(value.index, ())
        if len(run) > 1 and value.index not in self.memory and self.batches is not None:
            parts = ", ".join(self.batches.text(part) for part in run)
            flat = text if len(self.body.spec(value).shape) == 1 else f"{text}.view(B, -1)"
            self.writer.line(f"{self.writer.object(torch.cat)}(({parts},), 1, out={flat})")
        else:
            self.writer.line(f"{text}.copy_({self.tensors.raw(value)})")

    def _text(self, place: Place) -> str:
        """The text of a buffer. What is saved together is the last of what is saved, and not a buffer each: ''."""
        if self.saved is None or place.group != "saved":
            return place.text
        number = self.saved.saved_number(place.number)
        return "" if number is None else place._replace(number=number).text

    def _copy_saved(self, line: str) -> None:
        """Copy what is saved together between the work space and its place."""
        if self.plan is None or self.work is None:
            return
        for block in self.plan.blocks:
            saved = f"saved[{len(self.plan.saved_apart)}]"
            if block.length < self.plan.saved_width:
                saved = f"{saved}.view(-1).narrow(0, {block.saved_begin} * B, {block.length} * B)"
                work = self.work.view((block.length * BATCH,), (1,), block.begin)
            else:
                work = self.work.view((BATCH, block.length), (block.length, 1), block.begin)
            self.writer.line(line.format(work=work, saved=saved))

    # ---- ops

    def _emit_op(self, position: int, value: Val, op: Op) -> None:
        index = value.index
        if self._is_free(op, index):
            return
        if op.target is aten.view.default:  # another form of the same memory
            self.memory[index] = self.memory[op.args[0].index]
            return
        if self._is_placed(index):
            self.dests[index] = Forms({}, pinned=True)
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

    def _is_free(self, op: Op, index: int) -> bool:
        """Whether nothing is to be done: the result is made of values that others have written."""
        if self.plan is None or not (op.target in VIEWS or op.target is aten.cat.default):
            return False
        run = self.plan.source.runs.get(index, ())
        return bool(run) and self.plan.source.atoms[run[0]].number != index

    def _take_over(self, position: int, op: Op, code: Code) -> Val | None:
        """An operand whose memory may hold the result."""
        if not (code.local and code.out):
            return None
        for operand in op.operands:
            if self._dies_alone(operand, op, position) and not self._is_placed(operand.index):
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
            if not (text := self._text(place)) or self._is_placed(base) or self._is_in_parts(base):
                continue
            while base not in self.program.inputs and (op := self.body.op(base)) and op.target is aten.view.default:
                base = op.args[0].index
            if (
                base in self.program.ops
                and base not in self.dests
                and not self._is_placed(base)
                and self.roots[base] == base
                and self.body.is_row[base]
            ):
                self.dests[base] = Forms({self.tensors.own_form(value.index): text}, pinned=True)
                if value.index != base:
                    self.dests[value.index] = self.dests[base]
        position_of = {index: position for position, step in enumerate(self.steps) for index in step.ops}
        together = {index for step in self.steps if step.batch is not None for index in step.ops}
        for index in reversed(self.program.ops):
            op = self.body.op(index)
            assert op is not None
            if index not in self.dests or torch.Tag.pointwise not in getattr(op.target, "tags", ()):
                continue
            for operand in op.operands:
                free = operand.index in position_of and operand.index not in self.dests
                free = free and operand.index not in together and index not in together
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
        for index in sorted(self.program.ops):
            op = self.body.op(index)
            assert op is not None
            roots[index] = roots[op.args[0].index] if op.target in VIEWS else index
        return roots

    def _last_uses(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for position, step in enumerate(self.steps):
            for index in (*step.ops, *self._read_by(step)):
                last |= dict.fromkeys(self._lies_in(index), position)
        for v in find_vals((self.program.returns or (), *self.program.dests.values())):
            last |= dict.fromkeys(self._lies_in(v.index), len(self.steps))
        return last

    def _lies_in(self, index: int) -> list[int]:
        """The values in whose memory a value lies: the viewed one of a view, all that a value is joined of."""
        run = () if self.plan is None else self.plan.source.runs.get(index, ())
        indices = [index, *(self.plan.source.atoms[value].number for value in run if self.plan is not None)]
        return [self.roots[i] for i in indices if i in self.roots]

    def _read_by(self, step: Step) -> list[int]:
        """The values of the body that a step reads."""
        if step.batch is None or self.plan is None:
            return [v.index for index in step.ops for v in self.body.op(index).operands]  # type: ignore[union-attr]
        graph, atoms = self.plan.layout.graph, self.plan.source.atoms
        ops = [graph.ops[i] for i in self.plan.layout.batches[step.batch]]
        shared = [v.index for i in step.ops for v in self.body.op(i).operands if not self.body.is_row[v.index]]  # type: ignore[union-attr]
        return [atoms[v].number for op in ops for run in op.runs for v in run] + shared

    def _drop(self, position: int) -> None:
        dead = [root for root, names in self.tensors.kept.items() if names and self.last_use.get(root) == position]
        names = [name for root in dead for name in self.tensors.kept.pop(root)]
        if names and position + 1 < len(self.steps):
            self.writer.line(f"del {', '.join(names)}")

    def _compile(self) -> Emitted:
        lines = "\n    ".join(self.writer.lines or ["pass"])
        parameters = self.program.parameters + ("" if self.plan is None else ", v, w")
        source = f"def {self.program.name}({parameters}):\n    {lines}\n"
        code = compile(source, f"<{self.program.name} of a cell>", "exec")
        functions = []
        for namespace in (
            dict(self.writer.namespace),
            {name: _on_meta(thing) for name, thing in self.writer.namespace.items()},
        ):
            exec(code, namespace)
            functions.append(namespace[self.program.name])
        return Emitted(functions[0], functions[1], source, self._work())

    def _work(self) -> Work | None:
        if self.plan is None or self.work is None or self.batches is None:
            return None
        read = {place.number for place in self.program.inputs.values() if place.group == "rows"}
        texts = [(slot, self.tensors.row(Val(slot))) for slot, _ in self.plan.placed_rows if slot in read]
        placed = tuple((slot, int(text[2:-1])) for slot, text in texts)  # of v[12]
        source, stacks = self.plan.source, tuple(self.batches.stacks)
        return Work(self.plan.width, source.dtype, source.device, self.work.views, stacks, placed)


@dataclass(frozen=True)
class Step:
    """What is emitted at one time: an op, or a batch of the memory plan. `finished`: ops of which nothing is left to
    do after it."""

    ops: tuple[int, ...]
    batch: int | None = None
    finished: tuple[int, ...] = ()


def _is_view(body: Body, index: int, op: Op) -> bool:
    """Whether it is no op of the plan's graph. Ops that are missing there are part of another one."""
    return not body.is_row[index] or op.target in VIEWS or op.target in (aten.cat.default, operator.getitem)


def _in_order(body: Body, program: Program, plan: MemoryPlan) -> list[Step]:
    """All ops of a program in the order of the plan, views just before who reads them."""
    mine, done, found = set(program.ops), set[int](), list[Step]()
    batches = [tuple(dict.fromkeys(plan.numbers[i] for i in members)) for members in plan.layout.batches]
    planned = {index for batch in batches for index in batch}
    left = Counter(index for batch in batches for index in batch)

    def view(index: int) -> None:
        op = body.op(index)
        if index not in mine or index in done or index in planned or op is None or not _is_view(body, index, op):
            return
        done.add(index)
        for v in op.operands:
            view(v.index)
        found.append(Step((index,), finished=(index,)))

    for number, (members, ops) in enumerate(zip(plan.layout.batches, batches, strict=True)):
        for index in ops:
            for v in body.op(index).operands:  # type: ignore[union-attr]
                view(v.index)
        left.subtract(ops)
        finished = tuple(index for index in ops if not left[index])
        is_one = len(members) == 1 and len(plan.source.runs[ops[0]]) == 1
        is_plain = is_one and not plan.are_products[members[0]]
        found.append(Step(ops, None if is_plain else number, finished))
    for index in program.ops:
        view(index)
    return found


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
