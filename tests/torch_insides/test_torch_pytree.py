"""What we rely on of torch's trees."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn

from edbatch.torch_insides import pytree
from edbatch.torch_insides.pytree import TreeSpec

Pair = namedtuple("Pair", ["first", "second"])
X, Y, Z = torch.ones(1), torch.ones(2), torch.ones(3)
TREES = [X, [X, Y], (X, (Y, Z)), {"a": X, "b": [Y]}, Pair(X, Y), OrderedDict(b=X, a=Y), [], None, 3]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_a_tree_is_its_leaves_and_how_they_are_put_together(tree):
    leaves, spec = pytree.tree_flatten(tree)
    assert isinstance(spec, TreeSpec)
    assert spec == pytree.tree_structure(tree)
    assert [*map(id, leaves)] == [*map(id, pytree.tree_leaves(tree))]
    again = pytree.tree_unflatten(leaves, spec)
    assert type(again) is type(tree)
    assert [*map(id, pytree.tree_leaves(again))] == [*map(id, leaves)]


def test_structures_that_differ_are_not_equal():
    specs = [pytree.tree_structure(tree) for tree in ([X], (X,), [X, Y], {"a": X}, {"b": X}, Pair(X, Y), (X, Y))]
    assert all((a == b) == (a is b) for a in specs for b in specs)


def test_leaves_of_arguments_are_those_of_args_and_of_kwargs():
    assert pytree.arg_tree_leaves(1, [2, 3], k=4) == [1, 2, 3, 4]


def test_leaves_of_a_class_or_a_kind_are_replaced():
    tree = {"a": [X, 2], "b": (nn.Parameter(Y), "c")}
    found = pytree.tree_map_only(torch.Tensor, lambda t: len(t), tree)
    assert found == {"a": [1, 2], "b": (2, "c")}
    assert pytree.tree_map_only(lambda x: x is X, lambda _: 5, tree)["a"] == [5, 2]


def test_places_have_words():
    leaves, spec = pytree.tree_flatten_with_path({"a": [X, Y]})
    assert [pytree.keystr(place) for place, _ in leaves] == ["['a'][0]", "['a'][1]"]
    assert spec == pytree.tree_structure({"a": [X, Y]})
