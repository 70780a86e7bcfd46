"""Random bodies: whatever ops are put together, batched equals one by one."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_by_one import assert_equal
from torch import nn

SIZE = 4
UNARY = [
    torch.sigmoid, torch.tanh, torch.sin, lambda x: x * x, lambda x: x.softmax(-1), lambda x: x.cumsum(-1),
    lambda x: x - x.mean(-1, keepdim=True), lambda x: x.flip(-1), lambda x: torch.cat([x[..., 1:], x[..., :1]], -1),
    lambda x: x.clone().mul_(0.5), lambda x: x.detach() * x, lambda x: x.unsqueeze(0).expand(2, *x.shape).sum(0),
    lambda x: torch.where(x > 0, x, -0.5 * x), lambda x: x.view(2, -1).t().reshape(x.shape), torch.relu,
    lambda x: x.clamp(-1, 1), lambda x: torch.logsumexp(x, -1, keepdim=True) - x,
]  # fmt: skip
BINARY = [
    torch.add, torch.sub, torch.mul, torch.maximum, lambda x, y: x * y.sum(), lambda x, y: x.dot(y) * x,
    lambda x, y: torch.outer(x, y).sum(0), lambda x, y: torch.stack([x, y]).mean(0), lambda x, y: x / (1 + y * y),
    lambda x, y: torch.cat([x, y])[1 : SIZE + 1],
]  # fmt: skip
WEIGHTED = [
    lambda w, b, x: w @ x + b, lambda w, b, x: x @ w, lambda w, b, x: nn.functional.linear(x, w, b),
    lambda w, b, x: x * b, lambda w, b, x: nn.functional.layer_norm(x, (SIZE,), b, b),
    lambda w, b, x: w[1] + x * w[0, 0],
    lambda w, b, x: (w.t() @ w) @ x, lambda w, b, x: torch.einsum("i,ij->j", x, w * 0.5), lambda w, b, x: x.dot(b) * x,
]  # fmt: skip


@st.composite
def programs(draw):
    """A list of steps (function, operands); values 0 and 1 are the rows."""
    steps, count = [], 2
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from([UNARY, BINARY, WEIGHTED]))
        place = draw(st.integers(0, len(kind) - 1))
        operands = tuple(draw(st.integers(0, count - 1)) for _ in range(2 if kind is BINARY else 1))
        steps.append((kind, place, operands))
        count += 1
    outputs = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3))
    return steps, outputs


def function_of(program, draw):
    """The function of two rows that a program describes; `draw`: how to draw its weights."""
    steps, outputs = program
    w = nn.Parameter(torch.randn(SIZE, SIZE, **draw) * 0.5)
    b = nn.Parameter(torch.randn(SIZE, **draw))

    def body(x, y):
        values = [x, y]
        for kind, place, operands in steps:
            first = (w, b) if kind is WEIGHTED else ()
            values.append(kind[place](*first, *(values[i] for i in operands)))
        return [values[i] for i in outputs]

    return body


@settings(max_examples=60)
@given(programs(), st.integers(0, 1000))
def test_random_bodies(program, seed):
    draw = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(seed)}
    body = function_of(program, draw)
    examples = [(torch.randn(SIZE, **draw), torch.randn(SIZE, **draw)) for _ in range(4)]
    assert_equal(body, examples, tolerance=1e-8)
