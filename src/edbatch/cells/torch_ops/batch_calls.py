"""One call of torch for a batch of ops inside a cell: the code of the call, and of the copies that it needs.

In: the ops of a batch and how they read and write, by the memory plan. Out: lines of code. Elementwise ops run on
ranges of the work space. Products run as `bmm`, with their weights stacked; a product whose operand is several values
is a sum of products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from edbatch.cells.body.body import Op, Val, swap_vals
from edbatch.cells.torch_ops.memory_plan import MemoryPlan
from edbatch.cells.torch_ops.program_graph import SharedPart
from edbatch.cells.torch_ops.rule_types import Code
from edbatch.cells.torch_ops.rules import batched
from edbatch.cells.torch_ops.tensors import BATCH, Tensors, WorkViews
from edbatch.pq.cell_layout import Access, Operand, Reading
from edbatch.spec import Spec

Members = tuple[int, ...]


Parts = tuple[SharedPart, ...]


@dataclass(frozen=True)
class Stack:
    """Parts of shared values as one tensor, made once per mini-batch. Each entry is a sum of parts, whose values are
    found by their numbers among the prologue's results. Matrices become [k, lines, columns], vectors [k, 1, elements];
    one entry alone stays as it is."""

    entries: tuple[Parts, ...]

    def make(self, shared: Sequence[torch.Tensor]) -> torch.Tensor:
        neighbours = self._neighbours(shared) if len(self.entries) > 1 else None
        if neighbours is not None:
            return neighbours
        found = [_total([_cut(shared[part.number], part) for part in parts]) for parts in self.entries]
        if len(found) == 1:
            return found[0]
        if found[0].dim() == 1:
            return torch.stack(found).unsqueeze(1)
        if all(part.stride(0) == 1 for part in found):  # weights are mostly transposed: whole rows of memory are copied
            return torch.stack([part.t() for part in found]).mT
        return torch.stack(found)

    def _neighbours(self, shared: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Neighbouring columns or lines of one matrix as a view, without a copy."""
        if any(len(parts) > 1 for parts in self.entries):
            return None
        entries = [parts[0] for parts in self.entries]
        index, begin, length, line, lines = entries[0]
        count = len(entries)
        if not lines:
            return None
        if entries == [SharedPart(index, begin + k * length, length, line, lines) for k in range(count)]:
            whole = _cut(shared[index], SharedPart(index, begin, count * length, line, lines))
            return whole.view(lines, count, length).transpose(0, 1)
        if entries == [SharedPart(index, begin, length, line + k * lines, lines) for k in range(count)]:
            return _cut(shared[index], SharedPart(index, begin, length, line, count * lines)).view(count, lines, length)
        return None


def _cut(value: torch.Tensor, part: SharedPart) -> torch.Tensor:
    if not part.num_lines:
        return value.reshape(-1).narrow(0, part.begin, part.length)
    return value.narrow(0, part.first_line, part.num_lines).narrow(1, part.begin, part.length)


def _total(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


class BatchCalls:
    """Writes the calls of a program's batches.

    Args:
        numbers: of each shared value its number in the prologue's results.
        put: called with a value of the graph and the text of a tensor [B, n]; lets the value lie where it belongs.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        tensors: Tensors,
        views: WorkViews,
        numbers: dict[int, int],
        put: Callable[[int, str], None],
        target: Callable[[int], str | None],
    ) -> None:
        self.plan, self.tensors, self.work = plan, tensors, views
        self._numbers, self._put, self._target = numbers, put, target
        self.stacks: dict[Stack, int] = {}
        self.parts: dict[int, str] = {}  # values that are tensors, but only a part of one of the body
        self._copies: dict[tuple[int, ...], str] = {}

    def emit(self, batch: int) -> None:
        """The call of a batch, and what it needs."""
        members = self.plan.layout.batches[batch]
        accesses = self.plan.accesses(batch)
        op = self.tensors.body.op(self.plan.numbers[members[0]])
        assert op is not None
        if self.plan.layout.graph.ops[members[0]].is_local:
            self._elementwise(members, op, accesses)
        else:
            self._products(members, accesses)

    def _elementwise(self, members: Members, op: Op, accesses: dict[int, Access]) -> None:
        slots = range(len(accesses) - 1)
        grid = next((a.grid for a in accesses.values() if a.grid), None)
        if grid is None and all(self._is_range(members, access) for access in accesses.values()):
            shape: tuple[int, ...] = ()
        else:
            shape = grid or (len(members),)
        texts = [self._operand(members, slot, accesses[slot], shape) for slot in slots]
        code = _Merged(self.tensors, texts, op).code()
        self._write(members, accesses[-1], shape, code)

    def _is_range(self, members: Members, access: Access) -> bool:
        """Whether what is read or written is one range of the work space, or a copy."""
        values = self._values(members, access.slot)
        if len(members) == 1 or access.kind is Reading.COPY:
            return access.kind is Reading.COPY or (bool(values) and values[0] in self.plan.begin)
        if access.kind is not Reading.VIEW or not values or values[0] not in self.plan.begin:
            return False
        return self._step(values) == self.plan.length(values[0])

    def _operand(self, members: Members, slot: int, access: Access, shape: tuple[int, ...]) -> str:
        """What is read through a slot, as [*shape, B, n], or as one range if there is no shape."""
        values = self._values(members, slot)
        if not values:
            return self._stack([o.name for o in self._operands(members, slot)])
        if access.kind is Reading.COPY:
            copy = self._copy(values)
            return f"{copy}.view(-1)" if not shape else copy if len(shape) == 1 else f"{copy}.unflatten(0, {shape})"
        return self._strided(values, shape)

    def _strided(self, values: Sequence[int], shape: tuple[int, ...]) -> str:
        length, distinct = self.plan.length(values[0]), list(dict.fromkeys(values))
        begin = self.plan.begin.get(values[0])
        if begin is None:
            return self.text(values[0]) if len(distinct) == 1 else self._parts(values)
        if not shape:
            return self.work.view((len(values) * length * BATCH,), (1,), begin)
        if len(distinct) == 1:
            return self.work.view((BATCH, length), (length, 1), begin)
        step = self._step(distinct) * BATCH
        if len(shape) == 1:
            return self.work.view((*shape, BATCH, length), (step, length, 1), begin)
        outer, inner = shape
        if len(distinct) == len(values):
            return self.work.view((*shape, BATCH, length), (inner * step, step, length, 1), begin)
        sizes = (outer, 1) if values[0] == values[1] else (1, inner)
        return self.work.view((*sizes, BATCH, length), (step, step, length, 1), begin)

    def _products(self, members: Members, accesses: dict[int, Access]) -> None:
        operands = self.plan.layout.graph.ops[members[0]].operands
        num_first = len(operands) % 2  # a bias, or values that the product is added to
        parts = range(num_first, len(operands), 2)
        bias = self._first(members, accesses[0]) if num_first else None
        if len(members) == 1:
            self._one_product(members, bias, parts)
            return
        mm = {False: self.tensors.object(torch.bmm), True: self.tensors.object(torch.baddbmm)}
        is_view = accesses[-1].kind is not Reading.COPY
        total = self._lines(self._values(members, -1)) if is_view else None
        for slot in parts:
            values = self._values(members, slot)
            rows = self._copy(values) if accesses[slot].kind is Reading.COPY else self._lines(values)
            weights = self._stack([o.name for o in self._operands(members, slot + 1)])
            first = bias if slot == parts[0] else total
            text = f"{mm[first is not None]}({'' if first is None else first + ', '}{rows}, {weights})"
            if is_view:
                self.tensors.writer.line(Code(text, out="out").writing(str(total)))
            else:
                total = self.tensors.writer.assign(text)
        if not is_view:
            for k, value in enumerate(self._values(members, -1)):
                self._put(value, f"{total}[{k}]")

    def _first(self, members: Members, access: Access) -> str:
        values = self._values(members, 0)
        if not values:
            return self._stack([o.name for o in self._operands(members, 0)])
        if len(values) == 1:
            return self.text(values[0])
        return self._copy(values) if access.kind is Reading.COPY else self._lines(values)

    def _one_product(self, members: Members, bias: str | None, parts: range) -> None:
        """A product, or the sum of several: in one call, if their operands lie at equal distances."""
        (result,) = self._values(members, -1)
        pairs = [(self._values(members, slot)[0], self._operands(members, slot + 1)[0].name) for slot in parts]
        values, weights = zip(*sorted(pairs, key=lambda pair: self.plan.begin.get(pair[0], -1)), strict=True)
        target, text = self._target(result), ""
        are_alike = len({self.plan.length(value) for value in values}) == 1
        if are_alike and target is not None and len(values) > 1 and self._are_strided(values):
            first, beta = (target, ", beta=0") if bias is None else (bias, "")
            rows = self._lines(values)
            addbmm = self.tensors.object(torch.addbmm)
            self.tensors.writer.line(f"{addbmm}({first}, {rows}, {self._stack(weights)}{beta}, out={target})")
            return
        for value, weight in zip(values, weights, strict=True):
            start = bias if not text else (target or text)
            mm = self.tensors.object(torch.mm if start is None else torch.addmm)
            call = f"{mm}({'' if start is None else start + ', '}{self.text(value)}, {self._stack([weight])})"
            if target is None:
                text = self.tensors.writer.assign(call)
            else:
                text = target
                self.tensors.writer.line(Code(call, out="out").writing(target))
        if target is None:
            self._put(result, text)

    def _are_strided(self, values: Sequence[int]) -> bool:
        begins = [self.plan.begin.get(value) for value in values]
        if None in begins:
            return False
        steps = {b - a for a, b in pairwise(begins)}  # type: ignore[operator]
        return len(steps) == 1 and min(steps) > 0

    def _lines(self, values: Sequence[int]) -> str:
        """Values as [k, B, n]."""
        distinct = list(dict.fromkeys(values))
        if len(distinct) > 1:
            return self._strided(values, (len(values),))
        begin, length = self.plan.begin.get(values[0]), self.plan.length(values[0])
        if begin is not None:
            return self.work.view((len(values), BATCH, length), (0, length, 1), begin)
        return f"{self.text(values[0])}.expand({len(values)}, B, {length})"

    # ---- results

    def _write(self, members: Members, access: Access, shape: tuple[int, ...], code: Code) -> None:
        values, writer = self._values(members, -1), self.tensors.writer
        if access.kind is Reading.COPY:
            name = writer.assign(code.text)
            flat = name if len(shape) == 1 else f"{name}.view({len(values)}, B, -1)"
            for k, value in enumerate(values):
                self._put(value, f"{flat}[{k}]")
            return
        if len(values) == 1 and values[0] not in self.plan.begin:
            target = self._target(values[0])
            if target is None:
                self._put(values[0], code.text)
                return
        else:
            target = self._strided(values, shape)
        writer.line(code.writing(target) if code.out else f"{target}.copy_({code.text})")

    # ---- operands

    def _operands(self, members: Members, slot: int) -> list[Any]:
        ops = self.plan.layout.graph.ops
        return [ops[i].results if slot < 0 else ops[i].operands[slot] for i in members]

    def _values(self, members: Members, slot: int) -> list[int]:
        """What the members read through a slot, or write; nothing if that is shared."""
        found: list[Operand] = self._operands(members, slot)
        return [run[0] for run in found if isinstance(run, tuple)]

    def _step(self, values: Sequence[int]) -> int:
        """From one value to the next, in elements of one row."""
        return self.plan.begin[values[1]] - self.plan.begin[values[0]]

    def text(self, value: int) -> str:
        """A value as [B, n]."""
        begin, (index, first, length) = self.plan.begin.get(value), self.plan.source.atoms[value]
        if begin is not None:
            return self.work.view((BATCH, length), (length, 1), begin)
        if value in self.parts:
            return self.parts[value]
        whole = self._whole(index)
        row = self.tensors.row(Val(index), (whole,))
        return row if whole == length else f"{row}.narrow(1, {first}, {length})"

    def _parts(self, values: Sequence[int]) -> str:
        """Equal parts of one tensor outside, as [k, B, n]."""
        (index, first, length), second = (self.plan.source.atoms[v] for v in values[:2])
        row = self.tensors.row(Val(index), (self._whole(index),))
        sizes, strides = f"({len(values)}, B, {length})", f"({second.begin - first}, {row}.stride(0), 1)"
        return f"{row}.as_strided({sizes}, {strides}, {row}.storage_offset() + {first})"

    def _whole(self, index: int) -> int:
        found = 1
        for size in self.tensors.spec(Val(index)).shape:
            found *= size
        return found

    def _copy(self, values: Sequence[int]) -> str:
        """Values put together in memory of their own, as [k, B, n]; operands that want the same share it."""
        key = tuple(values)
        if key not in self._copies:
            parts = ", ".join(map(self.text, values))
            self._copies[key] = self.tensors.writer.assign(f"{self.tensors.object(torch.stack)}(({parts},))")
        return self._copies[key]

    def _stack(self, entries: Sequence[Parts]) -> str:
        numbered = [tuple(p._replace(number=self._numbers[p.number]) for p in parts) for parts in entries]
        stack = Stack(tuple(numbered))
        return f"w[{self.stacks.setdefault(stack, len(self.stacks))}]"


class _Merged:
    """Answers the questions of an elementwise rule about a whole batch: operands have one shape."""

    def __init__(self, tensors: Tensors, texts: Sequence[str], op: Op) -> None:
        self._tensors, self._texts, self._op = tensors, texts, op

    def code(self) -> Code:
        op, numbers = self._op, iter(range(len(self._texts)))
        args = swap_vals(op.args, lambda _: Val(next(numbers)))
        kwargs = tuple((k, swap_vals(v, lambda _: Val(next(numbers)))) for k, v in op.kwargs)
        return batched(self, Op(op.target, args, kwargs, op.spec))

    def is_row(self, value: Val) -> bool:
        return True

    def spec(self, value: Val) -> Spec:
        assert isinstance(self._op.spec, Spec)
        return self._op.spec  # as that of all operands

    def row(self, value: Val, shape: Sequence[int] | None = None) -> str:
        return self._texts[value.index]

    def flat(self, value: Val, width: int) -> str:
        return self._texts[value.index]

    def every(self, value: Val) -> str:
        return self._texts[value.index]

    def raw(self, tree: Any) -> str:
        return self._texts[tree.index] if isinstance(tree, Val) else self._tensors.raw(tree)

    def object(self, thing: Any) -> str:
        return self._tensors.object(thing)
