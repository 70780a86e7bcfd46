"""The largest costs of a call in words, with the lines of the user's code they come from and what to do about each.

In: the stats of a call, and where its nodes were recorded. Out: lines of text. Times of stages are measured; that of a
stage is divided among types by an estimate from the numbers of nodes, batches and ops.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import NamedTuple

import numpy as np

from edbatch.recording.types.recording import Origin
from edbatch.stats import Stats, TypeStats

MOST = 3  # costs that are shown
LEAST = 0.05  # of the call's time that a cost takes to be worth a line
FEW = 2.0  # nodes in a batch, on average, are hardly a batch
SIZES = re.compile(r"(?<=\[)[\d,]+(?=\])|(?<=stack of )\d+")


class LargeCost(NamedTuple):
    seconds: float
    text: str


def largest_costs(stats: Stats, origin: Origin | None, codes: Mapping[CodeType, int], *, has_keys: bool) -> list[str]:
    """The largest costs, one line each.

    Args:
        origin: where the nodes were recorded; None if nothing was recorded.
        codes: the numbers of functions in `origin`.
        has_keys: whether examples are known by keys.
    """
    total = sum(stats.seconds.values())
    places = _LinesOfCode(origin, codes)
    found = [*_compiling(stats), *_recording(stats, places, has_keys=has_keys), *_running(stats, places)]
    worth = sorted((cost for cost in found if cost.seconds >= LEAST * total), reverse=True)[:MOST]
    return [f"  {1e3 * cost.seconds:.1f} of {1e3 * total:.1f} ms: {cost.text}" for cost in worth]


class _LinesOfCode:
    """Where the user's code recorded the nodes."""

    def __init__(self, origin: Origin | None, codes: Mapping[CodeType, int]) -> None:
        self._origin = origin
        self._code_of = {number: code for code, number in codes.items() if number >= 0}

    def busiest(self) -> tuple[str, int, int] | None:
        """The function, marked as no cell, that records most: its name and line, the nodes, and its calls."""
        if self._origin is None or not (self._origin.sites >= 0).any():
            return None
        sites, spans = self._origin.sites, self._origin.spans
        number, nodes = Counter((sites[sites >= 0] >> 32).tolist()).most_common(1)[0]
        code = self._code_of[number]
        place = f"{code.co_qualname}, {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
        return place, nodes, int((spans[:, 2] == number).sum())

    def of_types(self, names: Sequence[str]) -> str:
        """The line that recorded the first node of one of these types, in brackets; nothing if nobody knows."""
        if self._origin is None:
            return ""
        wanted = np.array([name in set(names) for name in self._origin.names], np.bool_)
        types = self._origin.types[: len(self._origin.sites)]
        is_known = wanted[types] & (self._origin.sites >= 0)
        if not is_known.any():
            return ""
        site = int(self._origin.sites[is_known][0])
        code, instruction = self._code_of[site >> 32], site & 0xFFFFFFFF
        lines = (line for begin, end, line in code.co_lines() if begin <= instruction < end)
        return f" ({os.path.basename(code.co_filename)}:{next(lines, None) or code.co_firstlineno})"


def _compiling(stats: Stats) -> list[LargeCost]:
    return [LargeCost(stats.seconds.get("compile", 0.0), "compiling kernels, once for each new type and shape")]


def _recording(stats: Stats, places: _LinesOfCode, *, has_keys: bool) -> list[LargeCost]:
    seconds, busiest = stats.seconds.get("record", 0.0), places.busiest()
    advice = "" if has_keys else "; with key= known examples are recorded once"
    if busiest is None:
        return [LargeCost(seconds, f"recording {stats.num_nodes} nodes{advice}")]
    place, nodes, calls = busiest
    each = f" in {calls} calls" if calls else ""
    text = f"recording, most of all {place}, which makes {nodes} nodes{each}: if marked (edbatch.cell), a call is one"
    return [LargeCost(seconds, text + advice)]


def _running(stats: Stats, places: _LinesOfCode) -> list[LargeCost]:
    seconds = stats.seconds.get("run", 0.0) + stats.seconds.get("backward", 0.0)
    total = sum(t.cost for t in stats.types) or 1.0
    groups: dict[str, list[TypeStats]] = defaultdict(list)
    for t in stats.types:
        groups[SIZES.sub("#", t.name)].append(t)
    return [
        LargeCost(
            seconds * sum(t.cost for t in group) / total, _of_types(group, places.of_types([t.name for t in group]))
        )
        for group in groups.values()
    ]


def _of_types(group: Sequence[TypeStats], place: str) -> str:
    nodes, batches = sum(t.num_nodes for t in group), sum(t.num_batches for t in group)
    work = f"{nodes} nodes in {batches} batches"
    first = next((t for t in group if t.reason is not None), group[0])
    if first.reason is not None:
        return f"running {first.name}{place} one by one, {nodes} nodes, because {first.reason}"
    if len(group) > 1:
        return (
            f"running {len(group)} types like {first.name}{place}, {work}: they differ in sizes alone, which keeps "
            "nodes apart; rows of torch.stack run together whatever their number"
        )
    if nodes / batches < FEW and nodes > 1:
        return f"running {first.name}{place}, {work}: hardly any two of them are ready at once"
    return f"running {first.name}{place}, {work}"
