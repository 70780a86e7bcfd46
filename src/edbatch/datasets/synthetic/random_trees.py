"""Generated sentiment trees: a number and a seed come in, a `Treebank` goes out.

Lengths, depths and label frequencies are roughly those of the Stanford Sentiment Treebank, and the labels follow from
the words and the shape of the tree, so a model can learn them; for demos, tests and machines without the real data.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate

from edbatch.datasets.trees import Tree, Treebank
from edbatch.datasets.vocabulary import Vocabulary

PERFECT_DEPTHS = (5, 6, 7)

_SCORE_OF_LABEL = (-2, -1, 0, 1, 2)
_LEAF_LABEL_SHARES = (0.008, 0.05, 0.852, 0.07, 0.02)  # of the words of a sentence, as in the real trees
_NEUTRAL = 2
_NUM_FUNCTION_WORDS = 30  # the most frequent words are all neutral ...
_NEGATION = 5  # ... and one of them turns the meaning of its right sibling round, as "not" does


def random_trees(n: int, seed: int, num_words: int = 18_000) -> Treebank:
    """`n` binary sentiment trees over a made-up language, whose words and their meaning do not depend on the seed.

    >>> bank = random_trees(2, seed=0)
    >>> [len(list(tree.nodes())) for tree in bank.trees] == [len(list(t.nodes())) for t in random_trees(2, 0).trees]
    True
    """
    rng = random.Random(seed)
    language = _Language(num_words)

    def size_of_left(num_leaves: int) -> int:  # leaning to the right, as English does
        return 1 if rng.random() < 0.45 else rng.randrange(1, num_leaves)

    trees = []
    for _ in range(n):
        num_leaves = min(max(round(rng.gammavariate(4.2, 4.6)), 2), 52)
        trees.append(_join(language.leaves(num_leaves, rng), size_of_left)[0])
    return Treebank(trees, Vocabulary(map(spell, range(num_words))), f"generated trees, seed {seed}")


def random_perfect_trees(count: int, seed: int, num_words: int = 1_000) -> Treebank:
    """`count` trees whose leaves are all at one depth, 5 to 7 below the root; words and labels as in `random_trees`.

    >>> {len(list(tree.nodes())) for tree in random_perfect_trees(20, seed=0).trees} == {63, 127, 255}
    True
    """
    rng = random.Random(seed)
    language = _Language(num_words)
    trees = []
    for _ in range(count):
        leaves = language.leaves(2 ** rng.choice(PERFECT_DEPTHS), rng)
        trees.append(_join(leaves, lambda num_leaves: num_leaves // 2)[0])
    return Treebank(trees, Vocabulary(map(spell, range(num_words))), f"generated perfect trees, seed {seed}")


class _Language:
    """The words for each label, and how often each is used. Word w has the id w + 1; small ids are frequent (Zipf)."""

    def __init__(self, num_words: int) -> None:
        if num_words <= 2 * _NUM_FUNCTION_WORDS:
            raise ValueError(f"num_words must be above {2 * _NUM_FUNCTION_WORDS}, not {num_words}")
        rng = random.Random(num_words)
        self.words: list[list[int]] = [[] for _ in _SCORE_OF_LABEL]
        for word in range(num_words):
            is_function_word = word < _NUM_FUNCTION_WORDS
            label = _NEUTRAL if is_function_word else rng.choices(range(5), weights=(4, 16, 56, 18, 6))[0]
            self.words[label].append(word)
        for label, words in enumerate(self.words):
            words += [] if words else [_NUM_FUNCTION_WORDS + label]
        self.weights = [list(accumulate(1 / (word + 3) for word in words)) for words in self.words]

    def leaves(self, num_leaves: int, rng: random.Random) -> list[Tree]:
        """The words of a sentence, labelled."""
        leaning = rng.choice((0.3, 1.5))  # a sentence is mostly negative or mostly positive
        shares = [share * (leaning if score > 0 else 2 - leaning if score < 0 else 1)
                  for share, score in zip(_LEAF_LABEL_SHARES, _SCORE_OF_LABEL, strict=True)]  # fmt: skip
        leaves = []
        for label in rng.choices(range(5), weights=shares, k=num_leaves):
            word = rng.choices(self.words[label], cum_weights=self.weights[label])[0]
            leaves.append(Tree(label, word=word + 1))
        return leaves


def _join(leaves: list[Tree], size_of_left: Callable[[int], int]) -> tuple[Tree, int]:
    """A tree over the leaves, and its score; depth is at most the number of leaves (52), so recursion is safe.

    `size_of_left(n)` is how many of n leaves the left child gets.
    """
    if len(leaves) == 1:
        return leaves[0], _SCORE_OF_LABEL[leaves[0].label]
    split = size_of_left(len(leaves))
    left, left_score = _join(leaves[:split], size_of_left)
    right, right_score = _join(leaves[split:], size_of_left)
    score = -right_score if left.word == _NEGATION + 1 else left_score + right_score
    return Tree(_label_of(score), left=left, right=right), score


def _label_of(score: int) -> int:
    return 2 if score == 0 else (3 if score < 3 else 4) if score > 0 else (1 if score > -3 else 0)


def spell(word: int) -> str:
    """A pronounceable name: one syllable for the 80 most frequent words, two for the next 6,400, and so on.

    >>> spell(0), spell(79), spell(80)
    ('ba', 'zu', 'baba')
    """
    text = ""
    word += 1
    while word:
        word, syllable = divmod(word - 1, 80)
        text = "bdfghjklmnprstvz"[syllable // 5] + "aeiou"[syllable % 5] + text
    return text
