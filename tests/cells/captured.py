"""Bodies to try passes on, captured from functions of a few numbers, and the names of their ops."""

import torch

from edbatch.cells.body.body import Val
from edbatch.cells.body.simplify import simplify
from edbatch.cells.capture.capture import capture
from edbatch.spec import Spec

VECTOR = torch.zeros(4)
WEIGHTS = torch.nn.ParameterList(torch.zeros(4, 4) for _ in range(2))
BIAS = torch.nn.Parameter(torch.zeros(4))


def captured_body(function, *rows):
    """The body as capture recorded it; without `rows` the function is one of a vector."""
    return capture(function, [Spec.of(x) for x in rows or [VECTOR]], []).body


def simple_body(function, *rows):
    return simplify(captured_body(function, *rows))


def op_names(body, indices=None):
    """Of all ops, or of those that make some values: "tanh" for `tanh.default`."""
    ops = body.ops if indices is None else [body.op(Val(i)) for i in sorted(indices)]
    return [op.name.partition(".")[0] for op in ops]
