"""Generated triangles, grids and dags are the same for the same seed, and are what their description says."""

from __future__ import annotations

from collections import Counter
from functools import partial
from math import prod
from statistics import mean

import pytest

from edbatch.datasets import random_dags, random_grids, random_triangles
from edbatch.datasets.synthetic.random_dags import NUM_TAGS, NUM_TOKENS, tag_of
from edbatch.datasets.synthetic.random_grids import NUM_CLASSES, NUM_WORDS

GENERATORS = {f"grids{dims}": partial(random_grids, dims=dims) for dims in (1, 2, 3)} | {"triangles": random_triangles}


@pytest.mark.parametrize("generate", [*GENERATORS.values(), random_dags], ids=[*GENERATORS, "dags"])
def test_seed_decides(generate):
    assert generate(10, seed=7) == generate(12, seed=7)[:10]
    assert generate(10, seed=7) != generate(10, seed=8)


@pytest.mark.parametrize("generate", GENERATORS.values(), ids=GENERATORS)
def test_label_is_what_most_words_speak_for(generate):
    examples = generate(500, seed=0)
    for example in examples:
        votes = Counter(word % NUM_CLASSES for word in example.words)
        assert example.label == min(votes, key=lambda class_: (-votes[class_], class_))
    words = Counter(word for example in examples for word in example.words)
    assert set(words) <= set(range(NUM_WORDS))
    assert sum(words[word] for word in range(NUM_WORDS // 10)) > 0.4 * words.total()  # small ids are frequent
    labels = Counter(example.label for example in examples)
    assert all(0.14 < labels[label] / len(examples) < 0.27 for label in range(NUM_CLASSES))


@pytest.mark.parametrize(
    ("dims", "sides"),
    [(1, [range(10, 50)]), (2, [range(3, 5), range(20, 25)]), (3, [range(2, 4), range(2, 4), range(10, 15)])],
)
def test_shapes(dims, sides):
    grids = random_grids(500, seed=0, dims=dims)
    assert [set(lengths) for lengths in zip(*(grid.shape for grid in grids), strict=True)] == list(map(set, sides))
    assert all(len(grid.words) == prod(grid.shape) for grid in grids)


def test_triangles_have_10_to_14_leaves():
    assert {len(triangle.words) for triangle in random_triangles(100, seed=0)} == set(range(10, 15))


@pytest.mark.parametrize("dims", [0, 4])
def test_other_dimensions_are_refused(dims):
    with pytest.raises(ValueError, match=f"dims must be 1, 2 or 3, not {dims}"):
        random_grids(1, seed=0, dims=dims)


def test_dags():
    dags = random_dags(20, seed=0)
    for dag in dags:
        assert len(dag.arcs) == len(dag.tags) == 200
        assert dag.tags == tuple(map(tag_of, dag.arcs))
        for state, arcs in enumerate(dag.arcs):
            sources = {source for source, _, _ in arcs}
            assert len(sources) == len(arcs) == min(4, state)
            assert sources <= set(range(max(state - 30, 0), state))
    arcs = [arc for dag in dags for arcs in dag.arcs for arc in arcs]
    assert mean(kind for _, kind, _ in arcs) == pytest.approx(0.1, abs=0.01)
    assert {kind for _, kind, _ in arcs} == {0, 1}
    assert {token for _, _, token in arcs} <= set(range(NUM_TOKENS))
    reaches = Counter(state - source for dag in dags for state, arcs in enumerate(dag.arcs) for source, _, _ in arcs)
    assert (min(reaches), max(reaches)) == (1, 30)
    tags = Counter(tag for dag in dags for tag in dag.tags)
    assert all(0.04 < tags[tag] / tags.total() < 0.35 for tag in range(NUM_TAGS))
