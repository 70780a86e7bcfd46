"""Small models for one example, of every kind of graph that users write, each with random examples for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import edbatch

DIM, WORDS = 4, 13


@dataclass(frozen=True)
class Case:
    """A model and a mini-batch for it: `model` and `columns` make them from a seed."""

    name: str
    model: Callable[[], Any]
    columns: Callable[[random.Random], tuple[list[Any], ...]]
    stack: Any = True


def random_tree(rng: random.Random, leaves: int) -> Any:
    if leaves == 1:
        return rng.randrange(WORDS)
    left = rng.randint(1, leaves - 1)
    return random_tree(rng, left), random_tree(rng, leaves - left)


class Leaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, DIM)
        self.gates = nn.Linear(DIM, 3 * DIM)

    def forward(self, word):
        i, o, u = self.gates(self.embedding(word)).chunk(3)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c


class Node(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * DIM, 5 * DIM)

    def forward(self, h1, c1, h2, c2):
        i, o, u, f1, f2 = self.gates(torch.cat([h1, h2])).chunk(5)
        c = i.sigmoid() * u.tanh() + f1.sigmoid() * c1 + f2.sigmoid() * c2
        return o.sigmoid() * c.tanh(), c


class BinaryTreeLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leaf, self.node, self.out = edbatch.cell(Leaf()), edbatch.cell(Node()), edbatch.cell(nn.Linear(DIM, 3))

    def encode(self, tree):
        if isinstance(tree, int):
            return self.leaf(tree)
        return self.node(*self.encode(tree[0]), *self.encode(tree[1]))

    def forward(self, tree):
        return self.out(self.encode(tree)[0])


class ChildSumNode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.state = nn.Embedding(WORDS, 3 * DIM), nn.Linear(DIM, 3 * DIM, bias=False)

    def forward(self, word, h, c):
        i, o, u = (self.word(word) + self.state(h)).chunk(3)
        c = i.sigmoid() * u.tanh() + c
        return o.sigmoid() * c.tanh(), c


class ChildSumTreeLSTM(nn.Module):
    """Nodes with 0 to 6 children; the sums over children are n-ary."""

    def __init__(self) -> None:
        super().__init__()
        self.node, self.forget = edbatch.cell(ChildSumNode()), edbatch.cell(nn.Linear(DIM, DIM))
        self.zero = nn.Parameter(torch.zeros(DIM), requires_grad=False)

    def encode(self, tree):
        word, children = tree
        states = [self.encode(child) for child in children]
        h, c = self.zero, self.zero
        for child_h, child_c in states:
            h = h + child_h if h is not self.zero else child_h
            gated = torch.sigmoid(self.forget(child_h)) * child_c
            c = c + gated if c is not self.zero else gated
        return self.node(word, h, c)

    def forward(self, tree):
        return self.encode(tree)[0]


def random_wide_tree(rng: random.Random, depth: int) -> Any:
    return rng.randrange(WORDS), [random_wide_tree(rng, depth - 1) for _ in range(rng.randint(0, 6) if depth else 0)]


class SharedDag(nn.Module):
    """Each node reads two earlier ones, which many may share."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.join = nn.Embedding(WORDS, DIM), edbatch.cell(nn.Bilinear(DIM, DIM, DIM))

    def forward(self, dag):
        words, edges = dag
        values = [self.start(w) for w in words]
        for a, b in edges:
            values.append(torch.tanh(self.join(values[a], values[b])))
        return values[-1], values[len(words) // 2]


def random_dag(rng: random.Random) -> Any:
    words = [rng.randrange(WORDS) for _ in range(rng.randint(1, 4))]
    edges = []
    for i in range(rng.randint(1, 7)):
        edges.append((rng.randrange(len(words) + i), rng.randrange(len(words) + i)))
    return words, edges


class Arc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(WORDS, DIM), nn.LSTMCell(DIM, DIM)

    def forward(self, token, state):
        return self.cell(self.embedding(token), state)


class Lattice(nn.Module):
    """Characters and words as two arc cells; states are sums over incoming arcs; a loss at every node."""

    def __init__(self) -> None:
        super().__init__()
        self.char, self.word = edbatch.cell(Arc()), edbatch.cell(Arc())
        self.h0, self.c0 = nn.Parameter(torch.randn(DIM)), nn.Parameter(torch.randn(DIM))
        self.tag = nn.Linear(DIM, 3)

    def forward(self, lattice):
        states = [(self.h0, self.c0)]
        losses = []
        for i, (label, arcs) in enumerate(lattice, start=1):
            new = [(self.char if start == i - 1 else self.word)(token, states[start]) for start, token in arcs]
            states.append((sum(h for h, _ in new), sum(c for _, c in new)))
            losses.append(nn.functional.cross_entropy(self.tag(states[-1][0]), torch.tensor(label)))
        return torch.stack(losses).sum(0)


def random_lattice(rng: random.Random) -> Any:
    return [
        (
            rng.randrange(3),
            [(i, rng.randrange(WORDS))]
            + [(rng.randrange(i + 1), rng.randrange(WORDS)) for _ in range(rng.randint(0, 2))],
        )
        for i in range(rng.randint(1, 6))
    ]


class Tagger(nn.Module):
    """A bidirectional tagger from torch's own cells, none of them marked; one row of scores per word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = (
            nn.Embedding(WORDS, DIM),
            nn.Sequential(nn.Linear(2 * DIM, DIM), nn.Tanh(), nn.Linear(DIM, 3)),
        )
        self.cells = nn.ModuleList([nn.LSTMCell(DIM, DIM), nn.LSTMCell(DIM, DIM)])
        self.h0, self.c0 = nn.Parameter(torch.randn(DIM)), nn.Parameter(torch.randn(DIM))

    def run(self, cell, xs):
        h, c, states = self.h0, self.c0, []
        for x in xs:
            h, c = cell(x, (h, c))
            states.append(h)
        return states

    def forward(self, sentence):
        xs = [self.embedding(w) for w in sentence]
        forward, backward = self.run(self.cells[0], xs), self.run(self.cells[1], xs[::-1])[::-1]
        return torch.stack([self.out(torch.cat([f, b])) for f, b in zip(forward, backward, strict=True)])


class Attention(nn.Module):
    """Dot-product and additive attention over any number of rows, with reductions over them."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.score = (
            nn.Linear(DIM, DIM),
            nn.Parameter(torch.randn(DIM)),
            nn.Parameter(torch.randn(DIM)),
        )

    def forward(self, memory, query):
        rows = torch.stack([torch.tanh(x * self.query) for x in memory])
        weights = torch.softmax(rows @ query, dim=0)
        context = weights @ rows
        additive = torch.tanh(self.key(rows) + query) @ self.score
        other = additive.softmax(0) @ rows
        return context + other, rows.mean(0), rows.max(0).values, torch.logsumexp(rows, 0), rows.sum(0), rows.amax(0)


class SingleOps(nn.Module):
    """No cell at all: torch functions, operators, methods, indexing, numbers, a parameter-only product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(DIM, DIM)), nn.Parameter(torch.randn(DIM))

    def forward(self, x, example):
        steps, scale, column = example
        weight = self.weight @ self.weight.T / DIM
        for _ in range(steps):
            x = torch.tanh(weight @ x + self.bias)
            x = torch.where(x > 0, x * scale, 0.5 - x)
        y = x[column] * x.sum() + x[-1] ** 2
        z = torch.cat([x.unsqueeze(0), x[None] * 2]).mean(0).clamp(min=-0.5)
        return y, z[1:], nn.functional.log_softmax(z, dim=-1).max(), x.view(2, 2).T.reshape(-1)


class TupleState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * DIM, 2 * DIM)

    def forward(self, x, state):
        h, inner = state
        y = self.linear(torch.cat([x, h])).tanh()
        return y[:DIM], {"state": (y[DIM:], {"memory": inner["memory"] * 0.5 + x})}


class TupleStateModel(nn.Module):
    """State in tuples and dicts, going in and out of a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.step = nn.Embedding(WORDS, DIM), edbatch.cell(TupleState())
        self.h0 = nn.Parameter(torch.randn(DIM))

    def forward(self, words):
        state = (self.h0, {"memory": torch.zeros(DIM, dtype=self.h0.dtype)})
        total = 0
        for word in words:
            y, out = self.step(self.embedding(word), state=state)
            state, total = out["state"], total + y
        return total, state[1]["memory"]


class TiedWeights(nn.Module):
    """One weight in two cells, and the embedding as output weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up, self.down = (
            nn.Embedding(WORDS, DIM),
            edbatch.cell(nn.Linear(DIM, DIM)),
            edbatch.cell(nn.Linear(DIM, DIM)),
        )
        self.down.weight = self.up.weight

    def forward(self, words):
        h = self.embedding(words[0])
        for word in words:
            h = torch.tanh(self.down(torch.relu(self.up(h)) + self.embedding(word)))
        return self.embedding.weight @ h


class TwiceTheSame(nn.Module):
    """The first call of the cell gets one value twice; later ones get two."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.node = nn.Embedding(WORDS, DIM), edbatch.cell(nn.Bilinear(DIM, DIM, DIM))

    def forward(self, words):
        h = self.embedding(words[0])
        h = self.node(h, h)
        for word in words[1:]:
            h = self.node(h, self.embedding(word))
        return h


def _words(rng: random.Random) -> list[int]:
    return [rng.randrange(WORDS) for _ in range(rng.randint(1, 6))]


def _vectors(rng: random.Random) -> list[torch.Tensor]:
    return [torch.tensor([rng.gauss(0, 1) for _ in range(DIM)], dtype=torch.float64) for _ in range(rng.randint(1, 5))]


def _examples(
    make: Callable[[random.Random], Any], number: int = 6
) -> Callable[[random.Random], tuple[list[Any], ...]]:
    return lambda rng: ([make(rng) for _ in range(number)],)


CASES = [
    Case("binary TreeLSTM", BinaryTreeLSTM, _examples(lambda rng: random_tree(rng, rng.randint(1, 7)))),
    Case("child-sum TreeLSTM", ChildSumTreeLSTM, _examples(lambda rng: random_wide_tree(rng, 2))),
    Case("shared DAG", SharedDag, _examples(random_dag)),
    Case("lattice", Lattice, _examples(random_lattice)),
    Case("tagger", Tagger, _examples(_words), stack="cat"),
    Case("attention", Attention, lambda rng: ([_vectors(rng) for _ in range(6)], [_vectors(rng)[0] for _ in range(6)])),
    Case(
        "single ops",
        SingleOps,
        lambda rng: (
            torch.stack([_vectors(rng)[0] for _ in range(6)]),
            [(rng.randint(0, 3), rng.random(), rng.randrange(DIM)) for _ in range(6)],
        ),
    ),
    Case("tuple state", TupleStateModel, _examples(_words)),
    Case("tied weights", TiedWeights, _examples(_words)),
    Case("twice the same", TwiceTheSame, _examples(_words)),
]


def make(case: Case, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Any, tuple[Any, ...]]:
    """The model of a case and a mini-batch for it."""
    torch.manual_seed(seed)
    model = case.model().to(dtype)
    columns = case.columns(random.Random(seed))
    to = lambda leaf: leaf.to(dtype) if isinstance(leaf, torch.Tensor) else leaf  # noqa: E731
    return model, torch.utils._pytree.tree_map(to, columns)
