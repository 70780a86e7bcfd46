"""Torch functions that are met by their names while somebody records: the table.

From `torch.sigmoid(x)` to `__torch_function__` torch needs 0.8 µs or more, before any code of ours runs. So functions
that models call often stand in torch's namespaces as objects that look for known calls first (`_calls.c`), as long as
somebody records; `interception.py` puts them there. Such an object is passive: a call without lazy values, or while
modes of the user want to see it, goes to torch's function, whose attributes, text and pickle it also has. `torch.where`
is not among them, since TorchScript, by which torch makes some derivatives at first use, knows it by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from edbatch.recording.calls.fast_cells import RECORDS_IN_C, Named, named_stack
from edbatch.recording.calls.fast_functions import ARITHMETIC

_TORCH = (
    "abs", "add", "addmm", "argmax", "bmm", "cat", "chunk", "clamp", "concat", "cos", "div", "dot", "einsum", "exp",
    "flatten", "log", "log_softmax", "logsumexp", "matmul", "max", "maximum", "mean", "min", "minimum", "mm", "mul",
    "mv", "neg", "permute", "pow", "relu", "reshape", "rsqrt", "sigmoid", "sin", "softmax", "split", "sqrt", "square",
    "squeeze", "sub", "sum", "tanh", "transpose", "unbind", "unsqueeze",
)  # fmt: skip
_FUNCTIONAL = (
    "binary_cross_entropy_with_logits", "cross_entropy", "dropout", "elu", "embedding", "gelu", "layer_norm",
    "leaky_relu", "linear", "log_softmax", "logsigmoid", "mse_loss", "nll_loss", "normalize", "relu", "sigmoid", "silu",
    "softmax", "softplus", "tanh",
)  # fmt: skip


def _named(original: Callable[..., Any]) -> Any:
    """What takes the place of a function. One that is written in Python may give its arguments on in another order."""
    is_in_c = not hasattr(original, "__code__")
    return Named(original, original, original in ARITHMETIC, is_in_c, True)


def named_functions() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Namespace, name and what makes the object in its place; none without a C compiler."""
    if RECORDS_IN_C:
        yield torch, "stack", named_stack
        for holder, names in ((torch, _TORCH), (functional, _FUNCTIONAL)):
            yield from ((holder, name, _named) for name in names if name in vars(holder))
