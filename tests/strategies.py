"""Hypothesis strategies of graphs, as the (types, inputs) lists that `Graph.from_lists` takes."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

Lists = tuple[list[str], list[list[int]]]


def _growing() -> tuple[list[str], list[list[int]], Callable[..., int]]:
    """An empty graph, and the function that adds a node to it."""
    types: list[str] = []
    inputs: list[list[int]] = []

    def add(type_: str, *producers: int) -> int:
        types.append(type_)
        inputs.append(list(producers))
        return len(types) - 1

    return types, inputs, add


@st.composite
def dags(draw: st.DrawFn, max_nodes: int = 30, max_types: int = 4, max_inputs: int = 3) -> Lists:
    """Any typed DAG: isolated nodes, several outputs, the same input twice, no node at all."""
    n = draw(st.integers(0, max_nodes))
    types = [draw(st.sampled_from("abcdefgh"[:max_types])) for _ in range(n)]
    inputs = [draw(st.lists(st.integers(0, i - 1), max_size=max_inputs)) if i else [] for i in range(n)]
    return types, inputs


@st.composite
def trees(draw: st.DrawFn, max_trees: int = 4, max_leaves: int = 8, internal: tuple[str, ...] = ("node",)) -> Lists:
    """A mini-batch of binary trees, an output at every node; internal nodes draw one of the internal types."""
    types, inputs, add = _growing()
    for _ in range(draw(st.integers(1, max_trees))):
        roots = [add("leaf") for _ in range(draw(st.integers(1, max_leaves)))]
        first = roots[0]
        while len(roots) > 1:
            at = draw(st.integers(0, len(roots) - 2))
            roots[at : at + 2] = [add(draw(st.sampled_from(internal)), roots[at], roots[at + 1])]
        for node in range(first, len(types)):
            add("out", node)
    return types, inputs


@st.composite
def lattices(draw: st.DrawFn, max_lattices: int = 3, max_length: int = 8) -> Lists:
    """A mini-batch of word lattices: a char arc from the node before, sometimes a word arc from further back, a sum."""
    types, inputs, add = _growing()
    for _ in range(draw(st.integers(1, max_lattices))):
        states = [add("start")]
        for i in range(1, draw(st.integers(1, max_length))):
            arcs = [add("char", states[-1])]
            if i > 1 and draw(st.booleans()):
                arcs.append(add("word", states[draw(st.integers(0, i - 2))]))
            states.append(add("sum", *arcs) if len(arcs) > 1 else arcs[0])
        for state in states:
            add("out", state)
    return types, inputs


def words(*texts: str) -> Lists:
    """A chain per word, a node per letter: the types are the letters."""
    types, inputs, add = _growing()
    for text in texts:
        last: tuple[int, ...] = ()
        for letter in text:
            last = (add(letter, *last),)
    return types, inputs


def graphs() -> st.SearchStrategy[Lists]:
    """All of the above, for what must hold on any graph."""
    return st.one_of(dags(), trees(internal=("node", "other")), lattices())
