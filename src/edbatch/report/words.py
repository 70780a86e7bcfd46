"""A learned machine (a policy with a table of states) in words, for tables, pictures and messages."""

from __future__ import annotations

from collections.abc import Hashable

from edbatch.scheduling.fsm import MARK_NAMES, Fsm

NAME_LENGTH = 22  # characters; longer names of types are shortened
MEANING_OF = {
    "lowers": "launching it lowers the lower bound of what remains",
    "longest": "it has the ready node with the longest way to go",
    "most": "it has the most ready nodes",
}
SEEN_BY = {
    "base": "the ready types",
    "max": "the ready types, and which of them has the most ready nodes",
    "sort": "the ready types, those with the most ready nodes first",
    "signs": "the ready types with a mark",
}


def marks_of(encoding: str) -> list[str]:
    """The marks that types may have in a state of this encoding.

    >>> marks_of("signs")
    ['lowers', 'longest']
    """
    return list(dict.fromkeys(word for name in MARK_NAMES[encoding] for word in name.split()))


def shortened(name: Hashable, length: int = NAME_LENGTH) -> str:
    """A name of at most so many characters; of a longer one the middle is left out.

    >>> shortened("encoder.layers.12.attention(f32[64], f32[64])")
    'encoder.layer…f32[64])'
    """
    text = " ".join(str(name).split())
    tail = 2 * length // 5
    return text if len(text) <= length else f"{text[: length - tail - 1]}…{text[-tail:]}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun, singular or plural.

    >>> counted(1, "state"), counted(2_000, "batch", "batches")
    ('1 state', '2,000 batches')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def why_no_states(policy: Fsm) -> str:
    """Why a machine has no states, so that its rule always decides."""
    training = policy.training
    if training.chosen or len(training.curve) < 2:
        return "The rule alone decides, because no state was learned."
    where = " on the held-out mini-batches" if training.held_out_lower_bound else ""
    return f"The rule alone decides, because no table was better{where}."


def rule_lines(crowd: float) -> list[str]:
    """Lines that say what the rule launches."""
    lines = [
        "The rule launches the ready type with the largest sum of",
        "•  1, if launching it lowers the lower bound of what remains",
        "•  its longest way to go, as a share of the longest of all",
    ]
    return lines + [f"•  {crowd:g} × the logarithm of the ways to go of its ready nodes together"] * bool(crowd)
