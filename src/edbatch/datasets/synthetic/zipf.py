"""How often words are used: Zipf's law."""

from __future__ import annotations

from itertools import accumulate
from math import exp, inf


def zipf_weights(num_words: int, offset: float, exponent: float = 1.0, fade: float = inf) -> list[float]:
    """Cumulative weights, as `random.choices` takes them, of words from the most frequent to the rarest.

    Word w weighs `(w + offset) ** -exponent`. Words beyond about `fade` weigh still less: there are only so many
    characters or syllables.

    >>> [round(weight, 2) for weight in zipf_weights(3, offset=1)]
    [1.0, 1.5, 1.83]
    """
    return list(accumulate((word + offset) ** -exponent * exp(-word / fade) for word in range(num_words)))
