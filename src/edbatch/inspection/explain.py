"""`Batched.explain()`: the last call in words and a table.

In: the stats of the call and its policy. Out: text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from edbatch.inspection.costs import SIZES
from edbatch.recording.calls.fast_cells import RECORDS_IN_C
from edbatch.scheduling import policies
from edbatch.scheduling.schedule import Policy, schedule
from edbatch.stats import Stats

OTHERS = ("depth", "agenda", "agenda-remaining", "bound-greedy")
MAX_ROWS = 20  # of the table of types
MANY = 8  # with so many types that differ only in sizes, a hint is given


def explain(stats: Stats, policy: Policy, forms: Mapping[str, str], costs: Sequence[str]) -> str:
    """What a call did and why. The lower bound and the other policies' batches are computed here, when asked for.

    Args:
        forms: of each cell by its name, how it runs.
        costs: the largest ones in words.
    """
    counts = {name: schedule(stats.graph, policies.from_name(name)).num_batches for name in OTHERS}
    others = ", ".join(f"{name} {count}" for name, count in counts.items() if name != policy.name)
    lines = [
        *(["the largest costs:", *costs, ""] if costs else []),
        f"{stats.num_nodes} nodes of {stats.num_types} types in {stats.num_batches} batches by policy {policy.name}",
        f"  lower bound {stats.graph.lower_bound()}; {others}" + _unseen(stats),
        *stats.costs(),
        *_forms(forms),
        *([] if RECORDS_IN_C else ["  recorded in Python: there was no C compiler at installation, which is slower"]),
        "",
        f"  {'nodes':>7} {'batches':>7} {'mean size':>9}  type (those first that take most time, by an estimate)",
    ]
    types = sorted(stats.types, key=lambda t: -t.cost)
    for i, t in enumerate(types):
        if i >= MAX_ROWS and t.reason is None:
            continue
        lines.append(f"  {t.num_nodes:>7} {t.num_batches:>7} {t.num_nodes / max(t.num_batches, 1):>9.1f}  {t.name}")
        if t.reason is not None:
            lines.append(f"{'':>28}ran one by one: {t.reason}")
    if len(types) > MAX_ROWS:
        lines.append(f"  and others, {len(types)} in all: see batched.stats.types")
    return "\n".join([*lines, *_sizes([t.name for t in types])])


def _forms(forms: Mapping[str, str]) -> list[str]:
    """How cells run: as what most of them do, and which do not."""
    names: dict[str, list[str]] = {}
    for name, form in forms.items():
        names.setdefault(form, []).append(name)
    found = sorted(names.items(), key=lambda item: -len(item[1]))
    return [f"  {len(of)} cell{'s'[: len(of) > 1]} as {form}: {', '.join(of[:3])}{', …'[: 3 * (len(of) > 3)]}"
            for form, of in found]  # fmt: skip


def _unseen(stats: Stats) -> str:
    return f"; {stats.unseen_states} of its states were new and left to its rule" if stats.unseen_states else ""


def _sizes(names: list[str]) -> list[str]:
    """A hint if many types differ only in the sizes of values, because that keeps their nodes from running together."""
    (pattern, count), *_ = Counter(SIZES.sub("#", name) for name in names).most_common(1) or [("", 0)]
    if count < MANY:
        return []
    example = next(name for name in names if SIZES.sub("#", name) == pattern)
    return [
        "",
        f"  {count} types like {example} differ only in sizes, which keeps their nodes apart.",
        "  Rows of torch.stack run together whatever their number: in sums, softmax, row-wise functions and modules",
    ]
