"""`Batched.explain()`: the last call in words and a table."""

from __future__ import annotations

from edbatch.frontend.known_calls import RECORDS_IN_C
from edbatch.planning import policies
from edbatch.planning.schedule import Policy, schedule
from edbatch.stats import Stats

OTHERS = ("depth", "agenda", "agenda-remaining", "bound-greedy")


def explain(stats: Stats, policy: Policy) -> str:
    """What a call did and why. The lower bound and the other policies' counts are computed here, when asked."""
    counts = {name: schedule(stats.graph, policies.from_name(name)).num_batches for name in OTHERS}
    others = ", ".join(f"{name} {count}" for name, count in counts.items() if name != policy.name)
    lines = [
        f"{stats.num_nodes} nodes of {stats.num_types} types in {stats.num_batches} batches by policy {policy.name}",
        f"  lower bound {stats.graph.lower_bound()}; {others}" + _unseen(stats),
        *stats.costs(),
        *([] if RECORDS_IN_C else ["  recorded in Python: there was no C compiler at installation, which is slower"]),
        "",
        f"  {'nodes':>7} {'batches':>7} {'mean size':>9}  type",
    ]
    for t in sorted(stats.types, key=lambda t: -t.num_batches):
        lines.append(f"  {t.num_nodes:>7} {t.num_batches:>7} {t.num_nodes / max(t.num_batches, 1):>9.1f}  {t.name}")
        if t.runs_alone is not None:
            lines.append(f"{'':>28}ran one by one: {t.runs_alone}")
    return "\n".join(lines)


def _unseen(stats: Stats) -> str:
    return f"; {stats.unseen_states} states were unseen" if stats.unseen_states else ""
