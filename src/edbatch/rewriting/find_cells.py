"""Cells that nobody marked: calls of the user's functions that record the same nodes again and again become one each.

In: a recording, with the spans of nodes that calls of functions have recorded. Out: a recording of the same
computation, in which every span of a *found cell* is one node. Its kernel is captured from the composition of what was
recorded, so it is fused, stacked and hoisted like that of a marked cell; and it is exact, whatever the function does.

A function is a cell if it does not call itself, and its calls are alike: their spans have the same types, the same
wiring inside, and read values from outside in the same places. Of nested calls the largest are taken. What a function
records between its calls of others may be a found cell, too. Values inside that are read elsewhere become outputs.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch

from edbatch.cells.compiled import CompiledCell, compile_cell
from edbatch.cells.kernel import Kernel
from edbatch.cells.segments import SegmentKernel
from edbatch.errors import CaptureError
from edbatch.layout.layout import REF, Ints, Slot
from edbatch.recording.types.recording import Recording
from edbatch.recording.types.type_set import NodeType
from edbatch.spec import Spec, is_tensor
from edbatch.torch_insides import pytree
from edbatch.torch_state.surroundings import inside

MAX_NODES = 64  # of a found cell
MIN_CALLS = 4  # so often calls must be alike for their function to be a cell
MAX_FORMS = 8  # a function whose calls have more forms in one mini-batch is no cell
MAX_CELLS = 1000  # found cells that are kept


class Read(NamedTuple):
    """What a node inside a found cell reads: an operand of the cell, or an output of an earlier node inside."""

    node: int  # -1: an operand
    number: int


class Member(NamedTuple):
    """A node inside a found cell: its kernel, and what each of its operands is."""

    kernel: Kernel
    reads: tuple[Read, ...]
    num_shared: int


class Moved(NamedTuple):
    """Where the values of a recording went when spans became nodes; the arrays are arguments of `move_refs`."""

    span_of: Ints
    value_of: Ints
    output_of: Ints
    node_of: Ints

    def refs(self, refs: Ints) -> Ints:
        from edbatch.rewriting import find_loops

        return find_loops.move_refs(refs, *self)


class Merged(NamedTuple):
    """A recording with found cells. kept: of its types those that were there before, by number; found ones follow."""

    recording: Recording
    moved: Moved
    kept: list[int]
    keys: list[Hashable]  # of the found types, the same in all recordings


@dataclass
class FoundCell:
    """The composition of some nodes. It has a kernel for the outputs that were needed so far; None if there can be
    none."""

    members: tuple[Member, ...]
    rows: tuple[Spec, ...]
    shared: tuple[Spec, ...]
    outputs: list[Read] = field(default_factory=list)
    kernel: CompiledCell | None = None
    is_refused: bool = False

    def run(self, *tensors: Any) -> tuple[Any, ...]:
        """The composition, on one example."""
        rows, shared = tensors[: len(self.rows)], list(tensors[len(self.rows) :])
        made: list[list[Any]] = []
        for kernel, reads, num_shared in self.members:
            given = [rows[read.number] if read.node < 0 else made[read.node][read.number] for read in reads]
            own, shared = shared[:num_shared], shared[num_shared:]
            if isinstance(kernel, CompiledCell):
                assert kernel.again is not None
                result = kernel.again.function(*given, *own)
            else:
                result = _sum(*given)
            made.append([leaf for leaf in pytree.tree_leaves(result) if is_tensor(leaf)])
        return tuple([made[read.node][read.number] for read in self.outputs])

    def compile(self, outputs: Sequence[Read], name: str) -> CompiledCell | None:
        """The kernel for at least these outputs."""
        missing = [read for read in outputs if read not in self.outputs]
        if (missing or self.kernel is None or not self.kernel.is_current) and not self.is_refused:
            self.outputs += missing
            again = next(m.kernel.again for m in self.members if isinstance(m.kernel, CompiledCell))
            assert again is not None
            try:
                self.kernel = again.around(lambda: compile_cell(self.run, self.rows, self.shared, name=name))
            except CaptureError:
                self.is_refused, self.kernel = True, None
        return self.kernel


def _sum(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    for other in others:
        first = first + other
    return first


class FoundCells:
    """The found cells of one batched function. Threads may share it."""

    def __init__(self) -> None:
        self._cells: dict[Hashable, FoundCell] = {}
        self._varied: set[CodeType] = set()  # functions that are no cells
        self._known: set[CodeType] = set()  # functions that are
        self._lock = threading.RLock()

    def merge(self, recording: Recording, refs: Ints) -> Merged | None:
        """The recording with found cells; None if there are none.

        Args:
            refs: the values that are results.
        """
        if not len(recording.spans):
            return None
        return inside((self._lock,), self._merge, recording, refs)

    def _merge(self, recording: Recording, refs: Ints) -> Merged | None:
        flat = _Flat(recording)
        if not flat.can_merge.any():
            return None
        spans = recording.spans
        exact, alike = flat.hashes(spans)
        is_cell = self._judge(recording, spans, alike)
        kinds, cells = self._kinds(flat, spans, np.where(is_cell, exact, 0), 1)
        chosen = flat.loops.choose(spans, kinds)
        runs = flat.loops.leftover_runs(spans, chosen, *flat.nodes, flat.can_merge)
        runs_kinds, more = self._kinds(flat, runs, flat.hashes(runs)[0], MIN_CALLS)
        chosen_runs = np.flatnonzero(runs_kinds >= 0)
        taken = np.concatenate((spans[chosen], runs[chosen_runs]))
        kind = np.concatenate((kinds[chosen], runs_kinds[chosen_runs] + len(cells)))
        if not len(taken):
            return None
        return self._apply(flat, taken, kind, [*cells, *more], refs)

    def _judge(self, recording: Recording, spans: Ints, alike: Ints) -> np.ndarray:
        """For each span, whether its function is a cell."""
        from edbatch.rewriting import find_loops

        codes = recording.codes
        num_codes = 1 + max(codes, default=0)
        is_recursive = find_loops.find_recursive(spans, num_codes)
        forms: dict[int, Counter[int]] = defaultdict(Counter)
        for code, form in zip(spans[:, 2].tolist(), alike.tolist(), strict=True):
            forms[code][form] += 1
        is_cell = np.zeros(num_codes, np.bool_)
        for number, code in codes.items():
            of_code = forms.get(number)
            if of_code is None or code in self._varied:
                continue
            calls, fit = of_code.total(), len(of_code) - (0 in of_code)
            is_varied = fit > MAX_FORMS or (fit > 2 and calls < MIN_CALLS * fit)
            if is_recursive[number] or is_varied:
                self._varied.add(code)
                continue
            if calls >= MIN_CALLS:
                self._known.add(code)
            is_cell[number] = code in self._known
        return is_cell[spans[:, 2]]

    def _kinds(self, flat: _Flat, spans: Ints, hashes: Ints, at_least: int) -> tuple[Ints, list[Found]]:
        """For each span the number of its found cell, or -1; and these cells."""
        kinds = np.full(len(spans), -1, np.int64)
        if not hashes.any():
            return kinds, []
        distinct, first, inverse, counts = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
        is_equal = flat.loops.are_equal(spans, first[inverse], *flat.nodes)
        found: list[Found] = []
        for number in np.argsort(first).tolist():
            if distinct[number] == 0:
                continue
            made = self._found(flat, spans[first[number]], counts[number] >= at_least)
            if made is not None:
                kinds[(inverse == number) & is_equal] = len(found)
                found.append(made)
        return kinds, found

    def _found(self, flat: _Flat, span: Ints, is_often: bool) -> Found | None:
        found = flat.compose(*span[:2].tolist())
        if found is None:
            return None
        key = found.key
        cell = self._cells.get(key)
        if cell is None and is_often:
            if len(self._cells) >= MAX_CELLS:
                del self._cells[next(iter(self._cells))]
            cell = self._cells[key] = FoundCell(found.members, found.rows, tuple(map(Spec.of, found.shared)))
        return None if cell is None or cell.is_refused else found._replace(cell=cell)

    def _apply(self, flat: _Flat, spans: Ints, kind: Ints, found: list[Found], refs: Ints) -> Merged | None:
        order = np.argsort(spans[:, 0])
        spans, kind = spans[order], kind[order]
        values = [[Read(i, k) for i, m in enumerate(f.members) for k in range(len(m.kernel.outputs))] for f in found]
        value_begin = np.cumsum([0, *map(len, values)])
        recording = flat.recording
        is_used, span_of, value_of = flat.loops.used_outside(
            spans, kind, value_begin[-1], value_begin, *flat.nodes, recording.table.output_starts, refs
        )
        output_of = np.full(value_begin[-1], -1, np.int64)
        types: list[NodeType] = []
        for number, (f, reads) in enumerate(zip(found, values, strict=True)):
            first = int(value_begin[number])
            wanted = [read for j, read in enumerate(reads) if is_used[first + j]]
            assert f.cell is not None
            kernel = f.cell.compile(wanted, f.name)
            if kernel is None:  # it is refused from now on, so this comes to an end
                return self._merge(recording, refs)
            for j, read in enumerate(reads):
                output_of[first + j] = f.cell.outputs.index(read) if read in f.cell.outputs else -1
            types.append(f.node_type(kernel))
        is_left = np.bincount(recording.types[span_of < 0], minlength=len(recording.node_types)) > 0
        kept = np.flatnonzero(is_left).tolist()
        type_of = np.cumsum(is_left) - 1
        new_types, args, node_of = flat.loops.merge_nodes(
            spans, kind, np.arange(len(kept), len(kept) + len(types)), type_of, output_of, span_of, value_of,
            *flat.nodes,
        )  # fmt: skip
        starts = np.append(node_of, len(new_types))[recording.starts]
        node_types = (*[recording.node_types[t] for t in kept], *types)
        merged = replace(
            recording, types=new_types, args=args, node_types=node_types, starts=starts,
            spans=np.empty((0, 3), np.int64), codes={},
        )  # fmt: skip
        return Merged(merged, Moved(span_of, value_of, output_of, node_of), kept, [f.key for f in found])


class Found(NamedTuple):
    """A found cell in one recording: its members, what it reads, and the tensors that all examples share."""

    members: tuple[Member, ...]
    slots: tuple[Slot, ...]
    rows: tuple[Spec, ...]
    shared: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    cell: FoundCell | None = None

    @property
    def key(self) -> Hashable:
        return tuple([(id(m.kernel), m.reads, m.num_shared) for m in self.members]), self.rows

    @property
    def name(self) -> str:
        """A name that is the same in other processes: its first and last node, and a number for all of them."""
        wiring = str([m.reads for m in self.members])
        number = zlib.crc32(("\n".join(self.names) + wiring).encode())
        return f"{self.names[0]} … {self.names[-1]} ({len(self.names)} nodes, {number:08x})"

    def node_type(self, kernel: CompiledCell) -> NodeType:
        shared = (*self.shared, *kernel.enclosed)
        return NodeType(self.name, kernel, self.slots, self.rows, shared, (False,) * len(kernel.outputs))


class _Flat:
    """The arrays of a recording, for the loops."""

    def __init__(self, recording: Recording) -> None:
        from edbatch.rewriting import find_loops

        self.loops, self.recording = find_loops, recording
        table = recording.table
        begins = find_loops.arg_starts(recording.types, recording.args, table.starts, table.kinds)
        self.nodes = recording.types, recording.args, begins, table.starts, table.kinds
        self.can_merge = np.array([_can_merge(t) for t in recording.node_types], np.bool_)
        self.likeness = np.array([_likeness(t) for t in recording.node_types], np.int64)

    def hashes(self, spans: Ints) -> tuple[Ints, Ints]:
        return self.loops.hash_spans(spans, *self.nodes, self.can_merge, self.likeness, MAX_NODES)

    def compose(self, begin: int, end: int) -> Found | None:
        """The nodes of a span as one; None if they are not connected, or were recorded in several contexts."""
        types, args, begins, *_ = self.nodes
        members: list[Member] = []
        slots: list[Slot] = []
        rows: list[Spec] = []
        shared: list[torch.Tensor] = []
        operand_of: dict[int, int] = {}
        touches: list[set[Hashable]] = []  # of each node: the nodes inside and the operands that it reads, and itself
        for n in range(begin, end):
            t = self.recording.node_types[types[n]]
            own = args[begins[n] : begins[n + 1]].tolist()
            reads: list[Read] = []
            for slot, spec in zip(t.slots, t.slot_specs, strict=True):
                assert spec is not None
                count = own.pop(0) if slot is Slot.SUM else 1
                for ref in own[:count]:
                    if slot is not Slot.DATA and ref >= 0 and ref % REF >= begin:
                        reads.append(Read(ref % REF - begin, ref >> 32))
                        continue
                    if slot is Slot.DATA or ref not in operand_of:
                        if slot is not Slot.DATA:
                            operand_of[ref] = len(rows)
                        reads.append(Read(-1, len(rows)))
                        slots.append(Slot.DATA if slot is Slot.DATA else Slot.ONE)
                        rows.append(spec)
                    else:
                        reads.append(Read(-1, operand_of[ref]))
                del own[:count]
            explicit = t.shared[: len(t.shared) - len(t.kernel.enclosed)]
            shared += explicit
            members.append(Member(t.kernel, tuple(reads), len(explicit)))
            touches.append({read if read.node < 0 else read.node for read in reads} | {n - begin})
        if not _is_connected(touches) or not _in_one_context([m.kernel for m in members]):
            return None
        names = tuple([self.recording.node_types[t].name for t in types[begin:end].tolist()])
        return Found(tuple(members), tuple(slots), tuple(rows), tuple(shared), names)


def _can_merge(node_type: NodeType) -> bool:
    """Whether nodes of a type may be inside a found cell."""
    kernel = node_type.kernel
    if isinstance(kernel, SegmentKernel):
        return kernel.name == "copy" and node_type.slots == (Slot.SUM,)
    if not isinstance(kernel, CompiledCell) or kernel.again is None or kernel.constant or kernel.writes:
        return False
    return {Slot.ONE, Slot.DATA}.issuperset(node_type.slots) and not any(node_type.per_row)


def _likeness(node_type: NodeType) -> int:
    """A number that types share which differ in their shared tensors alone."""
    kernel = node_type.kernel
    body = kernel.likeness if isinstance(kernel, CompiledCell) else 0
    return hash((body, node_type.slots, node_type.slot_specs))


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
