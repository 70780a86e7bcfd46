"""The policies, under their public name `edbatch.policies`."""

from edbatch.planning.fsm import Fsm
from edbatch.planning.policies import (
    Agenda,
    AgendaRemaining,
    BoundGreedy,
    Depth,
    Exact,
    Learned,
    RatioGreedy,
    from_name,
)  # fmt: skip
from edbatch.planning.training import QLearning

__all__ = [
    "Agenda", "AgendaRemaining", "BoundGreedy", "Depth", "Exact", "Fsm", "Learned", "QLearning", "RatioGreedy",
    "from_name",
]  # fmt: skip
