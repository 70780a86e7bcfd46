"""Values of options that several commands have: text comes in, an object goes out."""

from __future__ import annotations

from pathlib import Path

from edbatch.errors import PolicyError
from edbatch.scheduling.policies import Learned, from_name
from edbatch.scheduling.policy_file import load_policy
from edbatch.scheduling.schedule import Policy


def policy_of(text: str) -> Policy:
    """A policy by its name, or from the `.json` file in which it was saved.

    >>> policy_of("agenda")
    Agenda()
    """
    if not text.endswith(".json"):
        return from_name(text)
    try:
        return Learned(load_policy(text))
    except OSError as error:
        raise PolicyError(f"cannot read {Path(text)}: {error.strerror}; give a policy's name or its file") from error
