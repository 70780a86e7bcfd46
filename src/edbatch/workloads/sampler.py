"""Which examples make a mini-batch, and which rank (process) runs which of them: numbers come in, indices go out.

Every rank computes the whole assignment, so that nothing need be sent. Ranks get about the same amount of work of a
mini-batch, not the same number of examples: else the others would wait for the rank with the large trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random


def mini_batches(num_examples: int, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The examples of an epoch in random order, in mini-batches of at most `batch_size`, of nearly equal sizes.

    >>> [len(indices) for indices in mini_batches(10, batch_size=4, seed=0, epoch=0)]
    [3, 3, 4]
    """
    order = list(range(num_examples))
    Random(seed * 1_000_003 + epoch).shuffle(order)
    count = -(-num_examples // batch_size)
    ends = [num_examples * i // count for i in range(count + 1)]
    return [order[begin:end] for begin, end in pairwise(ends)]


def shares(indices: Sequence[int], num_steps: Sequence[int], num_ranks: int) -> list[list[int]]:
    """A mini-batch divided among ranks: the largest example first, each to the rank with the least work so far.

    `num_steps[index]` is the work of an example. Every rank gets an example, if there are enough.

    >>> shares([0, 1, 2, 3], num_steps=[9, 3, 4, 2], num_ranks=2)
    [[0], [1, 2, 3]]
    """
    work = [0] * num_ranks
    owned: list[list[int]] = [[] for _ in range(num_ranks)]
    for index in sorted(indices, key=lambda i: -num_steps[i]):
        rank = min(range(num_ranks), key=lambda r: (work[r], len(owned[r])))
        owned[rank].append(index)
        work[rank] += num_steps[index]
    place_of = {index: place for place, index in enumerate(indices)}
    return [sorted(share, key=place_of.__getitem__) for share in owned]
