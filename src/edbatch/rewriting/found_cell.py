"""A found cell: the composition of some nodes of a recording as one function of one example, and its kernel.

In: nodes. Out: what they are as one node (`Composition`): operands, shared tensors, and how its members read these and
each other. `FoundCell` captures it and makes its kernel, for the outputs that are needed.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import CodeType
from typing import Any, NamedTuple

import torch

from edbatch.cells.compiled import CompiledCell, compile_cell
from edbatch.cells.kernel import Kernel
from edbatch.cells.segments import SegmentKernel
from edbatch.layout.layout import REF, Ints, Slot
from edbatch.recording.calls.names import operands_in_words
from edbatch.recording.types.recording import Recording
from edbatch.recording.types.type_set import NodeType
from edbatch.spec import Spec, is_tensor
from edbatch.torch_insides import pytree

_OF_TORCH = {"torch", "Tensor", "operator", "functional", "indexing"}  # how names of types begin that are no modules


class MemberValue(NamedTuple):
    """What a member reads: an operand of the whole cell, or an output of an earlier member."""

    member: int  # -1: an operand
    number: int


class Member(NamedTuple):
    """A node inside a found cell: its kernel, what each of its operands is, and its explicit shared tensors."""

    kernel: Kernel
    reads: tuple[MemberValue, ...]
    shared: tuple[int, ...]


class Composition(NamedTuple):
    """Some nodes of a recording as one: members, operands, and the tensors that all examples share."""

    members: tuple[Member, ...]
    slots: tuple[Slot, ...]
    rows: tuple[Spec, ...]
    shared: tuple[torch.Tensor, ...]
    names: tuple[str, ...]  # of the members' types
    cell: FoundCell | None = None

    @property
    def key(self) -> Hashable:
        """What tells cells apart. It has ids of kernels: who keeps it must keep the kernels, too."""
        return tuple([(id(m.kernel), m.reads, m.shared) for m in self.members]), self.slots, self.rows

    @property
    def likeness(self) -> Hashable:
        """The same for compositions that differ only in the kernels and shared tensors of their members."""
        return tuple([(m.kernel.outputs, m.reads) for m in self.members]), self.slots, self.rows

    @property
    def values(self) -> list[MemberValue]:
        """All that the members compute."""
        return [MemberValue(i, k) for i, m in enumerate(self.members) for k in range(len(m.kernel.outputs))]

    def node_type(self, name: str, kernel: CompiledCell) -> NodeType:
        shared = (*self.shared, *kernel.enclosed)
        return NodeType(name, kernel, self.slots, self.rows, shared, (False,) * len(kernel.outputs))


@dataclass(eq=False)
class FoundCell:
    """The kernel of a composition, for the outputs that were needed so far. is_refused: there can be none."""

    of: Composition
    name: str
    outputs: list[MemberValue] = field(default_factory=list)
    kernel: CompiledCell | None = None
    is_refused: bool = False

    def compile(self, outputs: Sequence[MemberValue]) -> CompiledCell | None:
        """The kernel for at least these outputs."""
        missing = [value for value in outputs if value not in self.outputs]
        if missing or self.kernel is None or not self.kernel.is_current:
            self.outputs += missing
            first = next(m.kernel.again for m in self.of.members if isinstance(m.kernel, CompiledCell))
            assert first is not None
            self.kernel = first.around(self._compiled)
            self.is_refused = self.kernel is None
        return self.kernel

    def number_of(self, value: MemberValue) -> int:
        return self.outputs.index(value) if value in self.outputs else -1

    def _compiled(self) -> CompiledCell | None:
        wanted = tuple([self.of.members[value.member].kernel.outputs[value.number] for value in self.outputs])
        function = _Composed(self.of.members, len(self.of.rows), tuple(self.outputs))
        try:
            made = compile_cell(function, self.of.rows, tuple(map(Spec.of, self.of.shared)), name=self.name)
        except Exception:  # whatever it is, the members run without it
            return None
        return made if made.outputs == wanted else None


@dataclass(frozen=True, eq=False)
class _Composed:
    """Members one after the other, on one example. It holds no shared tensors: kernels outlive these."""

    members: tuple[Member, ...]
    num_rows: int
    outputs: tuple[MemberValue, ...]

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        rows, shared = tensors[: self.num_rows], tensors[self.num_rows :]
        made: list[list[Any]] = []
        for kernel, reads, numbers in self.members:
            given = [rows[read.number] if read.member < 0 else made[read.member][read.number] for read in reads]
            if isinstance(kernel, CompiledCell):
                assert kernel.again is not None
                result = kernel.again.function(*given, *[shared[number] for number in numbers])
            else:
                result = _sum(*given)
            made.append([leaf for leaf in pytree.tree_leaves(result) if is_tensor(leaf)])
        return tuple([made[value.member][value.number] for value in self.outputs])


def _sum(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    for other in others:
        first = first + other
    return first


def can_merge(node_type: NodeType) -> bool:
    """Whether nodes of a type may be inside a found cell."""
    kernel = node_type.kernel
    if node_type.is_marked:
        return False
    if isinstance(kernel, SegmentKernel):
        return kernel.name == "copy" and node_type.slots == (Slot.SUM,)
    if not isinstance(kernel, CompiledCell) or kernel.again is None or kernel.constant or kernel.writes:
        return False
    return {Slot.ONE, Slot.DATA}.issuperset(node_type.slots) and not any(node_type.per_row)


def compose(recording: Recording, begins: Ints, nodes: Ints) -> Composition | None:
    """Nodes as one; None if they do not hang together, or were recorded in several modes.

    Args:
        begins: where the args of each node begin.
    """
    number_of = {int(n): i for i, n in enumerate(nodes)}
    made = _Composing([], [], [], {}, [], {})
    touches: list[set[Hashable]] = []  # of each member: the members and operands that it reads, and itself
    for n, i in number_of.items():
        t = recording.node_types[recording.types[n]]
        args = iter(recording.args[begins[n] : begins[n + 1]].tolist())
        reads: list[MemberValue] = []
        for slot, spec in zip(t.slots, t.slot_specs, strict=True):
            assert spec is not None
            for _ in range(next(args) if slot is Slot.SUM else 1):
                reads.append(made.read(next(args), slot, spec, number_of))
        explicit = t.shared[: len(t.shared) - len(t.kernel.enclosed)]
        made.members.append(Member(t.kernel, tuple(reads), made.share(explicit)))
        touches.append({read if read.member < 0 else read.member for read in reads} | {i})
    if not _is_connected(touches) or not _in_one_context([m.kernel for m in made.members]):
        return None
    names = tuple([recording.node_types[t].name for t in recording.types[nodes].tolist()])
    return Composition(tuple(made.members), tuple(made.slots), tuple(made.rows), tuple(made.shared), names)


class _Composing(NamedTuple):
    """A composition under construction."""

    members: list[Member]
    slots: list[Slot]
    rows: list[Spec]
    operand_of: dict[int, int]
    shared: list[torch.Tensor]
    place_of: dict[int, int]  # of shared tensors, by their ids

    def read(self, arg: int, slot: Slot, spec: Spec, number_of: dict[int, int]) -> MemberValue:
        """What an arg of a node is to the whole."""
        if slot is not Slot.DATA:
            if arg >= 0 and arg % REF in number_of:
                return MemberValue(number_of[arg % REF], arg // REF)
            if arg in self.operand_of:
                return MemberValue(-1, self.operand_of[arg])
            self.operand_of[arg] = len(self.rows)
        self.slots.append(Slot.DATA if slot is Slot.DATA else Slot.ONE)
        self.rows.append(spec)
        return MemberValue(-1, len(self.rows) - 1)

    def share(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """The numbers of shared tensors, each of which is given once."""
        for tensor in tensors:
            if self.place_of.setdefault(id(tensor), len(self.shared)) == len(self.shared):
                self.shared.append(tensor)
        return tuple([self.place_of[id(tensor)] for tensor in tensors])


def name_of(code: CodeType, instruction: int, made: Composition) -> str:
    """A name that is the same in other processes: the module whose parts are called, the function, what is read, and
    the line. Of a part of a function, which ends with some instruction, also what is called there.

    Args:
        instruction: its offset in the code; 0 stands for the whole function.
    """
    called = [name.partition("(")[0] for name in made.names]
    paths = [c.split(".") for c in called if c.replace(".", "").isalnum() and c.partition(".")[0] not in _OF_TORCH]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*[p[:-1] for p in paths], strict=False))
    path = ".".join(parts[0] for parts in shared)
    call = f"{code.co_qualname}({operands_in_words(made.rows, made.slots)})"
    lines = (line for begin, end, line in code.co_lines() if begin <= instruction < end)
    place = f"{os.path.basename(code.co_filename)}:{next(lines, None) or code.co_firstlineno}"
    name = f"{called[-1]} in {call}, {place}" if instruction else f"{call}, {place}"
    return f"{path}: {name}" if path else name


def _in_one_context(kernels: Sequence[Kernel]) -> bool:
    """Whether kernels were captured in the same modes; at least one of them is that of a cell."""
    modes = {(k.again.grad, k.again.modes) for k in kernels if isinstance(k, CompiledCell) and k.again is not None}
    sums = {kernel.grad for kernel in kernels if isinstance(kernel, SegmentKernel)}
    return len(modes) == 1 and sums <= {grad for grad, _ in modes}


def _is_connected(touches: list[set[Hashable]]) -> bool:
    """Whether nodes hang together, by reading each other or the same operands."""
    joined, rest = touches[0], touches[1:]
    while rest:
        near = [touched for touched in rest if not joined.isdisjoint(touched)]
        if not near:
            return False
        joined = joined.union(*near)
        rest = [touched for touched in rest if touched not in near]
    return True
