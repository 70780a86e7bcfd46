"""Generated tagged sentences: a number and a seed come in, a `TaggedText` goes out.

Lengths, tag frequencies and lengths of names are roughly those of WikiNER, and a word's tag follows from the word and
from its spelling, so a model can learn it; for demos, tests and machines without the real data.
"""

from __future__ import annotations

import random

from edbatch.datasets.synthetic.random_trees import spell
from edbatch.datasets.synthetic.zipf import zipf_weights
from edbatch.datasets.tags import Sentence, TaggedText
from edbatch.datasets.vocabulary import Vocabulary

_TAGS = ("O", "I-ORG", "I-PER", "I-LOC", "I-MISC")
_NAME_ENDS = ("co", "son", "land", "ish")  # from which a model that reads characters can tell the tags of names
_NAME_TAG_WEIGHTS = (30, 25, 23, 22)
_NAME_CHANCE = 0.1  # that a name begins, after a word that is no name
_NAME_LENGTH_WEIGHTS = (50, 32, 11, 5, 2)  # of 1, 2, … words
_NAME_EVERY = 6  # one in so many words is part of a name


def random_sentences(count: int, seed: int, num_words: int = 24_000) -> TaggedText:
    """`count` tagged sentences over a made-up language, whose words and their tags do not depend on the seed.

    >>> text = random_sentences(2, seed=0)
    >>> text.sentences == random_sentences(2, seed=0).sentences
    True
    """
    if num_words < _NAME_EVERY * len(_TAGS):
        raise ValueError(f"num_words must be at least {_NAME_EVERY * len(_TAGS)}, not {num_words}")
    rng = random.Random(seed)
    ids_of_tag: list[list[int]] = [[] for _ in _TAGS]  # tag ids begin at 1, as 0 is an unknown tag
    for id_ in range(1, num_words + 1):
        ids_of_tag[_tag_of(id_)].append(id_)
    exponents = (1.1, *[0.65] * (len(_TAGS) - 1))  # names are repeated less often than other words
    weights = [zipf_weights(len(ids), 2, exponent) for ids, exponent in zip(ids_of_tag, exponents, strict=True)]
    sentences = []
    for _ in range(count):
        tags = _random_tags(min(max(round(rng.gammavariate(3.1, 7.4)), 1), 144), rng)
        words = tuple(rng.choices(ids_of_tag[tag], cum_weights=weights[tag])[0] for tag in tags)
        sentences.append(Sentence(words, tuple(tag + 1 for tag in tags)))
    return TaggedText(
        sentences,
        Vocabulary(map(_spell, range(1, num_words + 1))),
        Vocabulary(_TAGS),
        f"generated sentences, seed {seed}",
    )


def _tag_of(id_: int) -> int:
    return 0 if id_ % _NAME_EVERY else 1 + id_ // _NAME_EVERY % (len(_TAGS) - 1)


def _spell(id_: int) -> str:
    tag = _tag_of(id_)
    return spell(id_ - 1).capitalize() + _NAME_ENDS[tag - 1] if tag else spell(id_ - 1)


def _random_tags(length: int, rng: random.Random) -> list[int]:
    tags: list[int] = []
    while len(tags) < length:
        if rng.random() < _NAME_CHANCE:
            (tag,) = rng.choices(range(1, len(_TAGS)), weights=_NAME_TAG_WEIGHTS)
            (name_length,) = rng.choices(range(1, len(_NAME_LENGTH_WEIGHTS) + 1), weights=_NAME_LENGTH_WEIGHTS)
            tags += [tag] * name_length
        else:
            tags.append(0)
    return tags[:length]
