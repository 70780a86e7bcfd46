"""Generated data looks like the real data that it stands for: as long, as deep, as varied and as unevenly tagged."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from statistics import correlation, mean, stdev
from typing import TypeVar

import pytest

from edbatch.datasets.lattices import Lattice, load_lattices
from edbatch.datasets.synthetic.random_lattices import random_lattices
from edbatch.datasets.synthetic.random_sentences import random_sentences
from edbatch.datasets.synthetic.random_translations import random_translations
from edbatch.datasets.synthetic.random_trees import random_trees
from edbatch.datasets.tags import Sentence, load_tags
from edbatch.datasets.translations import load_pairs
from edbatch.datasets.trees import Tree, load_trees

pytestmark = pytest.mark.skipif(
    not os.environ.get("EDBATCH_DATA"), reason="EDBATCH_DATA does not name the folder of real data"
)


Example = TypeVar("Example")


def shuffled(examples: Sequence[Example]) -> list[Example]:
    """In real files, unlike in generated ones, neighbours are of one article or talk and share rare words."""
    return random.Random(0).sample(examples, len(examples))


def lengths(sequences: Sequence[Sequence]) -> dict[str, float]:
    sizes = list(map(len, sequences))
    return {"mean length": mean(sizes), "deviation of lengths": stdev(sizes)}


def words(tokens: Sequence[Hashable], name: str = "words") -> dict[str, float]:
    """How varied tokens are: different ones among a quarter and among all of them, shares of the most frequent ones."""
    counts = [count for _, count in Counter(tokens).most_common()]
    quarter = len(tokens) // 4
    growth = mean(len(set(tokens[part * quarter :][:quarter])) for part in range(4))
    return {
        f"different {name} per token": len(counts) / len(tokens),
        f"different {name} per token of a quarter": growth / quarter,
        **{f"share of the top {top} {name}": sum(counts[:top]) / len(tokens) for top in (10, 100, 1000)},
    }


def shares(items: Sequence[Hashable]) -> dict[str, float]:
    """The shares of the items by rank, for items may be numbered as they like."""
    return {f"share {rank}": count / len(items) for rank, (_, count) in enumerate(Counter(items).most_common(5))}


def of_trees(trees: list[Tree]) -> dict[str, float]:
    leaves = [[node.word for node in tree.nodes() if node.is_leaf] for tree in trees]
    heights = []
    for tree in trees:
        stack: list[int] = []
        for node in tree.nodes():
            stack.append(1 if node.is_leaf else 1 + max(stack.pop(), stack.pop()))
        heights += stack
    tokens = [word for sentence in leaves for word in sentence]
    labels = shares([node.label for tree in trees for node in tree.nodes()])
    return lengths(leaves) | words(tokens) | labels | {"mean height": mean(heights), "deviation": stdev(heights)}


def of_sentences(sentences: list[Sentence]) -> dict[str, float]:
    tokens = [word for sentence in sentences for word in sentence.words]
    tags = [tag for sentence in sentences for tag in sentence.tags]
    ((other, _),) = Counter(tags).most_common(1)
    names = [word for word, tag in zip(tokens, tags, strict=True) if tag != other]
    counts = Counter(tokens)
    return {
        **lengths([sentence.words for sentence in sentences]),
        **words(tokens),
        **shares(tags),
        "different names per token": len(set(names)) / len(names),
        "share of rare words": mean(counts[word] < 5 for word in tokens),
    }


def of_lattices(lattices: list[Lattice]) -> dict[str, float]:
    arcs = [
        (node - source, token)
        for lattice in lattices for node, arcs in enumerate(lattice.arcs) for source, token in arcs
    ]  # fmt: skip
    num_nodes = sum(len(lattice.tags) for lattice in lattices)
    return {
        **lengths([lattice.tags for lattice in lattices]),
        **words([token for reach, token in arcs if reach == 1], "characters"),
        **words([token for reach, token in arcs if reach > 1]),
        "arcs per node": len(arcs) / num_nodes,
        "share of words of two characters": mean(reach == 2 for reach, _ in arcs if reach > 1),
        "share of the usual tag": shares([tag for lattice in lattices for tag in lattice.tags])["share 0"],
    }


def of_sides(sides: list[tuple[int, ...]]) -> dict[str, float]:
    tokens = [word for side in sides for word in side]
    return lengths(sides) | words(tokens) | {"share of unknown words": tokens.count(0) / len(tokens)}


def check(generated: dict[str, float], real: dict[str, float]) -> None:
    """Every number is within 20 % of the real one; shares may also be 0.08 off, and those of unknown words 0.015."""
    slack_of = {"share of unknown words": 0.015}
    slack_of |= {name: 0.08 for name in real if name.startswith("share") and name not in slack_of}
    margin_of = {name: max(0.2 * value, slack_of.get(name, 0)) for name, value in real.items()}
    off = {name: value for name, value in generated.items() if abs(value - real[name]) > margin_of[name]}
    assert not off, {name: real[name] for name in off}


def test_trees():
    real = of_trees(shuffled(load_trees("train", limit=2000).trees))
    check(of_trees(random_trees(2000, seed=0).trees), real)


@pytest.mark.parametrize("seed", [0, 1])
def test_sentences(seed):
    real = shuffled(load_tags().sentences)
    check(of_sentences(random_sentences(len(real), seed).sentences), of_sentences(real))


@pytest.mark.parametrize("seed", [0, 1])
def test_lattices(seed):
    real = shuffled(load_lattices("train").lattices)
    check(of_lattices(random_lattices(len(real), seed).lattices), of_lattices(real))


@pytest.mark.parametrize("seed", [0, 1])
def test_translations(seed):
    real = shuffled(load_pairs().pairs)
    generated = random_translations(len(real), seed).pairs
    check(of_sides([pair.source[:-1] for pair in generated]), of_sides([pair.source[:-1] for pair in real]))
    check(of_sides([pair.target[1:-1] for pair in generated]), of_sides([pair.target[1:-1] for pair in real]))
    for pairs in (generated, real):
        both = [len(pair.source) for pair in pairs], [len(pair.target) for pair in pairs]
        assert correlation(*both) == pytest.approx(0.95, abs=0.02)
        assert sum(both[1]) / sum(both[0]) == pytest.approx(1.25, abs=0.05)
