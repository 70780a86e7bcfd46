"""Cells that nobody marked: calls of the user's functions that record the same nodes again and again become one each.

In: a recording, and where in the user's code its nodes were recorded. Out: a recording of the same computation, in
which every instance of a *found cell* is one node. Its kernel is captured from the composition of what was recorded, so
it is fused, stacked and hoisted like that of a marked cell; and it is exact, whatever the user's function does.

A function is a cell if it does not call itself and takes few ways through its code. Its calls are instances of one cell
if they are equal: the same types, the same wiring inside, operands in the same places. Of nested calls the largest are
taken. What no such call has recorded is looked at by structure: a value that is read once, and always by the same
instruction, is computed by the node that reads it. Values inside that are read elsewhere become outputs. Marked cells
are never part of a larger one, and cells that are rare stay apart: each takes time to compile.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, count
from types import CodeType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbatch.layout.layout import REF, Ints, Slot
from edbatch.recording.types.recording import Recording
from edbatch.recording.types.type_set import NodeType
from edbatch.rewriting.found_cell import Composition, FoundCell, can_merge, compose, name_of

MAX_NODES = 64  # of a found cell
MIN_CALLS = 4  # so many equal ones in a mini-batch make a cell
MAX_FORMS = 3  # ways through the code of a function; with more of them it is no cell
MAX_REPEATS = 4  # of a loop inside a cell
MAX_CELLS = 1000  # that are kept
Bools = NDArray[np.bool_]


class Moved(NamedTuple):
    """Where the values of a recording went when groups of nodes became nodes; the arrays are arguments of `moved`."""

    group_of: Ints
    value_of: Ints
    output_of: Ints
    node_of: Ints

    def refs(self, refs: Ints) -> Ints:
        from edbatch.rewriting import find_loops

        moved: Ints = find_loops.move_refs(refs, *self)
        return moved


class WithFoundCells(NamedTuple):
    """A recording with found cells. kept: of its types those that were there before, by number; found ones follow."""

    recording: Recording
    moved: Moved
    kept: list[int]
    keys: list[Hashable]  # of the found types, the same in all recordings


class _Groups(NamedTuple):
    """Nodes that may become one, as flat arrays: the members of each group, its place, and the number of its cell."""

    members: Ints
    starts: Ints
    anchors: Ints
    kind: Ints

    def only(self, chosen: Ints) -> _Groups:
        lengths = np.diff(self.starts)[chosen]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        places = np.repeat(self.starts[:-1][chosen] - starts[:-1], lengths) + np.arange(starts[-1])
        return _Groups(self.members[places], starts, self.anchors[chosen], self.kind[chosen])

    def and_these(self, other: _Groups) -> _Groups:
        starts = np.concatenate((self.starts, other.starts[1:] + self.starts[-1]))
        rest = zip((self.anchors, self.kind), (other.anchors, other.kind), strict=True)
        return _Groups(np.concatenate((self.members, other.members)), starts, *map(np.concatenate, rest))


class FoundCells:
    """The found cells of one batched function, and what is known of its code. Threads may share it.

    codes: the numbers of functions; recorders add to them.
    """

    def __init__(self) -> None:
        self.codes: dict[CodeType, int] = {}
        self._cells: dict[Hashable, FoundCell] = {}
        self._forms: dict[int, set[int]] = {}  # of each function the ways through its code; empty: it is no cell
        self._num_terms: dict[int, tuple[int, int]] = {}  # of the sums that an instruction records: least and most
        self._roots: set[int] = set()  # instructions whose values stay values
        self._lock = threading.RLock()

    def merge(self, recording: Recording, refs: Ints) -> WithFoundCells | None:
        """The recording with found cells; None if there are none.

        Args:
            refs: the values that are results.
        """
        flat = _Flat(recording)
        if not len(recording.sites) or flat.can_merge.sum() < 2 or not flat.can_merge[~flat.is_sum].any():
            return None
        with self._lock:
            while True:
                found = self._find(flat, refs)
                if found is None:
                    return None
                merged = _apply(flat, *found, refs)
                if merged is not None:  # else a cell was refused, and is so from now on
                    return merged

    def _find(self, flat: _Flat, refs: Ints) -> tuple[_Groups, list[Composition]] | None:
        is_loose = self._loose_sums(flat)
        groups, found = self._find_calls(flat, is_loose)
        is_free = flat.can_merge[flat.recording.types] & (flat.sites >= 0)
        is_free[groups.members] = False
        is_free[flat.sums[is_loose]] = False
        more, more_found = self._find_producers(flat, is_free, refs, len(found))
        found += more_found
        return (groups.and_these(more), found) if found else None

    def _loose_sums(self, flat: _Flat) -> Bools:
        """For each sum whether the instruction that records it adds any number of terms."""
        sites = flat.sites[flat.sums]
        number, first = flat.loops.numbered(sites, sites, sites >= 0)
        counts = flat.begins[flat.sums + 1] - flat.begins[flat.sums] - 1
        least, most = np.full(len(first) + 1, 1 << 60), np.zeros(len(first) + 1, np.int64)
        np.minimum.at(least, number, counts)
        np.maximum.at(most, number, counts)
        is_loose = np.ones(len(first) + 1, np.bool_)  # the last one is for those without a site
        for i, site in enumerate(sites[first].tolist()):
            before = self._num_terms.get(site, (1 << 60, 0))
            now = self._num_terms[site] = min(before[0], int(least[i])), max(before[1], int(most[i]))
            is_loose[i] = now[0] < now[1]
        found: Bools = is_loose[number]
        return found

    def _find_calls(self, flat: _Flat, is_loose: Bools) -> tuple[_Groups, list[Composition]]:
        """The calls of functions that become nodes."""
        spans, loops, types = flat.recording.spans, flat.loops, flat.recording.types
        forms, most, is_recursive = loops.forms(
            spans, len(self.codes), types, flat.sites, flat.is_sum, flat.can_merge, MAX_NODES
        )
        is_cell = self._judge(flat, forms, most, is_recursive)
        home = loops.homes(spans, is_cell, flat.sums, types, flat.nodes.args, flat.begins)
        candidates = np.flatnonzero(is_cell & (forms != 0))
        members, starts = loops.members_of_spans(
            spans, candidates, types, flat.nodes.args, flat.begins, flat.is_sum, flat.sums, home, is_loose
        )
        places = spans[candidates, 2] << 32
        groups, found = self._kinds(flat, members, starts, spans[candidates, 1] - 1, places)
        return groups.only(loops.choose(spans[candidates], groups.kind)), found

    def _judge(self, flat: _Flat, forms: NDArray[np.uint64], most: Ints, is_recursive: Bools) -> Bools:
        """For each call whether its function is a cell. One that takes many ways through its code never is again.

        Args:
            forms, most, is_recursive: see `find_loops.forms`.
        """
        codes = flat.recording.spans[:, 2]
        _, first = flat.loops.numbered(codes, forms.view(np.int64), np.ones(len(codes), np.bool_))
        ways: dict[int, set[int]] = {}
        for code, form in zip(codes[first].tolist(), forms[first].tolist(), strict=True):
            ways.setdefault(code, set()).add(form)
        is_cell = np.zeros(len(is_recursive), np.bool_)
        for code, new in ways.items():
            known = self._forms.setdefault(code, set(new))
            limit = 0 if is_recursive[code] or most[code] > MAX_REPEATS else 1 if most[code] > 1 else MAX_FORMS
            known.update(new if known else ())
            if len(known) > limit:
                known.clear()
            is_cell[code] = bool(known)
        found: Bools = is_cell[codes]
        return found

    def _find_producers(self, flat: _Flat, is_free: Bools, refs: Ints, first: int) -> tuple[_Groups, list[Composition]]:
        """Nodes of which all values but the last are read once, always by the same instruction."""
        types, loops = flat.recording.types, flat.loops
        colour, nodes = loops.numbered(types, flat.sites, is_free)
        sites = flat.sites[nodes]
        was_root = np.array([site in self._roots for site in sites.tolist()], np.bool_)
        is_root = was_root.copy()
        example = np.searchsorted(flat.recording.starts, np.arange(len(types)), "right")
        loops.refuse(colour, is_root, example, refs, *flat.nodes)
        root = loops.grow(colour, is_root, *flat.nodes)
        self._roots.update(sites[is_root & ~was_root].tolist())
        members, starts = loops.groups_of(root, MAX_NODES)
        roots = members[starts[1:] - 1]
        groups, found = self._kinds(flat, members, starts, roots, flat.sites[roots], first)
        return groups.only(np.flatnonzero(groups.kind >= 0)), found

    def _kinds(
        self, flat: _Flat, members: Ints, starts: Ints, anchors: Ints, places: Ints, first: int = 0
    ) -> tuple[_Groups, list[Composition]]:
        """The groups with the number of their cell, counted from `first`, or -1; and these cells.

        Args:
            places: where in the user's code each group is, for its name: a function and an instruction, or 0.
        """
        kind = np.full(len(anchors), -1, np.int64)
        groups = _Groups(members, starts, anchors, kind)
        if not len(anchors):
            return groups, []
        hashes = flat.loops.hash_groups(members, starts, *flat.nodes)
        number, models = flat.loops.numbered(hashes.view(np.int64), hashes.view(np.int64), hashes != 0)
        if not len(models):
            return groups, []
        is_equal = flat.loops.are_equal(members, starts, models[number], *flat.nodes) & (number >= 0)
        num_calls = np.bincount(number[is_equal], minlength=len(models)).tolist()
        made = [compose(flat.recording, flat.begins, members[starts[g] : starts[g + 1]]) for g in models.tolist()]
        calls: Counter[Hashable] = Counter()  # of compositions that differ in shared tensors alone
        for composition, num in zip(made, num_calls, strict=True):
            if composition is not None:
                calls[composition.likeness] += num
        found: list[Composition] = []
        kinds = np.full(len(models), -1, np.int64)
        for i, (composition, place) in enumerate(zip(made, places[models].tolist(), strict=True)):
            if composition is None:
                continue
            cell = self._cell(composition, place, calls[composition.likeness] >= MIN_CALLS)
            if cell is not None:
                kinds[i] = first + len(found)
                found.append(composition._replace(cell=cell))
        kind[is_equal] = kinds[number[is_equal]]
        return groups, found

    def _cell(self, made: Composition, site: int, is_often: bool) -> FoundCell | None:
        cell = self._cells.get(made.key)
        if cell is None and is_often:
            if len(self._cells) >= MAX_CELLS:
                del self._cells[next(iter(self._cells))]
            code = next(code for code, number in self.codes.items() if number == site >> 32)
            cell = self._cells[made.key] = FoundCell(made, name_of(code, site % REF, made))
        return None if cell is None or cell.is_refused else cell


def _apply(flat: _Flat, groups: _Groups, found: Sequence[Composition], refs: Ints) -> WithFoundCells | None:
    """The recording with each group as one node; None if the kernel of one could not be made."""
    recording, nodes, loops = flat.recording, flat.nodes, flat.loops
    value_begin = np.cumsum([0, *[len(f.values) for f in found]])
    is_used, group_of, value_of = loops.used_outside(
        groups.members, groups.starts, groups.kind, value_begin, *nodes, recording.table.output_starts, refs
    )
    output_of = np.full(value_begin[-1], -1, np.int64)
    types: list[NodeType] = []
    keys: list[Hashable] = []
    for begin, made in zip(value_begin.tolist(), found, strict=False):
        assert made.cell is not None
        kernel = made.cell.compile([v for j, v in enumerate(made.values) if is_used[begin + j]])
        if kernel is None:
            return None
        for j, value in enumerate(made.values):
            output_of[begin + j] = made.cell.number_of(value)
        types.append(made.node_type(made.cell.name, kernel))
        keys.append((made.cell, kernel.outputs, *map(id, made.shared)))
    is_left = np.bincount(recording.types[group_of < 0], minlength=len(recording.node_types)) > 0
    is_taken = np.bincount(groups.kind, minlength=len(types)) > 0
    kept = np.flatnonzero(is_left).tolist()
    new_types, args, node_of, before = loops.merge_nodes(
        groups.members, groups.starts, groups.anchors, groups.kind, len(kept) + np.cumsum(is_taken) - 1,
        np.cumsum(is_left) - 1, output_of, group_of, value_of, *nodes,
    )  # fmt: skip
    types = [t for t, taken in zip(types, is_taken, strict=True) if taken]
    types = _with_names(types, [recording.node_types[t].name for t in kept])
    merged = replace(
        recording, types=new_types, args=args, node_types=(*[recording.node_types[t] for t in kept], *types),
        starts=before[recording.starts], sites=np.empty(0, np.int64), spans=np.empty((0, 3), np.int64),
    )  # fmt: skip
    keys = [key for key, taken in zip(keys, is_taken, strict=True) if taken]
    return WithFoundCells(merged, Moved(group_of, value_of, output_of, node_of), kept, keys)


def _with_names(types: list[NodeType], given: list[str]) -> list[NodeType]:
    """The types, numbered where they have the same name: only their order tells them apart."""
    known = set(given)
    found = []
    for t in types:
        numbers = chain((t.name,), (f"{t.name} #{n}" for n in count(2)))
        name = next(name for name in numbers if name not in known)
        known.add(name)
        found.append(t if name == t.name else replace(t, name=name))
    return found


class _FlatNodes(NamedTuple):
    """The nodes of a recording, as most loops take them."""

    types: Ints
    args: Ints
    begins: Ints
    slot_starts: Ints
    slot_kinds: Ints


class _Flat:
    """The arrays of a recording, for the loops."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.can_merge = np.array([can_merge(t) for t in recording.node_types], np.bool_)
        self.is_sum = np.array([t.slots == (Slot.SUM,) for t in recording.node_types], np.bool_)

    @cached_property
    def loops(self):  # type: ignore[no-untyped-def]
        from edbatch.rewriting import find_loops  # at first use: it imports numba

        return find_loops

    @cached_property
    def nodes(self) -> _FlatNodes:
        types, args, table = self.recording.types, self.recording.args, self.recording.table
        begins = self.loops.arg_starts(types, args, table.starts, table.kinds)
        return _FlatNodes(types, args, begins, table.starts, table.kinds)

    @property
    def begins(self) -> Ints:
        return self.nodes.begins

    @cached_property
    def sites(self) -> Ints:
        noted = self.recording.sites
        return np.concatenate((noted, np.full(len(self.recording.types) - len(noted), -1)))

    @cached_property
    def sums(self) -> Ints:
        return np.flatnonzero(self.is_sum[self.recording.types])
