from __future__ import annotations

import random
from itertools import pairwise, permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import edbatch
from edbatch.errors import LeafError
from edbatch.pq.tree import PQTree, Structure

Order = tuple[int, ...]


def consecutive(order: Order, subset: set[int]) -> bool:
    places = [place for place, leaf in enumerate(order) if leaf in subset]
    return not places or places[-1] - places[0] == len(places) - 1


def hidden_intervals(num_leaves: int, num_sets: int, longest: int, seed: int) -> tuple[list[int], list[list[int]]]:
    """A random order of the leaves, and sets that are consecutive in it, each shuffled."""
    rng = random.Random(seed)
    order = rng.sample(range(num_leaves), num_leaves)
    sets = []
    for _ in range(num_sets):
        length = rng.randint(2, longest)
        start = rng.randrange(num_leaves - length + 1)
        sets.append(rng.sample(order[start : start + length], length))
    return order, sets


def check_structure(structure: Structure, is_top: bool = True) -> None:
    """A P node has at least two children and a Q node at least three: otherwise two trees could mean the same."""
    kind, inside = structure
    if kind != "leaf":
        assert len(inside) >= {"P": 0 if is_top else 2, "Q": 3}[kind]
        for child in inside:
            check_structure(child, is_top=False)


@st.composite
def leaves_and_sets(draw: st.DrawFn) -> tuple[int, list[set[int]]]:
    num_leaves = draw(st.integers(0, 7))
    sets = st.sets(st.sampled_from(range(num_leaves))) if num_leaves else st.just(set())
    return num_leaves, draw(st.lists(sets, max_size=8))


@st.composite
def sets_of_two_orders(draw: st.DrawFn) -> tuple[int, list[set[int]]]:
    """Intervals of one order, and some of another: sets that mostly fit, so that trees become rich before one fails."""
    num_leaves = draw(st.sampled_from([4, 5, 5, 6, 6, 7]))
    orders = [list(range(num_leaves)), draw(st.permutations(range(num_leaves)))]
    drawn = st.tuples(st.sampled_from([0, 0, 0, 1]), st.integers(0, num_leaves - 2), st.integers(2, num_leaves))
    sets = draw(st.lists(drawn, min_size=3, max_size=9))
    return num_leaves, [set(orders[which][start : start + size]) for which, start, size in sets]


# One example per template, by its name in the paper: the last set is the one that needs it.
@settings(max_examples=200)
@given(st.one_of(leaves_and_sets(), sets_of_two_orders()))
@example((4, [{0, 1}, {0, 1}]))  # P1
@example((4, [{0, 1, 2}, {1, 2, 3}, {0, 1, 2, 3}]))  # Q1
@example((5, [{0, 1, 2}]))  # P2
@example((6, [{0, 1, 2}, {2, 3}]))  # P3 below P4
@example((6, [{0, 1, 2, 3, 4}, {0, 1, 2}, {0, 3, 5}]))  # P5
@example((7, [{0, 1, 2}, {3, 4, 5}, {2, 3}]))  # P6 without full children
@example((7, [{0, 1}, {3, 4}, {0, 3, 5, 6}]))  # P6 with full children
@example((6, [{0, 1}, {1, 2}, {2, 3, 4}, {3, 4}, {2, 3}]))  # Q2
@example((7, [{0, 1}, {1, 2}, {2, 3}, {3, 4, 5}, {4, 6}]))  # Q2 below the root
@example((7, [{0, 1, 2}, {2, 3, 4}, {3, 4, 5, 6}, {1, 2, 3}]))  # Q3
@example((5, [{0, 1}, {1, 2}, {0, 2}]))  # a Q node that refuses
@example((5, [{0, 1}, {1, 2}, {1, 3}]))  # a full child inside a Q node below the root
@example((6, [{0, 1}, {2, 3}, {4, 5}, {0, 2, 4}]))  # three partial children
@example((7, [{0, 1, 2, 3}, {0, 1}, {2, 3}, {0, 2, 4}]))  # two partial children below the root
def test_exactly_the_orders_in_which_every_accepted_set_is_consecutive(case: tuple[int, list[set[int]]]) -> None:
    num_leaves, sets = case
    tree = PQTree(range(num_leaves))
    expected = set(permutations(range(num_leaves)))
    for subset in sets:
        before = tree.structure()
        kept = {order for order in expected if consecutive(order, subset)}
        assert tree.reduce(subset) == bool(kept)
        if kept:
            expected = kept
        else:
            assert tree.structure() == before
        check_structure(tree.structure())
        assert tree.orders() == expected
        assert tree.frontier() in expected


@pytest.mark.parametrize("num_leaves", [1_000, 5_000, 100_000])
def test_large_intervals_of_a_hidden_order_are_all_accepted(num_leaves: int) -> None:
    order, sets = hidden_intervals(num_leaves, num_leaves // 2, longest=20, seed=0)
    tree = PQTree(range(num_leaves))
    assert all(tree.reduce(subset) for subset in sets)
    frontier = tree.frontier()
    assert sorted(frontier) == sorted(order)
    place_of = {leaf: place for place, leaf in enumerate(frontier)}
    for subset in sets:
        places = [place_of[leaf] for leaf in subset]
        assert max(places) - min(places) == len(subset) - 1


def test_enough_neighbours_leave_the_hidden_order_and_its_reverse() -> None:
    order, _ = hidden_intervals(num_leaves=3_000, num_sets=0, longest=2, seed=0)
    pairs = list(pairwise(order))
    random.Random(1).shuffle(pairs)  # so that long Q nodes are joined end to end, either way round
    tree = PQTree(range(3_000))
    assert all(tree.reduce(pair) for pair in pairs)
    assert tree.frontier() in (tuple(order), tuple(reversed(order)))
    assert tree.structure()[0] == "Q"


def test_refused_sets_among_many_change_nothing() -> None:
    order, sets = hidden_intervals(num_leaves=1_000, num_sets=2_000, longest=20, seed=0)
    tree = PQTree(range(1_000))
    assert all(tree.reduce(subset) for subset in sets)
    before = tree.structure()
    for start in range(980):
        assert not tree.reduce([order[start], order[start + 20]])  # other sets hold leaves between them
        assert not tree.reduce([*order[start : start + 19 : 2], order[start + 20]])
    assert tree.structure() == before
    assert all(tree.reduce(subset) for subset in sets)
    assert tree.structure() == before


def test_a_set_is_a_set() -> None:
    """Neither the order in which a set lists its leaves nor repetitions change the tree that comes out."""
    _, sets = hidden_intervals(num_leaves=60, num_sets=40, longest=9, seed=0)
    trees = [PQTree(range(60)) for _ in range(3)]
    for subset in sets:
        for tree, listed in zip(trees, (subset, sorted(subset), [*subset, *subset[::-1]]), strict=True):
            assert tree.reduce(listed)
        assert len({tree.structure() for tree in trees}) == 1


def test_depth_needs_no_recursion() -> None:
    num_leaves = 1_200  # more than Python's limit on recursion
    tree = PQTree(range(num_leaves))
    for size in range(num_leaves - 1, 1, -1):  # from the outside in: a chain of P nodes, each inside the last
        assert tree.reduce(range(size))
    assert tree.frontier()[-2:] == (0, 1)
    depth, node = 0, tree.structure()
    while node[0] != "leaf":
        assert (node[0], len(node[1])) == ("P", 2)
        depth, node = depth + 1, node[1][-1]
    assert depth == num_leaves - 1
    assert tree.reduce([0, num_leaves - 1])  # through all of them at once: one Q node
    kind, children = tree.structure()
    assert (kind, len(children)) == ("Q", num_leaves)


@pytest.mark.parametrize(
    ("leaves", "structure", "text"),
    [("", ("P", ()), "{}"), ("a", ("leaf", "a"), "a"), ("ab", ("P", (("leaf", "a"), ("leaf", "b"))), "{a b}")],
)
def test_small_trees(leaves: str, structure: Structure, text: str) -> None:
    tree = PQTree(leaves)
    assert tree.reduce(leaves)
    assert tree.structure() == structure
    assert repr(tree) == text
    assert tree.orders() == set(permutations(leaves))


def test_leaves_are_any_hashables() -> None:
    tree = edbatch.PQTree([("P", ()), None, 2.5, frozenset()])
    assert tree.reduce([None, frozenset()])
    assert tree.reduce([("P", ()), None])
    assert tree.structure() == (
        "P",
        (("leaf", 2.5), ("Q", (("leaf", frozenset()), ("leaf", None), ("leaf", ("P", ()))))),
    )


def test_it_prints_braces_for_any_order_and_brackets_for_one() -> None:
    tree = PQTree("abcdef")
    for subset in ("ef", "cd", "def"):
        assert tree.reduce(subset)
    assert repr(tree) == "{a b [c d {e f}]}"
    assert repr(PQTree(range(101))) == "PQTree(101 leaves)"


def test_fewer_than_two_leaves_are_consecutive() -> None:
    tree = PQTree("abc")
    assert tree.reduce("")
    assert tree.reduce("b")
    assert tree.reduce("bb")
    assert tree.structure() == PQTree("abc").structure()


def test_wrong_leaves_are_named() -> None:
    tree = PQTree("abc")
    with pytest.raises(LeafError, match=r"'z' is not one of the 3 leaves .* give all leaves when the tree is made"):
        tree.reduce("abz")
    assert tree.structure() == PQTree("abc").structure()
    with pytest.raises(LeafError, match=r"\('x', 1\) is not one of"):
        tree.reduce([("x", 1)])  # type: ignore[list-item]
    with pytest.raises(LeafError, match="leaf 'a' is given twice"):
        PQTree("aba")
    with pytest.raises(LeafError, match="unhashable type: 'list'; leaves must be hashable"):
        PQTree([[1]])  # type: ignore[type-var]
