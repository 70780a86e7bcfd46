"""The paper's workloads in DyNet's Python API: the equations and the weights of our torch models, to be timed.

Each function in `LOSSES` takes a `Copies` (weights) and a torch model, and returns a function from one example to the
losses of all its labels. DyNet batches by itself what these functions build for a mini-batch (autobatch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from edbatch import models
from edbatch.bench.dynet import cells
from edbatch.bench.dynet.cells import Copies, Expression, State
from edbatch.models.bilstm_tagger import Chain
from edbatch.models.bilstm_tagger_char import Spelling

Losses = Callable[[Any], list[Expression]]


class MiniBatch:
    """A torch model in DyNet, on these examples."""

    def __init__(self, dy: Any, name: str, model: nn.Module, examples: Sequence[Any]) -> None:
        self.dy, self.examples, self.copies = dy, examples, Copies(dy)
        self._losses = LOSSES[name](self.copies, model)

    def infer(self) -> float:
        """The sum of all losses."""
        loss: float = self._build().value()
        return loss

    def train(self) -> None:
        """Forward and backward. Gradients are added to those of earlier calls, so that no time is spent on zeroing."""
        loss = self._build()
        loss.forward()
        loss.backward()

    def _build(self) -> Expression:
        self.dy.renew_cg()
        return self.dy.esum([loss for example in self.examples for loss in self._losses(example)])


def on_trees(
    leaf: Callable[[int], Any], node: Callable[[Any, Any, Any], Any], loss: Callable[[Any, int], Expression]
) -> Losses:
    """The losses of all nodes of a tree; `node` takes the tree node, for its kind, and the states of its children."""

    def losses(tree: Any) -> list[Expression]:
        found: list[Expression] = []

        def state_of(tree: Any) -> Any:
            state = leaf(tree.word) if tree.is_leaf else node(tree, state_of(tree.left), state_of(tree.right))
            found.append(loss(state, tree.label))
            return state

        state_of(tree)
        return found

    return losses


def tree_lstm(copies: Copies, model: models.TreeLSTM) -> Losses:
    leaf, node = cells.leaf_lstm(copies, model.leaf), cells.binary_tree_lstm(copies, model.node)
    loss = cells.label_loss(copies, model.out)
    return on_trees(leaf, lambda _, left, right: node(left, right), lambda state, label: loss(state[0], label))


def tree_lstm_2type(copies: Copies, model: models.TwoTypeTreeLSTM) -> Losses:
    leaf, loss = cells.leaf_lstm(copies, model.leaf), cells.label_loss(copies, model.out)
    nodes = [cells.binary_tree_lstm(copies, node) for node in model.nodes]  # type: ignore[arg-type]
    return on_trees(leaf, lambda t, left, right: nodes[t.kind](left, right), lambda state, label: loss(state[0], label))


def tree_gru(copies: Copies, model: models.TreeGRU) -> Losses:
    embedding, unit = model.leaf
    table, leaf = copies.table(embedding), cells.gated_unit(copies, unit)
    left, right = cells.gated_unit(copies, model.node.left), cells.gated_unit(copies, model.node.right)
    return on_trees(
        lambda word: leaf(table[word]),
        lambda _, h1, h2: (left(h1) + right(h2)) * 0.5,
        cells.label_loss(copies, model.out),
    )


def mv_rnn(copies: Copies, model: models.MVRNN) -> Losses:
    leaf, node = cells.leaf_mv(copies, model.leaf), cells.binary_mv(copies, model.node)
    loss = cells.label_loss(copies, model.out)
    return on_trees(leaf, lambda _, left, right: node(left, right), lambda state, label: loss(state[1], label))


def bilstm_tagger(copies: Copies, model: models.BiLSTMTagger) -> Losses:
    table = copies.table(model.embedding)
    return _tagger(copies, model, lambda word: table[word])


def bilstm_tagger_char(copies: Copies, model: models.BiLSTMCharTagger) -> Losses:
    dy = copies.dy
    table = copies.table(model.embedding)
    left, right = spelling(copies, model.left), spelling(copies, model.right)

    def vector(word: int | tuple[int, ...]) -> Expression:
        return dy.concatenate([left(word), right(word[::-1])]) if isinstance(word, tuple) else table[word]

    return _tagger(copies, model, vector)


def _tagger(copies: Copies, model: models.BiLSTMTagger, vector: Callable[[Any], Expression]) -> Losses:
    dy = copies.dy
    layers = [
        (chain(copies, forward), chain(copies, backward))  # type: ignore[arg-type]
        for forward, backward in zip(model.forwards, model.backwards, strict=True)
    ]
    w, loss = copies.of(model.out.hidden.weight), cells.label_loss(copies, model.out.loss)

    def losses(sentence: Any) -> list[Expression]:
        xs = [vector(word) for word in sentence.words]
        for forward, backward in layers:
            both = zip(forward(xs), reversed(backward(xs[::-1])), strict=True)
            xs = [dy.concatenate([f, b]) for f, b in both]
        return [loss(dy.tanh(w * x), tag) for x, tag in zip(xs, sentence.tags, strict=True)]

    return losses


def chain(copies: Copies, module: Chain) -> Callable[[list[Expression]], list[Expression]]:
    """The states h of an LSTM along a list."""
    step, start = cells.lstm(copies, module.step.lstm), (copies.of(module.h0), copies.of(module.c0))

    def run(xs: list[Expression]) -> list[Expression]:
        state, hs = start, []
        for x in xs:
            state = step(x, state)
            hs.append(state[0])
        return hs

    return run


def spelling(copies: Copies, module: Spelling) -> Callable[[Sequence[int]], Expression]:
    """The last state h of an LSTM along characters."""
    step, start = cells.token_lstm(copies, module.step), (copies.of(module.h0), copies.of(module.c0))

    def run(chars: Sequence[int]) -> Expression:
        state = start
        for char in chars:
            state = step(char, state)
        return state[0]

    return run


def lstm_nmt(copies: Copies, model: models.LSTMTranslator) -> Losses:
    encoder, decoder = cells.token_lstm(copies, model.encoder), cells.token_lstm(copies, model.decoder)
    start, loss = (copies.of(model.h0), copies.of(model.c0)), cells.label_loss(copies, model.out)

    def losses(pair: Any) -> list[Expression]:
        state, found = start, []
        for word in pair.source:
            state = encoder(word, state)
        for word, next_word in pairwise(pair.target):
            state = decoder(word, state)
            found.append(loss(state[0], next_word))
        return found

    return losses


def lattice_lstm(copies: Copies, model: models.LatticeLSTM) -> Losses:
    dy = copies.dy
    char, word = cells.token_lstm(copies, model.char), cells.token_lstm(copies, model.word)
    start, loss = (copies.of(model.h0), copies.of(model.c0)), cells.label_loss(copies, model.out)

    def join(steps: list[State]) -> State:
        if len(steps) == 1:
            return steps[0]
        return dy.esum([h for h, _ in steps]), dy.esum([c for _, c in steps])

    def losses(lattice: Any) -> list[Expression]:
        states: list[State] = []
        for node, arcs in enumerate(lattice.arcs):
            steps = [(char if j == node - 1 else word)(token, states[j]) for j, token in arcs]
            states.append(join(steps) if steps else start)
        return [loss(h, tag) for (h, _), tag in zip(states, lattice.tags, strict=True)]

    return losses


def lattice_gru(copies: Copies, model: models.LatticeGRU) -> Losses:
    dy = copies.dy
    char, word = cells.token_gru(copies, model.char), cells.token_gru(copies, model.word)
    start, loss = copies.of(model.h0), cells.label_loss(copies, model.out)

    def losses(lattice: Any) -> list[Expression]:
        states: list[Expression] = []
        for node, arcs in enumerate(lattice.arcs):
            steps = [(char if j == node - 1 else word)(token, states[j]) for j, token in arcs]
            states.append((dy.esum(steps) if len(steps) > 1 else steps[0]) if steps else start)
        return [loss(h, tag) for h, tag in zip(states, lattice.tags, strict=True)]

    return losses


LOSSES: dict[str, Callable[[Copies, Any], Losses]] = {
    "tree-lstm": tree_lstm,
    "tree-lstm-2type": tree_lstm_2type,
    "tree-gru": tree_gru,
    "mv-rnn": mv_rnn,
    "bilstm-tagger": bilstm_tagger,
    "bilstm-tagger-char": bilstm_tagger_char,
    "lstm-nmt": lstm_nmt,
    "lattice-lstm": lattice_lstm,
    "lattice-gru": lattice_gru,
}
