"""A learned machine in words: what tables, pictures and messages say about it."""

from __future__ import annotations

from collections.abc import Hashable

from edbatch.scheduling.fsm import MARK_NAMES, Fsm

NAME_LENGTH = 22  # of a type; longer names are cut
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
    """The marks that a state of this encoding may have.

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
    """A number of things.

    >>> counted(1, "state"), counted(2_000, "batch", "batches")
    ('1 state', '2,000 batches')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def why_no_states(policy: Fsm) -> str:
    """Why the rule alone decides in a machine without states."""
    training = policy.training
    if training.chosen or len(training.curve) < 2:
        return "The rule alone decides, because no state was learned."
    where = " on the held-out mini-batches" if training.held_out_lower_bound else ""
    return f"The rule alone decides, because no table was better{where}."


def rule_lines(crowd: float) -> list[str]:
    """What the rule launches."""
    lines = [
        "The rule launches the ready type with the largest sum of",
        "•  1, if launching it lowers the lower bound of what remains",
        "•  its longest way to go, as a share of the longest of all",
    ]
    return lines + [f"•  {crowd:g} × the logarithm of the ways to go of its ready nodes together"] * bool(crowd)
