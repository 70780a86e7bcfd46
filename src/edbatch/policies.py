"""The policies, under their public name `edbatch.policies`."""

from edbatch.planning.policies import Agenda, AgendaRemaining, BoundGreedy, Depth, Exact, RatioGreedy, from_name

__all__ = ["Agenda", "AgendaRemaining", "BoundGreedy", "Depth", "Exact", "RatioGreedy", "from_name"]
