"""The taggers and translators are what the equations say, on one example from the weights."""

from __future__ import annotations

from typing import Any

import torch
from by_hand import assert_same, example_of, label_loss, lstm, model_of, token_step
from torch import Tensor


def chain(model: Any, xs: list[Tensor]) -> list[Tensor]:
    state, hs = (model.h0, model.c0), []
    for x in xs:
        state = lstm(model.step.lstm, x, state)
        hs.append(state[0])
    return hs


def tags_by_hand(model: Any, vectors: list[Tensor], tags: Any) -> list[Any]:
    for layer in range(2):
        forward = chain(model.forwards[layer], vectors)
        backward = chain(model.backwards[layer], vectors[::-1])[::-1]
        vectors = [torch.cat(both) for both in zip(forward, backward, strict=True)]
    hidden = [torch.tanh(model.out.hidden.weight @ x) for x in vectors]
    return [label_loss(model.out.loss, x, tag) for x, tag in zip(hidden, tags, strict=True)]


def test_bilstm_tagger():
    model, sentence = model_of("bilstm-tagger"), example_of("bilstm-tagger")
    assert len(sentence.words) > 2
    vectors = [model.embedding.weight[word] for word in sentence.words]
    assert_same(model(sentence), tags_by_hand(model, vectors, sentence.tags))
    assert model.out.hidden.bias is None  # O·tanh(Hm[fwd;bwd])
    assert model.out.loss.linear.bias is None


def test_bilstm_tagger_char():
    model, sentence = model_of("bilstm-tagger-char"), example_of("bilstm-tagger-char")
    assert {type(word) for word in sentence.words} == {int, tuple}

    def last(spelling: Any, chars: Any) -> Tensor:
        state = spelling.h0, spelling.c0
        for char in chars:
            state = token_step(spelling.step, char, state)
        return state[0]

    vectors = [
        model.embedding.weight[word] if isinstance(word, int)
        else torch.cat((last(model.left, word), last(model.right, word[::-1])))
        for word in sentence.words
    ]  # fmt: skip
    assert_same(model(sentence), tags_by_hand(model, vectors, sentence.tags))


def encode(model: Any, source: Any) -> list[Any]:
    states = [(model.h0, model.c0)]
    for word in source:
        states.append(token_step(model.encoder, word, states[-1]))
    return states[1:]


def test_lstm_nmt():
    model, pair = model_of("lstm-nmt"), example_of("lstm-nmt")
    assert len(pair.source) > 1
    assert len(pair.target) > 2
    state, expected = encode(model, pair.source)[-1], []
    for t in range(len(pair.target) - 1):
        state = token_step(model.decoder, pair.target[t], state)
        expected.append(label_loss(model.out, state[0], pair.target[t + 1]))
    assert_same(model(pair), expected)


def test_attention_nmt():
    model, pair = model_of("attention-nmt"), example_of("attention-nmt")
    encoded, expected = encode(model, pair.source), []
    state = encoded[-1]
    for t in range(len(pair.target) - 1):
        state = token_step(model.decoder, pair.target[t], state)
        scores = [torch.exp((row * state[0]).sum()) for row, _ in encoded]
        context = sum(score / sum(scores) * row for score, (row, _) in zip(scores, encoded, strict=True))
        hidden = torch.tanh(model.out.hidden.weight @ torch.cat((state[0], context)) + model.out.hidden.bias)
        expected.append(label_loss(model.out.loss, hidden, pair.target[t + 1]))
    assert_same(model(pair), expected)
