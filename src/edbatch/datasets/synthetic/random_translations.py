"""Generated translations: a number and a seed come in, `Translations` go out.

Lengths of both sides, their relation, and how often words are repeated are roughly those of IWSLT's English and
Vietnamese. Sentences are translated word by word, in order, so that a model can learn it. For demos, tests and machines
without the real data.
"""

from __future__ import annotations

import random

from edbatch.datasets.synthetic.random_trees import spell
from edbatch.datasets.synthetic.zipf import zipf_weights
from edbatch.datasets.translations import END, MARKS, START, Pair, Translations
from edbatch.datasets.vocabulary import Vocabulary

_NUM_SOURCE_WORDS, _NUM_TARGET_WORDS = 10_000, 4_000
_NUM_KNOWN_SOURCE_WORDS, _NUM_KNOWN_TARGET_WORDS = 5_700, 3_850  # rarer words are <unk>
_MIN_LENGTH, _MAX_LENGTH = 2, 93
_PARTS = (1, 1, 2, 0, 3, 1, 0, 1, 2, 1, 0, 1, 3, 1, 0, 2, 1, 1, 3, 0)  # how many words translate word w, at w % 20


def random_translations(count: int, seed: int) -> Translations:
    """`count` pairs of two made-up languages, whose words and their translations do not depend on the seed.

    >>> random_translations(2, seed=0).pairs == random_translations(3, seed=0).pairs[:2]
    True
    """
    rng = random.Random(seed)
    words_of = dictionary()
    weights = zipf_weights(_NUM_SOURCE_WORDS, offset=6, exponent=1.25)
    start, end = MARKS.index(START), MARKS.index(END)
    pairs = []
    for _ in range(count):
        length = min(max(round(rng.gammavariate(2.55, 7.1)), _MIN_LENGTH), _MAX_LENGTH)
        words = rng.choices(range(_NUM_SOURCE_WORDS), cum_weights=weights, k=length)
        parts = [part for word in words for part in words_of[word]] or [0]  # a translation has at least one word
        source = [_id(word, _NUM_KNOWN_SOURCE_WORDS) for word in words]
        target = [_id(part, _NUM_KNOWN_TARGET_WORDS) for part in parts]
        pairs.append(Pair((*source, end), (start, *target, end)))
    source_words = Vocabulary([*MARKS, *map(spell, range(_NUM_KNOWN_SOURCE_WORDS))])
    target_words = Vocabulary([*MARKS, *(spell(part).upper() for part in range(_NUM_KNOWN_TARGET_WORDS))])
    return Translations(pairs, source_words, target_words, f"generated translations, seed {seed}")


def dictionary() -> list[list[int]]:
    """For each source word its translation: a list of target words.

    Words of both languages are numbered from the most frequent on; their ids come after those of `MARKS`.

    >>> [len(words) for words in dictionary()[:5]]
    [1, 1, 2, 0, 3]
    """
    rng = random.Random(0)
    weights = zipf_weights(_NUM_TARGET_WORDS, offset=3, exponent=0.5)
    return [
        rng.choices(range(_NUM_TARGET_WORDS), cum_weights=weights, k=_PARTS[word % len(_PARTS)])
        for word in range(_NUM_SOURCE_WORDS)
    ]


def _id(word: int, num_known: int) -> int:
    return len(MARKS) + word if word < num_known else 0
