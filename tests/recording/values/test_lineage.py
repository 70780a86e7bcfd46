"""Questions about memory and gradients look only at the nodes that can say something about them, and at each once."""

import torch
from torch import nn

import edbatch
from edbatch.recording.program.marking import active
from edbatch.recording.values.lineage import Walk

X = torch.randn(3, 4)
WEIGHT = nn.Parameter(torch.ones(4))


def looked_at(monkeypatch, function, x=X):
    """The nodes that the walks stopped at while a function asked its questions, and the names of their types."""
    found, original = {}, Walk.steps

    def steps(walk):
        stops = original(walk)
        found.setdefault(walk, []).extend((node, node_type.name) for node, node_type, _ in stops)
        return stops

    def seen(x):
        lineage = active.get().lineage
        found.update({lineage._of_memory: [], lineage._of_grad: []})
        return function(x)

    monkeypatch.setattr(Walk, "steps", steps)
    edbatch.batch(seen)(x)
    return list(found.values())


def test_writes_pass_by_nodes_that_share_no_memory(monkeypatch):
    def function(x):
        y = x * 2
        for _ in range(5):
            y = torch.tanh(y)
            y += 1
        part = y.view(2, 2)
        z = torch.stack([y, y]).sum(0)
        z += 1
        return z + part.sum()

    nodes = [name for _, name in looked_at(monkeypatch, function, X[:1])[0]]
    assert len(nodes) == 2  # sums are of any length, so that where the next node begins has to be read
    assert "view" in nodes[0]
    assert "sum of" in nodes[1]


def test_each_node_is_looked_at_once(monkeypatch):
    def function(x):
        y = x * WEIGHT
        for _ in range(4):
            y = y.reshape(2, 2).reshape(4) * WEIGHT
            assert y.requires_grad
            y += 1
        return y

    for stops in looked_at(monkeypatch, function, X[:1]):
        assert stops
        assert len(set(stops)) == len(stops)


def test_without_gradients_nothing_is_looked_at_for_them(monkeypatch):
    def function(x):
        y = x * 2
        for _ in range(4):
            y = torch.tanh(y) * WEIGHT
            y += 1
            assert not y.requires_grad
        return y

    with torch.no_grad():
        assert looked_at(monkeypatch, function)[1] == []
