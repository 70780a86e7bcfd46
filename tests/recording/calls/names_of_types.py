"""The names of the types that a function records, for tests."""

import enum

import torch
from torch import nn

import edbatch

X = torch.ones(4)
FIRST, SECOND = nn.Linear(4, 4), nn.Linear(4, 4)


def names(fn, *columns, **keywords):
    found = edbatch.record(fn, *columns, **keywords).type_names
    assert len(set(found)) == len(found)
    return set(found)


def by_example(fn, *columns, **keywords):
    """The names of the nodes of every example, without sums at its end: those of all results are recorded last."""
    recording = edbatch.batch(fn).pipeline.record_examples(columns, keywords)[0]
    found = recording.graph.type_names
    assert len(set(found)) == len(found)
    ends = [*recording.starts[1:], len(recording.types)]
    examples = [[found[t] for t in recording.types[a:b]] for a, b in zip(recording.starts, ends, strict=True)]
    for example in examples:
        while example and example[-1].startswith("sum of values"):
            example.pop()
    return examples


def assert_independent_of_order(fn, *columns, **keywords):
    backwards = [list(c)[::-1] for c in columns]
    assert by_example(fn, *columns, **keywords) == by_example(fn, *backwards, **keywords)[::-1]
    found = names(fn, *columns, **keywords)
    assert found == names(fn, *backwards, **keywords)
    assert not any("#" in name for name in found)
    return found


def pick(cells):
    return lambda i: cells[i](X)


def of_globals(i):
    return SECOND(X) if i else FIRST(X)


class Model(nn.Module):
    """Holds two cells, where torch looks for them or where it does not."""

    def __init__(self, cells):
        super().__init__()
        self.cells = cells

    def forward(self, i):
        return list(self.cells.values() if hasattr(self.cells, "values") else self.cells)[i](X)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def closure():
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    return lambda i: two(X) if i else one(X)


@edbatch.cell(static="how")
def step(x, how):
    return x * 2
