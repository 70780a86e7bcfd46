"""The models of lattices, DAGs, grids and programs are what the equations say, on one example from the weights."""

from __future__ import annotations

from types import SimpleNamespace as Example
from typing import Any

import pytest
import torch
from by_hand import assert_same, assert_same_root, example_of, gru, label_loss, model_of, parts, s, token_step

from edbatch.models import LatticeGRU, LatticeLSTM


def test_lattice_lstm():
    model, lattice = model_of("lattice-lstm"), example_of("lattice-lstm")
    assert max(map(len, lattice.arcs)) > 2
    hs, cs = [model.h0], [model.c0]
    for i in range(1, len(lattice.tags)):
        h, c = torch.zeros(()), torch.zeros(())
        for j, token in lattice.arcs[i]:
            step = token_step(model.char if j == i - 1 else model.word, token, (hs[j], cs[j]))
            h, c = h + step[0], c + step[1]
        hs, cs = [*hs, h], [*cs, c]
    assert_same(model(lattice), [label_loss(model.out, h, tag) for h, tag in zip(hs, lattice.tags, strict=True)])


def test_lattice_gru():
    model, lattice = model_of("lattice-gru"), example_of("lattice-gru")
    hs = [model.h0]
    for i in range(1, len(lattice.tags)):
        h = torch.zeros(())
        for j, token in lattice.arcs[i]:
            cell = model.char if j == i - 1 else model.word
            h = h + gru(cell.gru, cell.embedding.weight[token], hs[j])
        hs.append(h)
    assert_same(model(lattice), [label_loss(model.out, h, tag) for h, tag in zip(hs, lattice.tags, strict=True)])


@pytest.mark.parametrize("model", [LatticeLSTM, LatticeGRU])
def test_sums_do_not_grow_along_a_lattice(model):
    torch.manual_seed(0)
    words = [((i - 2, i % 11), (i - 4, i % 5)) if i > 3 and i % 2 else () for i in range(1, 120)]
    lattice = Example(tags=(0,) * 120, arcs=((), *(((i, i % 7), *arcs) for i, arcs in enumerate(words))))
    with torch.no_grad():
        loss, _ = model(chars=7, words=11, tags=3, dim=64)(lattice)
    assert loss / 120 < 2


def test_random_dag():
    model, dag = model_of("random-dag"), example_of("random-dag")
    assert {kind for arcs in dag.arcs for _, kind, _ in arcs} == {0, 1}
    states = [(model.h0, model.c0)]
    for arcs in dag.arcs[1:]:
        steps = [token_step(model.kinds[kind], token, states[source]) for source, kind, token in arcs]
        h, c = (sum(step[k] for step in steps) / len(steps) for k in range(2))
        states.append((h, c))
    assert_same(model(dag), [label_loss(model.out, h, tag) for (h, _), tag in zip(states, dag.tags, strict=True)])


@pytest.mark.parametrize("shape", [(3,), (1,), (2, 3), (3, 1), (2, 3, 2)])
def test_grid_lstm(shape):
    """Depth first from the last corner, without the row-major order that the model uses."""
    model, dims = model_of(f"lstm-{len(shape)}d"), len(shape)
    number_of = {tuple(place): i for i, place in enumerate(torch.ones(shape).nonzero().tolist())}
    words = [3 * i % 11 for i in range(len(number_of))]
    gates = parts(model.place.gates, 3 + dims)

    def state(place: tuple[int, ...]) -> Any:
        if min(place) < 0:
            return model.h0, model.c0
        before = [state(tuple(p - (axis == k) for axis, p in enumerate(place))) for k in range(dims)]
        x = torch.cat((model.place.embedding.weight[words[number_of[place]]], *(h for h, _ in before)))
        i, o, u, *fs = (w @ x + b for w, b in gates)
        c = s(i) * torch.tanh(u) + sum(s(f) * c for f, (_, c) in zip(fs, before, strict=True))
        return s(o) * torch.tanh(c), c

    h, _ = state(tuple(length - 1 for length in shape))
    grid = Example(shape=shape, words=tuple(words), label=1)
    assert_same_root(model(grid), [label_loss(model.out, h, 1)])


def test_module_net():
    model, question = model_of("module-net"), example_of("module-net")

    def value(program: Any) -> Any:
        if "index" in vars(program):
            return model.input.weight @ question.features[program.index] + model.input.bias
        linear = model.library[program.module].linear
        return torch.tanh(linear.weight @ torch.cat([value(part) for part in program.arguments]) + linear.bias)

    assert_same_root(model(question), [label_loss(model.out, value(question.program), question.label)])
