"""Functions of one example, as many kinds as we can think of, each with a way to draw its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Callable[..., Any]]  # the function; modules are built inside, after seeding
    draw: Callable[[], tuple[torch.Tensor, ...]]


class TreeNode(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.iou, self.f1, self.f2 = nn.Linear(2 * size, 3 * size), nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, h1, c1, h2, c2):
        i, o, u = self.iou(torch.cat([h1, h2])).chunk(3)
        c = i.sigmoid() * u.tanh() + self.f1(h1).sigmoid() * c1 + self.f2(h2).sigmoid() * c2
        return o.sigmoid() * c.tanh(), c


class Reversed(torch.autograd.Function):
    """Gradient reversal, written the old way."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -0.5 * grad


class DoubledWeight(torch.autograd.Function):
    """A product whose weight gradient is doubled; the weight reaches `apply` as it is."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return weight @ x

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return weight.t() @ grad, torch.outer(grad, x) * 2


def weights(*shapes):
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def with_weights(function, *shapes):
    """A function whose first arguments are parameters it closes over."""

    def make():
        held = weights(*shapes)
        return lambda *xs: function(*held, *xs)

    return make


def reals(*shapes):
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def with_index(*shapes, index=(), below=4):
    return lambda: (*(torch.randn(shape) for shape in shapes), torch.randint(below, index))


def in_place(w, x):
    y = x * 2
    y += 1
    y[0] = 3.0
    return y.relu_() * w.sum()


def no_grad_inside(x):
    with torch.no_grad():
        y = x.tanh()
    return x * y + x.detach()


def activations(x):
    functions = (F.gelu, F.silu, F.elu, F.leaky_relu, F.softplus, F.hardtanh, F.logsigmoid, F.relu6, F.mish, F.selu)
    return sum(f(x) for f in functions)


def attention():
    module = nn.MultiheadAttention(4, 2)
    return lambda x: module(x, x, x)[0]


def fixed(function):
    return lambda: function


def case(name, make, draw):
    return Case(name, make, draw)


MODULES = [
    case("linear", lambda: nn.Linear(4, 5), reals(4)),
    case("linear of rows", lambda: nn.Linear(4, 5), reals((3, 4))),
    case("linear without bias", lambda: nn.Linear(4, 5, bias=False), reals((2, 3, 4))),
    case("embedding", lambda: nn.Embedding(7, 4), with_index()),
    case("embedding of many", lambda: nn.Embedding(7, 4), with_index(index=(2, 3))),
    case("embedding, padding", lambda: nn.Embedding(7, 4, padding_idx=1), with_index(index=(5,))),
    case("embedding, by frequency", lambda: nn.Embedding(7, 4, scale_grad_by_freq=True), with_index(index=(5,))),
    case("embedding, sparse", lambda: nn.Embedding(7, 4, sparse=True), with_index(index=(5,))),
    case("embedding, sparse padding", lambda: nn.Embedding(7, 4, padding_idx=1, sparse=True), with_index(index=(5,))),
    case("lstm cell", lambda: nn.LSTMCell(4, 5), reals(4)),
    case("lstm cell with state", lambda: (lambda m: lambda x, h, c: m(x, (h, c)))(nn.LSTMCell(4, 5)), reals(4, 5, 5)),
    case("gru cell", lambda: nn.GRUCell(4, 5), reals(4, 5)),
    case("rnn cell", lambda: nn.RNNCell(4, 5), reals(4, 5)),
    case("tree node", lambda: TreeNode(4), reals(4, 4, 4, 4)),
    case("layer norm", lambda: nn.LayerNorm(4), reals(4)),
    case("layer norm of rows", lambda: nn.LayerNorm(4), reals((3, 4))),
    case("layer norm of a matrix", lambda: nn.LayerNorm((3, 4)), reals((3, 4))),
    case("group norm", lambda: nn.GroupNorm(2, 4), reals((1, 4, 3))),
    case("batch norm, eval", lambda: nn.BatchNorm1d(4).eval(), reals((3, 4))),
    case("bilinear", lambda: nn.Bilinear(3, 4, 5), reals(3, 4)),
    case("conv1d", lambda: nn.Conv1d(2, 3, 3), reals((2, 6))),
    case("conv2d", lambda: nn.Conv2d(2, 3, 3, padding=1), reals((2, 5, 5))),
    case("prelu", lambda: nn.PReLU(), reals(4)),
    case("attention", attention, reals((3, 4))),
    case("encoder layer", lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), reals((3, 4))),
    case("dropout 0", lambda: nn.Dropout(0.0), reals(4)),
    case(
        "mlp",
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2), nn.LogSoftmax(-1)),
        reals(4),
    ),
]
WEIGHTS = [
    case("one weight, two products", with_weights(lambda w, x: w @ (w @ x), (4, 4)), reals(4)),
    case("tied: W and its transpose", with_weights(lambda w, x, y: torch.tanh(x @ w) + y @ w.t(), (4, 4)), reals(4, 4)),
    case("low rank", with_weights(lambda a, b, c, x: (a @ b) @ x + c, (4, 2), (2, 4), 4), reals(4)),
    case("shared @ matrix", with_weights(lambda w, x: w @ x, (5, 4)), reals((4, 3))),
    case("matrix @ shared + bias", with_weights(lambda w, b, x: x @ w + b, (4, 4), 4), reals((3, 4))),
    case(
        "addmm with rows",
        with_weights(lambda w, c, x: torch.addmm(c, x, w, beta=0.5, alpha=2.0), (4, 4)),
        reals((3, 4), (3, 4)),
    ),
    case("addmm of rows", with_weights(torch.addmm, 4), reals((3, 4), (4, 4))),
    case("addmv of rows", with_weights(lambda b, x, w: torch.addmv(b, w, x), 4), reals(4, (4, 4))),
    case("dot with a weight", with_weights(lambda b, x: x.dot(b), 4), reals(4)),
    case("outer times weight", with_weights(lambda w, x, y: torch.outer(x, y) * w, (4, 3)), reals(4, 3)),
    case("einsum", with_weights(lambda w, x, y: torch.einsum("i,ij,j->", x, w, y), (4, 3)), reals(4, 3)),
    case("batched weights", with_weights(lambda w, x: torch.bmm(x, w), (2, 4, 3)), reals((2, 3, 4))),
    case("scalar weight", with_weights(lambda s, x: x * s + s, ()), reals(4)),
    case("scalar weight, scalar row", with_weights(lambda s, x: x * s + s, ()), reals(())),
    case("weight[i]", with_weights(lambda w, i: w[i], (4, 3)), with_index()),
    case("weight[many]", with_weights(lambda w, i: w[i], (4, 3)), with_index(index=(3,))),
    case(
        "weight[i, j]",
        with_weights(lambda w, i, j: w[i, j], (4, 4)),
        lambda: (torch.randint(4, ()), torch.randint(4, ())),
    ),
    case("weight[:, i]", with_weights(lambda w, i: w[:, i] * 2, (3, 4)), with_index()),
    case("weight.gather", with_weights(lambda b, i: b.gather(0, i), 4), with_index(index=(3,))),
    case("weight.index_select", with_weights(lambda w, i: w.index_select(0, i), (4, 3)), with_index(index=(3,))),
    case("weight column slice", with_weights(lambda w, x: x @ w[:, 1:3] + w[0, 0], (4, 4)), reals(4)),
    case("cat with a weight", with_weights(lambda b, x: torch.cat([x, b]) * 2, 4), reals(3)),
    case("stack with a weight", with_weights(lambda b, x, y: torch.stack([x, y, b]), 4), reals(4, 4)),
    case("output is input", with_weights(lambda b, x: (x, x, b, x.view(2, 2), x + 1), 4), reals(4)),
    case("custom function with a weight", with_weights(lambda w, x: DoubledWeight.apply(x, w), (3, 4)), reals(4)),
    case("gradient reversal", with_weights(lambda w, x: Reversed.apply(x) @ w, (4, 3)), reals(4)),
    case("in place inside", with_weights(in_place, (2, 2)), reals(4)),
    case("a weight nobody reads", with_weights(lambda w, x: (x * 2, w.shape[0]), (4,)), reals(4)),
]
PLAIN = [
    case("no_grad and detach", fixed(no_grad_inside), reals(4)),
    case("activations", fixed(activations), reals(6)),
    case("powers", fixed(lambda x: x**2 + 2**x + x.abs() ** 1.5 + x.abs().sqrt()), reals(4)),
    case("clamp", fixed(lambda x, y: x.clamp(-0.5, 0.5) + x.clamp(min=y)), reals(4, 4)),
    case("ranks", fixed(lambda x, y, z: x * y + z), reals((3, 4), 4, ())),
    case("broadcast both ways", fixed(lambda x, y: (x[:, None] * y[None]).sum(1)), reals(4, 3)),
    case("int times float", fixed(lambda x, i: x * i + i), with_index(4)),
    case("comparison", fixed(lambda x, y: (x * (x > y), x > 0, torch.where(x > y, x, y * 2))), reals(4, 4)),
    case("masked softmax", fixed(lambda x: x.masked_fill(x > 0, -1e3).softmax(0)), reals(4)),
    case("softmaxes", fixed(lambda x: (x.softmax(-1), x.log_softmax(0), x.logsumexp(1))), reals((3, 4))),
    case("reductions", fixed(lambda x: (x.mean(), x.mean(0), x.sum(), x.sum(1, keepdim=True), x.amax(0))),
         reals((4, 3))),
    case("max and argmax", fixed(lambda x: (x.max(), x.max(0), x.argmax(), x.argmin(1), x.min())), reals((4, 3))),
    case("moments", fixed(lambda x: (x.std(), x.var(0), x.norm(), F.normalize(x, dim=0))), reals((4, 3))),
    case("cumulative", fixed(lambda x: (x.prod(), x.cumsum(0), x.cumprod(0))), reals(4)),
    case("topk and sort", fixed(lambda x: (x.topk(2), x.sort())), reals(4)),
    case("x[i]", fixed(lambda x, i: x[i]), with_index((4, 3))),
    case("x[1:, i]", fixed(lambda x, i: x[1:, i]), with_index((3, 4))),
    case("slices", fixed(lambda x: x[1:3] * 2 + x[0] + x[-1] + x[::3]), reals(4)),
    case("gather", fixed(lambda x, i: x.gather(0, i)), with_index(4, index=(3,))),
    case("scatter_add", fixed(lambda x, i: torch.zeros(5).scatter_add(0, i, x)), with_index(3, index=(3,))),
    case("index_select", fixed(lambda x: x.index_select(0, torch.tensor([1, 0]))), reals((4, 2))),
    case("one hot", fixed(lambda i: F.one_hot(i, 5).to(torch.float64)), with_index()),
    case("chunks", fixed(lambda x: [a * k for k, a in enumerate(x.chunk(3))]), reals(6)),
    case("unbind", fixed(lambda x: x.unbind(0)[1] * x.unbind(0)[0]), reals((3, 4))),
    case("expand and permute", fixed(lambda x: x.expand(2, 3, 4).permute(2, 0, 1).reshape(4, -1)), reals((3, 4))),
    case("products of rows", fixed(lambda x, y: (x @ y, (x @ y).t() @ x)), reals((3, 4), (4, 3))),
    case("batched products", fixed(lambda c, x, y: torch.baddbmm(c, x, y)), reals((2, 3, 3), (2, 3, 4), (2, 4, 3))),
    case("dot of rows", fixed(torch.dot), reals(4, 4)),
    case("attention of rows", fixed(F.scaled_dot_product_attention), reals((2, 3, 4), (2, 3, 4), (2, 3, 4))),
    case("flip, roll, pad", fixed(lambda x: (x.flip(0) + x.roll(1), F.pad(x, (1, 2)), x.repeat(2, 2))), reals(4)),
    case("triangles", fixed(lambda x: (x.tril(), torch.triu(x, 1), x.diagonal(), x.trace())), reals((3, 3))),
    case("cross entropy", fixed(F.cross_entropy), with_index(6)),
    case("cross entropy, many", fixed(F.cross_entropy), with_index((3, 6), index=(3,))),
    case("cross entropy, weights", fixed(lambda x, y: F.cross_entropy(x, y, torch.ones(6) * 2)), with_index(6)),
    case("cross entropy, ignored", fixed(lambda x, y: F.cross_entropy(x, y, ignore_index=1, reduction="sum")),
         with_index(6)),
    case("losses", fixed(lambda x, y: F.mse_loss(x, y) + F.l1_loss(x, y) + F.cosine_similarity(x, y, 0)), reals(4, 4)),
    case("bce", fixed(lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid())), reals(4, 4)),
    case("inverse by vmap", fixed(lambda x: torch.linalg.inv(x + 3 * torch.eye(3))), reals((3, 3))),
    case("pooling by vmap", fixed(lambda x: F.max_pool1d(x, 2)), reals((2, 6))),
    case("constants in the result", fixed(lambda x: {"a": x * torch.tensor([1.0, 2.0]), "n": 3, "s": None}), reals(2)),
    case("lerp and addcmul", fixed(lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y, value=0.5)),
         reals(4, 4)),
    case("glu", fixed(F.glu), reals(4)),
    case("negative zero slope", fixed(lambda x: torch.relu(x) - torch.relu(-x) + x.abs()), reals(4)),
]  # fmt: skip
CASES = MODULES + WEIGHTS + PLAIN
