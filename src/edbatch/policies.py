"""The policies, under their public name `edbatch.policies`. A policy decides which recorded calls run together."""

from edbatch.scheduling.fsm import Fsm
from edbatch.scheduling.learning_record import QLearning
from edbatch.scheduling.policies import (
    Agenda,
    AgendaRemaining,
    BoundGreedy,
    Depth,
    Exact,
    Learned,
    RatioGreedy,
    from_name,
)  # fmt: skip

__all__ = [
    "Agenda", "AgendaRemaining", "BoundGreedy", "Depth", "Exact", "Fsm", "Learned", "QLearning", "RatioGreedy",
    "from_name",
]  # fmt: skip
